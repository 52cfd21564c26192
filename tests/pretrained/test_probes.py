"""Predictors of what attention returns: the ladder, measures as theory says, and what replacing costs."""

import numpy as np
import pytest
import torch

from tests.pretrained.test_sites import make
from torchcram.pretrained import function, measures, probes, sites
from torchcram.pretrained.text import Windows


def windows(count, length=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(50, (count, length), generator=generator)
    return Windows(tokens, torch.arange(count) // 3, tuple(f"d{k}" for k in range(-(-count // 3))))


@pytest.fixture(scope="module")
def judged():
    model = make("GPT2")
    found = sites.find(model)
    config = probes.ProbeConfig(batch=4, rank=8, steps=1, chunk=16)
    learned = probes.fit(model, found, windows(60), config, "cpu")
    held = windows(9, seed=1)
    return model, found, learned, held, measures.judge(model, found, learned, held, batch=4, device="cpu")


def test_the_ladder_has_every_rung(judged):
    *_, scores = judged
    assert scores.names == probes.LADDER
    assert scores.sums.shape == (9, 3, 8, 4 + 2, 2, 5)
    measured = scores.measures()
    zero, mean, shuffled, linear = (scores.names.index(name) for name in ("zero", "mean", "shuffled", "linear"))
    np.testing.assert_allclose(measured["printed"][:, zero, :-1], 0)
    assert (measured["printed"][:, zero, -1] > 0.9).all(), "with a large bias, as printed, nothing is nearly all"
    np.testing.assert_allclose(measured["r2"][:, mean], 0, atol=1e-5)
    np.testing.assert_allclose(measured["excess"][:, mean], 0)
    assert (measured["r2"][:, zero] < 0).all()
    # Inputs of other places tell nothing; the right ones do.
    assert np.abs(measured["r2"][:, shuffled]).max() < 0.1
    assert (measured["r2"][:, linear, -2, 0] > 0.2).all(), "the first token attends to itself alone"
    assert (measured["r2"][:, linear, -2] > measured["r2"][:, shuffled, -2]).all()
    # A bias that is added to both hides an error, as printed.
    assert (measured["printed"][:, mean, -1] > measured["printed"][:, mean, -2]).all()
    np.testing.assert_allclose(measured["r2"][:, :, -1], measured["r2"][:, :, -2])


def test_measures_are_what_they_say(judged):
    model, found, learned, held, scores = judged
    with torch.no_grad(), sites.recording(found) as kept:
        model(held.tokens)
    given, heads = kept.given[1], kept.heads[1]
    said = learned.layers[1]["linear"](sites.Seen(given, held.tokens))
    a, b, m = (found[1].project(x) for x in (heads, said, learned.means[1].expand_as(heads)))
    number = scores.names.index("linear")
    for which, part in ((0, slice(None)), (1, slice(4, None))):
        true, other, mean = a[:, part], b[:, part], m[:, part]
        expected = {
            "printed": (1 - (true - other).norm(dim=-1) / true.norm(dim=-1)).mean(),
            "r2": 1 - (true - other).square().sum() / (true - mean).square().sum(),
            "cosine": torch.cosine_similarity(true - mean, other - mean, dim=-1).mean(),
        }
        for name, value in expected.items():
            assert scores.measures()[name][1, number, -2, which] == pytest.approx(float(value), abs=1e-4), name


def test_a_constant_that_dominates_looks_like_redundancy_as_printed():
    """The paper's measure is high for a predictor that knows nothing but the mean."""
    torch.manual_seed(0)
    true = torch.randn(1, 4000, 16) + (19**0.5)  # 95 % of the energy is the same everywhere
    mean = torch.full((16,), 19**0.5)
    sums = measures._of(true, mean.expand_as(true), mean.expand_as(true)).sum((0, 1))
    assert float(sums[1] / sums[0]) == pytest.approx(0.78, abs=0.01)
    assert float(1 - sums[3] / sums[4]) == pytest.approx(0, abs=1e-6)


def test_documents_are_drawn_whole(judged):
    *_, scores = judged
    drawn = scores.drawn(20)
    assert len(drawn) == 20
    assert drawn[0]["r2"].shape == (3, 8, 6, 2)
    assert len({float(each["r2"][0, 5, -1, 0]) for each in drawn}) > 5
    all_of_one = measures.Judged(scores.sums, np.zeros(9, dtype=int), scores.names)
    for each in all_of_one.drawn(3):
        np.testing.assert_allclose(each["r2"], scores.measures()["r2"])


def test_a_linear_layer_is_predicted_without_error():
    """Heads that attend to themselves alone return a linear map of the input: all of it can be told."""
    model = make("Llama")
    found = sites.find(model)
    tokens = torch.arange(300).view(300, 1) % 50
    alone = Windows(tokens, torch.zeros(300, dtype=torch.long), ("d",))
    learned = probes.fit(model, found, alone, probes.ProbeConfig(batch=50, rank=0), "cpu")
    scores = measures.judge(model, found, learned, alone, batch=50, device="cpu")
    linear = scores.names.index("linear")
    assert (scores.measures()["r2"][:, linear, -2, 0] > 0.999).all()


def test_replacing_costs_what_it_costs(judged):
    model, found, learned, held, _ = judged
    tester = function.Tester(model, found, held, batch=4, device="cpu")
    intact = tester.loss()
    logits = model(held.tokens).logits[:, :-1]
    direct = torch.nn.functional.cross_entropy(logits.transpose(1, 2), held.tokens[:, 1:], reduction="none").mean(1)
    torch.testing.assert_close(intact, direct.double(), atol=1e-5, rtol=1e-5)
    alone = tester.one_by_one(learned.of("mean"))
    assert len(alone) == 3
    order = function.best_first(alone)
    assert sorted(order) == [0, 1, 2]
    assert alone[order[0]].mean() <= alone[order[-1]].mean()
    growing = tester.more_and_more(learned.of("mean"), order)
    torch.testing.assert_close(growing[0], alone[order[0]])
    torch.testing.assert_close(growing[2], tester.loss(learned.of("mean")))
    torch.testing.assert_close(tester.loss(), intact)


def test_the_share_of_the_loss_that_is_saved():
    assert function.recovered(3.0, 3.1, 4.0) == pytest.approx(0.9)
    assert function.recovered(3.0, 3.0, 4.0) == 1
    assert function.recovered(3.0, 3.0, 2.9) is None


def test_copying_needs_the_first_half():
    made = function.copying(50, 7, count=3, length=21)
    assert made.tokens.shape == (3, 21)
    assert (made.tokens[:, 0] == 7).all()
    assert torch.equal(made.tokens[:, 1:11], made.tokens[:, 11:])
    assert function.copying(50, None, count=3, length=20).tokens.shape == (3, 20)


def test_what_a_second_pass_would_add_is_not_needed():
    """One pass is exact: the same tokens in other batches give the same map."""
    model = make("Qwen2")
    found = sites.find(model)
    settings = [probes.ProbeConfig(batch=batch, rank=0) for batch in (5, 40)]
    first, second = (probes.fit(model, found, windows(40), config, "cpu") for config in settings)
    seen = sites.Seen(torch.randn(1, 24, 32), windows(1).tokens)
    for name in ("mean", "position", "token"):
        torch.testing.assert_close(first.layers[2][name](seen), second.layers[2][name](seen), atol=1e-5, rtol=1e-4)


def test_descent_comes_near_the_exact_map_with_enough_steps():
    model = make("Qwen2")
    found = sites.find(model)
    held = windows(20, seed=1)
    reached = []
    for steps in (1, 2000):
        config = probes.ProbeConfig(batch=20, rank=0, steps=steps, chunk=64, rate=3e-3)
        learned = probes.fit(model, found, windows(60), config, "cpu")
        scores = measures.judge(model, found, learned, held, batch=20, device="cpu")
        r2 = scores.measures()["r2"][:, :, -2, 0]
        reached.append((r2[:, scores.names.index("descent")], r2[:, scores.names.index("linear")]))
    (few, _), (many, exact) = reached
    assert (many > few).all()
    np.testing.assert_allclose(many, exact, atol=0.05)


def test_a_head_that_always_returns_the_same_has_no_share_to_be_told():
    from torchcram.pretrained import redundancy

    assert redundancy._mean(np.array([0.5, np.nan, -np.inf])) == 0.5
    assert redundancy._mean(np.array(np.nan)) is None
    shares = redundancy._shares(np.array([[0.9, np.nan], [0.6, 0.1]]))
    assert shares == pytest.approx({"high": 1 / 3, "middle": 1 / 3, "low": 1 / 3})


def test_what_saying_nothing_gives_is_no_excess():
    torch.manual_seed(0)
    sums = np.zeros((1, 1, 2, 1, 1, 5))
    sums[..., 0] = 10
    sums[0, 0, 0, 0, 0, 1], sums[0, 0, 1, 0, 0, 1] = -5, 2  # the mean's, and another's
    judged = measures.Judged(sums, np.zeros(1, dtype=int), ("mean", "linear"))
    assert judged.measures()["excess"].ravel().tolist() == pytest.approx([-0.5, 0.2])
