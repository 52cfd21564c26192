"""Everything that is found out of a model: what learns from what, what is compared with what, and how sure it is."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.pretrained.test_sites import make
from torchcram.config import CramConfig
from torchcram.models import build
from torchcram.pretrained import function, measures, probes, redundancy, sites
from torchcram.pretrained.load import Pretrained, load
from torchcram.pretrained.probes import ProbeConfig
from torchcram.pretrained.redundancy import RedundancyConfig
from torchcram.pretrained.text import Windows
from torchcram.report import redundancy as report

SHARED = Path(__file__).parents[2].parent / "shared"
TEXT = "held.txt"
PROBE = ProbeConfig(batch=7, rank=8, chunk=64, seed=3)
CONFIG = RedundancyConfig(tested_tokens=10**6, control_tokens=10**6, draws=60, probe=PROBE)


def lively(family="Llama"):
    """A model whose attention matters to what it says."""
    model = make(family)
    for site in sites.find(model):
        site.outward.weight.mul_(20)
    model.get_output_embeddings().weight.data = 30 * model.get_output_embeddings().weight.data
    return Pretrained("lively", model, SimpleNamespace(first=None), "")


@torch.no_grad()
def said_by(model, count, *, length=20, low=0, high=50, seed=0):
    """What a model says itself, three windows a document: then to change the model costs something."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(low, high, (count, 1), generator=generator)
    while tokens.shape[1] < length:
        chances = model(tokens).logits[:, -1, low:high].softmax(-1)
        tokens = torch.cat([tokens, low + torch.multinomial(chances, 1, generator=generator)], dim=1)
    return Windows(tokens, torch.arange(count) // 3)


def found(rows, **wanted):
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


@pytest.fixture(scope="module")
def done():
    loaded = lively()
    train, held = said_by(loaded.model, 60), said_by(loaded.model, 75, seed=1)
    return loaded, train, held, list(redundancy.run(loaded, train, {TEXT: held}, CONFIG))


def judged_directly(model, train, held, config):
    at = sites.find(model)
    learned = probes.fit(model, at, train, config, "cpu")
    return at, learned, measures.judge(model, at, learned, held, batch=5, device="cpu")


def test_nothing_is_learned_from_what_is_judged(done):
    loaded, _, _, _ = done
    train = said_by(loaded.model, 30, high=25)
    held = said_by(loaded.model, 30, low=25, seed=1)
    rows = redundancy.run(
        loaded, train, {TEXT: held}, RedundancyConfig(control_tokens=0, tested_tokens=60, probe=PROBE)
    )
    layers = [row for row in rows if row["what"] == "layer"]
    for row in found(layers, predictor="token"):
        # Of tokens that were never seen nothing is known but the mean of those that were: no variance of these.
        assert row["r2"] < -0.01
    for row in found(layers, predictor="mean"):
        assert row["r2"] == pytest.approx(0, abs=1e-4), "its own"
    assert all(abs(row["r2"]) > 0.01 for row in found(layers, predictor="linear"))


def test_the_control_has_random_weights(done):
    loaded, train, held, rows = done
    torch.manual_seed(PROBE.seed)
    fresh = loaded.fresh()
    for (name, weight), (_, other) in zip(fresh.named_parameters(), loaded.model.named_parameters(), strict=True):
        assert torch.equal(weight, other) == ("norm" in name), name
    *_, judged = judged_directly(fresh, train, held, ProbeConfig(batch=7, rank=0, seed=3))
    direct = judged.measures()["r2"][:, judged.names.index("linear"), -2, 0]
    wanted = {"what": "layer", "predictor": "linear", "positions": "all", "part": "without bias"}
    random, pretrained = ([row["r2"] for row in found(rows, **wanted, weights=key)] for key in ("random", "pretrained"))
    assert random == pytest.approx(direct.tolist(), abs=1e-4)
    assert all(abs(a - b) > 0.01 for a, b in zip(random, pretrained, strict=True))


def test_best_layers_are_chosen_on_some_documents_and_measured_on_others(done):
    loaded, train, held, rows = done
    at, learned, _ = judged_directly(loaded.model, train, held, PROBE)
    tester = function.Tester(loaded.model, at, held, batch=25, device="cpu")
    intact, alone = tester.loss(), tester.one_by_one(learned.of("linear"))
    chosen = function.halves(held.owner)
    assert not set(held.owner[chosen].tolist()) & set(held.owner[~chosen].tolist())
    costs = [float(losses[chosen].mean()) for losses in alone]
    order = sorted(range(3), key=costs.__getitem__)
    assert order != [0, 1, 2], "or an order that is not minded would not be seen"
    assert [row["layer"] for row in found(rows, what="order")] == order
    growing = found(rows, what="layers", order="best first", predictor="linear")
    assert [row["count"] for row in growing] == [1, 2, 3]
    for row in growing:
        replaced = {layer: learned.of("linear")[layer] for layer in order[: row["count"]]}
        assert row["loss"] == pytest.approx(float(tester.loss(replaced)[~chosen].mean()), abs=1e-3)
        assert row["intact"] == pytest.approx(float(intact[~chosen].mean()), abs=1e-5)
    straight = found(rows, what="layers", order="first to last", predictor="linear")
    assert straight[0]["loss"] == pytest.approx(float(alone[0].mean()), abs=1e-3)
    assert straight[-1]["intact"] == pytest.approx(float(intact.mean()), abs=1e-5)


def of(owner):
    """Windows of these documents, all there are of them."""
    owner = torch.as_tensor(owner)
    return Windows(owner[:, None], owner)


class Given(function.Tester):
    """Losses as they are given: what replacing a layer costs in each window, [layers, W]."""

    def __init__(self, costs, owner):
        self.costs, self.windows, self.sites = costs, of(owner), list(costs)

    def on(self, which):
        return Given(self.costs[:, which], self.windows.owner[which])

    def loss(self, predictors=None, begin=0):
        return 3 + sum((factor * self.costs[layer] for layer, factor in (predictors or {}).items()), self.costs[0] * 0)


def test_the_order_is_that_of_the_other_half():
    owner = torch.arange(80) // 2
    chosen = function.halves(owner)
    noise = torch.randn(40, generator=torch.Generator().manual_seed(0)).double().repeat_interleave(2)
    base = torch.tensor([0.2, 0.3, 0.1]).double()[:, None] + 0.01 * noise
    costs = torch.where(chosen, base, 10 * base.flip(0))  # of all windows, the first layer costs most
    learned = SimpleNamespace(of=lambda name: dict.fromkeys(range(3), {"mean": 2.0, "linear": 1.0}[name]))
    rows = list(redundancy._losses(Given(costs, owner), learned, ("mean", "linear"), 100, lambda text: None))
    assert [row["layer"] for row in found(rows, what="order")] == [2, 0, 1]
    drawn = measures.draws(of(owner)[~chosen], 100)
    for count in (1, 2, 3):
        expected = costs[[2, 0, 1][:count]].sum(0)[~chosen]
        (row,) = found(rows, what="layers", order="best first", predictor="linear", count=count)
        assert row["cost"] == pytest.approx(float(expected.mean()))
        between = measures.between(drawn @ expected.numpy() / drawn.sum(1))
        assert (row["cost_low"], row["cost_high"]) == pytest.approx(between)
        assert row["recovered"] == pytest.approx(0.5)


def test_measures_have_intervals_over_documents(done):
    loaded, train, held, rows = done
    *_, judged = judged_directly(loaded.model, train, held, PROBE)
    drawn = judged.measures(measures.draws(held, CONFIG.draws))
    wanted = {"what": "group", "group": "overall", "weights": "pretrained", "positions": "all", "predictor": "linear"}
    (row,) = found(rows, **wanted)
    for name in ("printed", "excess", "r2", "cosine"):
        low, high = measures.between(drawn[name][:, :, judged.names.index("linear"), -2, 0].mean(1))
        assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx((low, high), abs=1e-4)
        assert low < row[name] < high


def test_costs_and_shares_are_of_the_same_layers(done):
    loaded, train, held, rows = done
    at, learned, judged = judged_directly(loaded.model, train, held, PROBE)
    learned = learned.about([each[0] for each in judged.centres])
    tester = function.Tester(loaded.model, at, held, batch=25, device="cpu")
    intact = tester.loss()
    drawn = measures.draws(held, CONFIG.draws)
    for name in ("mean", "linear"):
        for layer, losses in enumerate(tester.one_by_one(learned.of(name))):
            (row,) = found(rows, what="one layer", predictor=name, layer=layer)
            assert row["cost"] == pytest.approx(float((losses - intact).mean()), abs=1e-3)
            low, high = measures.between(drawn @ (losses - intact).numpy() / drawn.sum(1))
            assert (row["cost_low"], row["cost_high"]) == pytest.approx((low, high), abs=1e-3)
            assert row["cost_low"] < row["cost"] < row["cost_high"]
            (third,) = found(rows, what="one of a group", predictor=name, group=("early", "middle", "late")[layer])
            assert third["cost"] == pytest.approx(row["cost"], abs=1e-9), "of three layers each is a third"
    (all_of_them,) = found(rows, what="one of a group", predictor="linear", group="overall")
    costs = [row["cost"] for row in found(rows, what="one layer", predictor="linear")]
    assert all_of_them["cost"] == pytest.approx(np.mean(costs))
    told = [row for row in rows if row.get("recovered") is not None]
    assert {(row["what"], row["predictor"]) for row in told} >= {
        (what, name) for what in ("one layer", "layers") for name in ("mean", "linear", "adapter")
    }
    for row in told:
        same = {key: row.get(key) for key in ("what", "layer", "group", "order", "count")}
        (mean,) = found(rows, predictor="mean", **same)
        assert mean["cost_low"] > 0
        assert row["recovered"] == pytest.approx(1 - (row["loss"] - row["intact"]) / (mean["loss"] - mean["intact"]))
        assert row["recovered_low"] <= row["recovered"] <= row["recovered_high"]
        assert row["predictor"] != "mean" or row["recovered"] == 0


def test_a_share_is_told_only_of_a_cost_that_is_clear():
    owner = np.arange(40) // 2
    drawn = measures.draws(of(owner), 100)
    generator = torch.Generator().manual_seed(0)
    intact = torch.rand(40, generator=generator, dtype=torch.float64)
    noise = torch.randn(40, generator=generator, dtype=torch.float64)
    clear = redundancy._worth(intact + 0.1, intact, intact + 1 + 0.1 * noise, drawn)
    assert clear["recovered"] == pytest.approx(0.9, abs=0.02)
    assert clear["recovered_low"] < clear["recovered"] < clear["recovered_high"]
    unclear = intact + noise - noise.mean() + 0.1  # costs 0.1, give or take 0.16
    assert redundancy._worth(intact, intact, unclear, drawn)["recovered"] is None
    assert redundancy._worth(intact, intact, unclear, drawn)["cost"] == 0
    assert redundancy._worth(intact, intact, intact - 1, drawn)["recovered"] is None
    few = redundancy._worth(intact, intact, intact + 1, None)
    assert few["recovered"] is few["cost_low"] is None, "few documents do not make it clear"


def test_intervals_are_of_documents():
    """Windows of a document that are all alike say no more than one of them."""
    alike = torch.repeat_interleave(torch.randn(12, generator=torch.Generator().manual_seed(0)).double(), 50)
    zero, owner = torch.zeros(600).double(), np.arange(600) // 50
    by_document, by_window = (
        redundancy._worth(alike, zero, zero, measures.draws(of(whose), 400)) for whose in (owner, np.arange(600))
    )
    widths = [each["cost_high"] - each["cost_low"] for each in (by_document, by_window)]
    assert widths[0] > 5 * widths[1]


def test_only_what_comes_again_counts_as_copied(done):
    """A model that says what followed the same token before knows the second time by heart, the first not at all."""
    _, train, held, _ = done
    loaded = lively()
    inner = loaded.model.forward

    def forward(tokens, **given):
        inner(tokens, **given)
        same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
        before = same.float().argmax(2)
        follows = torch.nn.functional.one_hot(tokens.gather(1, before + 1), 50).float()
        return SimpleNamespace(logits=40 * follows * same.any(2, keepdim=True))

    loaded.model.forward = forward
    held = Windows(held.tokens % 30, held.owner)
    rows = list(redundancy.run(loaded, train, {TEXT: held}, RedundancyConfig(control_tokens=0, draws=50, probe=PROBE)))
    copies = found(rows, what="copying")
    (intact,) = found(copies, replaced="nothing")
    assert intact["loss"] == pytest.approx(0, abs=1e-6)
    assert intact["chance"] == pytest.approx(np.log(30))
    assert len(copies) == 1 + 3 * (3 + 1)


def test_copies_have_intervals_over_sequences(done):
    *_, rows = done
    for row in found(rows, what="copying"):
        assert row["loss_low"] < row["loss"] < row["loss_high"]


def test_copying_is_told_of_each_layer_replaced_alone(done):
    loaded, train, held, rows = done
    at, learned, _ = judged_directly(loaded.model, train, held, PROBE)
    made = function.copying(held.tokens, None, count=32, length=64)
    tester = function.Tester(loaded.model, at, made.windows, batch=7, device="cpu")
    predictors = learned.of("linear")
    expected = {f"layer {layer}": {layer: predictors[layer]} for layer in range(3)} | {"all layers": predictors}
    copies = found(rows, what="copying", predictor="linear")
    assert [row["replaced"] for row in copies] == list(expected)
    for row in copies:
        assert row["loss"] == pytest.approx(float(tester.loss(expected[row["replaced"]], made.begin).mean()), abs=1e-3)
    assert len({round(row["loss"], 2) for row in copies}) == 4, "or one layer could be taken for another"
    single = report.single(rows, "linear")
    assert [(layer, row["replaced"]) for layer, row in single] == [(1, "layer 0"), (2, "layer 1"), (3, "layer 2")]


def test_no_copying_is_claimed_of_what_carries_a_state():
    torch.manual_seed(0)
    own = sites.Own(build(CramConfig.preset("tiny", vocabulary=50)).eval()).requires_grad_(False)
    loaded = Pretrained("own", own, SimpleNamespace(first=None), "")
    config = RedundancyConfig(control_tokens=0, draws=2, probe=ProbeConfig(rank=0))
    some = Windows(torch.arange(12 * 16).view(12, 16) % 50, torch.arange(12))
    rows = [
        {"what": "about", "model": "own", "note": "", "text": TEXT},
        *redundancy.run(loaded, some, {TEXT: some}, config),
    ]
    assert not found(rows, what="copying")
    assert "this model has a state besides its attention" in report._copies(rows)


def test_all_is_averaged_over_all_windows(done):
    loaded, _, held, rows = done
    with torch.no_grad():
        logits = loaded.model(held.tokens).logits[:, :-1]
    direct = torch.nn.functional.cross_entropy(logits.transpose(1, 2), held.tokens[:, 1:])
    (row,) = found(rows, what="loss")
    assert row["loss"] == pytest.approx(float(direct), abs=1e-4)
    assert row["perplexity"] == pytest.approx(np.exp(row["loss"]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_near_to_the_same(done, dtype):
    _, train, held, rows = done
    loaded = lively()
    loaded.model.to(dtype)
    config = RedundancyConfig(control_tokens=400, draws=2, probe=ProbeConfig(rank=0))
    half = list(redundancy.run(loaded, train, {TEXT: held}, config))
    wanted = {"what": "group", "group": "overall", "weights": "pretrained", "positions": "all", "predictor": "linear"}
    (exact,), (near,) = found(rows, **wanted), found(half, **wanted)
    assert near["r2"] == pytest.approx(exact["r2"], abs=0.05)
    assert near["printed"] == pytest.approx(exact["printed"], abs=0.05)
    losses = [found(each, what="loss")[0]["loss"] for each in (rows, half)]
    assert losses[0] == pytest.approx(losses[1], abs=0.1)


@pytest.mark.gpu
def test_a_gpu_finds_the_same(done):
    _, train, held, rows = done
    loaded = lively()
    loaded.model.to("cuda")
    there = list(redundancy.run(loaded, train, {TEXT: held}, CONFIG, device="cuda"))
    assert len(there) == len(rows)
    for a, b in zip(rows, there, strict=True):
        if a["what"] in ("layer", "loss", "one layer") and a.get("weights") != "random":
            for key in ("r2", "printed", "loss", "cost"):
                if a.get("predictor") not in ("shuffled", "adapter") and a.get(key) is not None:
                    assert b[key] == pytest.approx(a[key], abs=0.01), (a, key)


@pytest.mark.skipif(not (SHARED / "models" / "stories260K.bin").exists(), reason="needs the model files beside it")
def test_a_real_small_model_is_probed_whole():
    loaded = load(SHARED / "models" / "stories260K.bin")
    torch.manual_seed(0)
    stories = loaded.model.generate(torch.ones(160, 1, dtype=torch.long), max_new_tokens=127, do_sample=True)
    train, held = (Windows(some, torch.arange(len(some))) for some in (stories[:120], stories[120:]))
    config = RedundancyConfig(control_tokens=5000, draws=100)
    rows = list(redundancy.run(loaded, train, {TEXT: held}, config))
    wanted = {"what": "group", "group": "overall", "weights": "pretrained", "positions": "later"}
    r2 = {row["predictor"]: row["r2"] for row in found(rows, **wanted)}
    assert set(r2) == set(probes.LADDER) - {"descent"}
    assert r2["zero"] < 0
    assert abs(r2["shuffled"]) < 0.02
    assert r2["token"] < r2["linear"]
    assert 0.2 < r2["linear"] < 0.95
    (loss,) = found(rows, what="loss")
    for layer in range(5):
        costs = {row["predictor"]: row for row in found(rows, what="one layer", layer=layer)}
        assert costs["mean"]["cost_low"] > 0, "attention is worth something in every layer"
        assert 0 < costs["linear"]["recovered"] < 1
    whole = found(rows, what="layers", count=5, predictor="mean", order="first to last")
    assert whole[0]["loss"] > loss["loss"] + 0.5
    assert found(rows, what="copying")
