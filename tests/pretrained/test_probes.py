"""Predictors of what attention returns: the ladder, measures as theory says, and what replacing costs."""

import numpy as np
import pytest
import torch

from tests.pretrained.test_sites import make
from torchcram.pretrained import function, measures, probes, sites
from torchcram.pretrained.ridge import Moments
from torchcram.pretrained.text import Windows


def windows(count, length=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(50, (count, length), generator=generator)
    return Windows(tokens, torch.arange(count) // 3)


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
    np.testing.assert_allclose(measured["r2"][:, mean], 0, atol=1e-4)
    np.testing.assert_allclose(measured["excess"][:, mean], 0)
    assert (measured["r2"][:, zero] < 0).all()
    # Inputs of other places tell nothing; the right ones do.
    assert measured["r2"][:, shuffled].max() < 0.1
    assert (measured["r2"][:, linear, -2, 0] > 0.15).all(), "the first token attends to itself alone"
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
    a, b = (found[1].project(x) for x in (heads, said))
    number = scores.names.index("linear")
    for which, part in ((0, slice(None)), (1, slice(4, None))):
        true, other = a[:, part], b[:, part]
        mean = true.mean((0, 1))
        expected = {
            "printed": (1 - (true - other).norm(dim=-1) / true.norm(dim=-1)).mean(),
            "r2": 1 - (true - other).square().sum() / (true - mean).square().sum(),
            "cosine": torch.cosine_similarity(true - mean, other - mean, dim=-1).mean(),
        }
        for name, value in expected.items():
            assert scores.measures()[name][1, number, -2, which] == pytest.approx(float(value), abs=1e-4), name


def test_what_sets_two_texts_apart_is_not_told(judged):
    """Of a text that is unlike the one learned from, saying nothing tells no variance, and the mean is its own."""
    model, found, learned, *_ = judged
    other = Windows(windows(9, seed=2).tokens % 5, torch.arange(9))
    scores = measures.judge(model, found, learned, other, batch=4, device="cpu")
    r2, cosine = (scores.measures()[name] for name in ("r2", "cosine"))
    assert (r2[:, scores.names.index("zero")] <= 1e-5).all()
    np.testing.assert_allclose(r2[:, scores.names.index("mean")], 0, atol=1e-5)
    np.testing.assert_array_equal(cosine[:, scores.names.index("mean")], 0)
    shifted = learned.about([each[0] for each in scores.centres])
    with torch.no_grad(), sites.recording(found) as kept:
        model(other.tokens)
    for layer, given, heads in kept.each():
        said = shifted.layers[layer]["mean"](sites.Seen(given, other.tokens))
        torch.testing.assert_close(said, heads.mean((0, 1)).expand_as(heads), atol=1e-5, rtol=1e-4)
        assert not torch.allclose(
            said, learned.layers[layer]["mean"](sites.Seen(given, other.tokens)), atol=1e-5, rtol=0
        )


def test_what_is_nothing_at_all_has_no_direction():
    true = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    count, _, cosine, *_ = measures._of(true, true, torch.full((2,), 0.1)).sum(0).tolist()
    assert count == 2
    assert cosine == pytest.approx(2)


def test_attention_that_is_the_same_everywhere_can_be_told_by_its_own_share():
    """As with random weights, whose scores hardly differ: a token is 1/t of what position t finds, all else is noise.

    One linear map for all positions tells H(N) / N of the variance then, H the harmonic number.
    """
    model = make("Llama")
    found = sites.find(model)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        attention.q_proj.weight.zero_()
    train, held = windows(800, length=12), windows(400, length=12, seed=1)
    learned = probes.fit(model, found, train, probes.ProbeConfig(batch=100, rank=0), "cpu")
    scores = measures.judge(model, found, learned, held, batch=100, device="cpu")
    r2 = scores.measures()["r2"][0, scores.names.index("linear"), -2, 0]
    assert r2 == pytest.approx(sum(1 / t for t in range(1, 13)) / 12, abs=0.02)


def test_a_constant_that_dominates_looks_like_redundancy_as_printed():
    """The paper's measure is high for a predictor that knows nothing but the mean."""
    torch.manual_seed(0)
    true = torch.randn(1, 4000, 16) + (19**0.5)  # 95 % of the energy is the same everywhere
    mean = torch.full((16,), 19**0.5)
    sums = measures._of(true, mean.expand_as(true), mean.expand_as(true)).sum((0, 1))
    assert float(sums[1] / sums[0]) == pytest.approx(0.78, abs=0.01)
    assert float(1 - sums[3] / sums[4]) == pytest.approx(0, abs=1e-6)


def of(owner):
    """Windows of these documents, all there are of them."""
    owner = torch.as_tensor(owner)
    return Windows(owner[:, None], owner)


def test_of_few_documents_passages_are_drawn():
    owner = np.repeat([3, 5, 9], [50, 30, 20])
    units = measures.units(of(owner))
    assert len(np.unique(units)) == 7 + 4 + 3
    for unit in np.unique(units):
        (at,) = np.nonzero(units == unit)
        assert len(set(owner[at])) == 1, "a passage is of one document"
        assert len(at) <= 8
        assert (np.diff(at) == 1).all(), "and its windows come after each other"
    assert len(np.unique(measures.units(of(np.zeros(4000))))) == 40
    many = np.arange(40) // 4
    np.testing.assert_array_equal(measures.units(of(many)), many)
    drawn = measures.draws(of(owner), 20)
    assert (drawn[:, :8] == drawn[:, :1]).all()


def test_passages_are_of_the_text_not_of_what_was_drawn_from_it():
    whole = of(np.repeat([0, 1, 2], [100, 100, 92]))
    some = whole.some(60)
    assert len(some) == 60
    same = dict(zip(map(tuple, _places(whole)), measures.units(whole), strict=True))
    units = measures.units(some)
    known = np.array([same[tuple(place)] for place in _places(some)])
    assert (np.equal.outer(units, units) == np.equal.outer(known, known)).all()
    assert measures.draws(some, 20) is not None
    again = some[torch.arange(60) % 2 == 0]
    assert {tuple(place) for place in _places(again)} <= {tuple(place) for place in _places(some)}


def _places(windows):
    return torch.stack([windows.owner, windows.place], dim=1).tolist()


def test_documents_are_drawn_whole(judged):
    *_, scores = judged
    owner = np.arange(40) // 4
    drawn = measures.draws(of(owner), 20)
    assert drawn.shape == (20, 40)
    assert (drawn.sum(1) == 40).all()
    assert (drawn.reshape(20, 10, 4) == drawn[:, ::4, None]).all()
    assert len({tuple(each) for each in drawn}) == 20
    assert measures.draws(of(owner[:36]), 20) is None, "nine are few"
    twice = scores.measures(np.stack([np.ones(9), np.eye(9)[2], 2 * np.eye(9)[2]]))
    assert twice["r2"].shape == (3, 3, 8, 6, 2)
    np.testing.assert_allclose(twice["r2"][0], scores.measures()["r2"])
    alone = measures.Judged(scores.sums[2:3], scores.windows[torch.arange(2, 3)], scores.names, []).measures()
    for name in alone:
        np.testing.assert_allclose(twice[name][1], alone[name], err_msg=name)
        np.testing.assert_allclose(twice[name][2], alone[name], err_msg=name)


def test_what_is_judged_is_projected_once(judged, monkeypatch):
    model, found, learned, held, _ = judged
    projected = []
    monkeypatch.setattr(sites.Site, "project", lambda site, heads: projected.append(heads) or heads @ site.weight)
    measures.judge(model, found, learned, held, batch=9, device="cpu")
    assert len(projected) == 3 * (7 + 3), "of each layer: each predictor but the mean, what is true, and two means"


def test_predictors_that_look_at_no_input_are_means(judged):
    model, found, learned, *_ = judged
    train = windows(60)
    with torch.no_grad(), sites.recording(found) as kept:
        model(train.tokens)
    every = torch.arange(50).view(5, 10)
    for layer, given, heads in kept.each():
        said = {name: predict(sites.Seen(given[:5, :10], every)) for name, predict in learned.layers[layer].items()}
        mean = heads.mean((0, 1))
        torch.testing.assert_close(said["mean"], mean.expand(5, 10, -1), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(said["position"], heads.mean(0)[:10].expand(5, 10, -1), atol=1e-5, rtol=1e-4)
        for token in range(50):
            those = heads[train.tokens == token]
            expected = (those.sum(0) + mean) / (len(those) + 1)
            torch.testing.assert_close(said["token"].flatten(0, 1)[token], expected, atol=1e-5, rtol=1e-4)
        assert said["token"].std() > 2 * said["mean"].std(0).max()


def test_only_tokens_that_were_seen_are_kept():
    model = make("Qwen2")
    found = sites.find(model)
    train = Windows(windows(30).tokens % 7 * 3, torch.arange(30))
    learned = probes.fit(model, found, train, probes.ProbeConfig(rank=0), "cpu")
    known = probes.Vocabulary(train.tokens, "cpu")
    assert known.known.tolist() == [0, 3, 6, 9, 12, 15, 18]
    assert known.counts.sum() == train.tokens.numel()
    assert known.places(torch.tensor([[0, 1, 18], [49, 3, 17]])).tolist() == [[0, 7, 6], [7, 1, 7]]
    kept = [cell.cell_contents for cell in learned.layers[1]["token"].__closure__]
    assert {tuple(each.shape) for each in kept if isinstance(each, torch.Tensor)} == {(8, 32)}
    seen = sites.Seen(torch.zeros(1, 3, 32), torch.tensor([[1, 49, 3]]))
    never, nor, once = learned.layers[1]["token"](seen)[0]
    torch.testing.assert_close(never, learned.layers[1]["mean"](seen)[0, 0])
    torch.testing.assert_close(nor, never)
    assert not torch.allclose(once, never)


def test_the_narrow_map_tells_what_it_can():
    model = make("Llama")
    found = sites.find(model)
    alone = Windows(torch.arange(3000).view(3000, 1) % 50, torch.zeros(3000, dtype=torch.long))
    config = probes.ProbeConfig(batch=500, rank=32, chunk=50, steps=1000, rate=5e-3)
    learned = probes.fit(model, found, alone, config, "cpu")
    scores = measures.judge(model, found, learned, alone, batch=500, device="cpu")
    r2 = scores.measures()["r2"][:, scores.names.index("adapter"), -2, 0]
    assert (r2 > 0.8).all(), r2
    torch.testing.assert_close(probes.Narrow(4, 2, 3)(torch.randn(5, 4)).std(0), torch.zeros(3))  # at first


def test_layers_that_learn_together_learn_what_each_would_alone():
    torch.manual_seed(0)
    seen = [(torch.randn(2, 20, 6), scale * torch.randn(2, 20, 4)) for scale in (1.0, 30.0)]
    maps = [probes.Narrow(6, 3, 4) for _ in seen]
    config = probes.ProbeConfig(chunk=16, rate=0.05)
    mixed = [torch.randperm(40) for _ in range(3)]

    def learned(layers):
        descent = probes._Descent("adapter", range(len(layers)), [maps[layer] for layer in layers], config)
        for order in mixed:
            descent.learn([seen[layer] for layer in layers], order, 9)
        return [descent.predictor(place)(sites.Seen(seen[layer][0], None)) for place, layer in enumerate(layers)]

    together = learned([0, 1])
    for layer, said in enumerate(together):
        torch.testing.assert_close(said, learned([layer])[0], atol=1e-4, rtol=1e-4)
        assert (said.flatten(0, 1).std(0) > 0).all(), "at first they say the same everywhere"


def test_layers_of_other_widths_learn_apart():
    seen = [(torch.randn(2, 5, 8), torch.randn(2, 5, width)) for width in (4, 6, 4)]
    made = probes._descents(seen, probes.ProbeConfig(steps=1))
    assert [(each.name, each.layers) for each in made] == [
        *(("adapter", [0, 2]), ("descent", [0, 2])),
        *(("adapter", [1]), ("descent", [1])),
    ]
    assert probes._descents(seen, probes.ProbeConfig(rank=0)) == []


def test_shuffled_inputs_need_their_products_alone():
    """Without a penalty, and with the right inputs' products, it is the linear map."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(50, size, generator=generator, dtype=torch.float64) for size in (4, 3))
    mixed = x[torch.randperm(50, generator=generator)]
    straight, other = Moments(4, 3), Moments(4, 3)
    straight.add(x, y)
    other.add(mixed, y)
    found = straight.crossed(mixed.T @ y).solve(0.1)
    torch.testing.assert_close(found, other.solve(0.1))
    assert not torch.allclose(found.weight, straight.solve(0.1).weight)


def test_a_linear_layer_is_predicted_without_error():
    """Heads that attend to themselves alone return a linear map of the input: all of it can be told."""
    model = make("Llama")
    found = sites.find(model)
    tokens = torch.arange(300).view(300, 1) % 50
    alone = Windows(tokens, torch.zeros(300, dtype=torch.long))
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
    growing = tester.more_and_more(learned.of("mean"), order, [1, 3])
    torch.testing.assert_close(growing[0], alone[order[0]])
    torch.testing.assert_close(growing[1], tester.loss(learned.of("mean")))
    which = torch.arange(9) % 2 == 0
    torch.testing.assert_close(tester.on(which).loss(), intact[which])
    torch.testing.assert_close(tester.loss(), intact)


def test_layers_are_counted_evenly():
    assert function.counts(5) == [1, 2, 3, 4, 5]
    assert function.counts(30) == list(range(2, 31, 2))
    assert function.counts(32)[-1] == 32
    assert len(function.counts(32)) == 15


def test_halves_part_documents():
    owner = torch.tensor([0] * 8 + [1] * 5 + [2] * 4 + [3] + [4])
    chosen = function.halves(owner)
    for document in range(5):
        assert len(set(chosen[owner == document].tolist())) == 1
    assert abs(int(chosen.sum()) - int((~chosen).sum())) <= 1
    assert function.halves(torch.zeros(6)).sum() == 3, "of a single document, windows"
    assert function.halves(torch.zeros(1)).all()


def test_copying_says_what_the_text_has_twice():
    text = torch.tensor([[7, 3, 5, 8, 3], [20, 21, 22, 23, 24]])
    found, begin, chance = function.copying(text, 7, count=30, length=12)
    assert found.tokens.shape == (30, 11)
    assert (found.tokens[:, 0] == 7).all()
    assert torch.equal(found.tokens[:, 1:begin], found.tokens[:, begin:])
    assert set(found.tokens[:, 1:].flatten().tolist()) == {3, 5, 8, 20, 21, 22, 23, 24}
    assert all(len(set(row[begin:])) == 5 for row in found.tokens.tolist())
    assert chance == pytest.approx(np.log(8))
    assert function.copying(text, None, count=3, length=100).windows.tokens.shape == (3, 18), "all there are"


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
    sums = np.zeros((1, 1, 2, 1, 1, 5))
    sums[..., 0] = 10
    sums[0, 0, 0, 0, 0, 1], sums[0, 0, 1, 0, 0, 1] = -5, 2  # the mean's, and another's
    judged = measures.Judged(sums, of([0]), ("mean", "linear"), [])
    assert judged.measures()["excess"].ravel().tolist() == pytest.approx([-0.5, 0.2])
