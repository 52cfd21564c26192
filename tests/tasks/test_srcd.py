"""SRCD: its statistics against closed forms, its structure, its metrics."""

import doctest
import math

import pytest
import torch

from torchcram.tasks import Srcd, SrcdConfig, srcd
from torchcram.tasks.srcd import DYNAMICS, NOVEL, OVERRIDDEN, RECURRING, STORE, VARIANTS

SMALL = {"length": 256, "novel_keys": 512, "values": 16}


def batch(task: Srcd, rows: int = 64, seed: int = 0, step: int = 0):
    return task.batch(seed=seed, step=step, rows=range(rows))


def test_the_worked_example_is_true():
    assert doctest.testmod(srcd).failed == 0


def test_rows_of_a_batch_can_be_made_apart():
    task = Srcd(SrcdConfig(**SMALL))
    whole, part = batch(task), task.batch(seed=0, step=0, rows=range(10, 14))
    for name, value in whole.inputs.items():
        assert torch.equal(value[10:14], part.inputs[name]), name
    assert torch.equal(whole.dt[10:14], part.dt)
    assert torch.equal(whole.targets["dynamics"][10:14], part.targets["dynamics"])
    other = task.batch(seed=0, step=1, rows=range(10, 14))
    assert not torch.equal(other.inputs["key"], part.inputs["key"])


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "long"])
def test_shares_of_queries_and_of_recurring_ones(variant):
    task = Srcd.variant(variant)
    kind = batch(task).kind
    queries = (kind >= RECURRING).double().mean()
    assert float(queries) == pytest.approx(task.static_bound)
    n = int((kind >= RECURRING).sum())
    share = float(((kind == RECURRING) | (kind == OVERRIDDEN)).sum()) / n
    wanted = task.config.recurring
    assert share == pytest.approx(wanted, abs=5 * math.sqrt(wanted * (1 - wanted) / n) + 1e-12)
    unanswerable = float(((kind == NOVEL) | (kind == OVERRIDDEN)).double().mean())
    assert unanswerable == pytest.approx(task.optimum, rel=0.1 if task.config.drift == 1 else 0.2)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "long"])
def test_every_query_comes_after_its_store_and_asks_for_its_value(variant):
    examples = batch(Srcd.variant(variant, **SMALL), rows=16)
    keys, values, targets = examples.inputs["key"], examples.inputs["value"], examples.targets["value"]
    for row in range(16):
        held: dict[int, int] = {}
        waiting = None
        for t in range(256):
            key, value, target = int(keys[row, t]), int(values[row, t]), int(targets[row, t])
            if key and value:
                held[key] = value - 1
            elif key and target >= 0:
                assert held[key] == target
                assert examples.kind[row, t] >= RECURRING
            elif key:
                assert waiting is None, "a key waits for its value, and another came between"
                waiting = key
            elif value:
                held[waiting], waiting = value - 1, None
            else:
                assert examples.kind[row, t] == (DYNAMICS)
                assert target == -100


def test_two_tokens_are_close_but_apart():
    examples = batch(Srcd.variant("two-token"), rows=8)
    stores = examples.kind == STORE
    told = stores & (examples.inputs["value"] > 0)
    named = stores & (examples.inputs["key"] > 0)
    assert not (told & named).any()
    for row in range(8):
        gaps = told[row].nonzero().squeeze(1) - named[row].nonzero().squeeze(1)
        assert gaps.min() >= 1
        assert gaps.max() <= 3
        assert gaps.unique().numel() == 3


def test_recurring_bindings_never_change_and_novel_keys_are_new():
    task = Srcd(SrcdConfig(**SMALL))
    table: dict[int, int] = {}
    novel: set[int] = set()
    for step in range(20):
        examples = batch(task, rows=16, step=step)
        keys, targets = examples.inputs["key"], examples.targets["value"]
        for row, t in (examples.kind == RECURRING).nonzero().tolist():
            key, value = int(keys[row, t]), int(targets[row, t])
            assert table.setdefault(key, value) == value
        for row in range(16):
            asked = keys[row][examples.kind[row] == NOVEL].tolist()
            assert len(asked) == len(set(asked))
            novel.update(asked)
    assert len(table) == 100
    assert not novel & set(table)
    ids = torch.tensor(sorted(table), dtype=torch.float64)
    assert float(ids.mean()) == pytest.approx(306, abs=5 * 612 / math.sqrt(12 * 100)), "scattered over all ids"


def test_another_table_binds_otherwise():
    one, other = (Srcd(SrcdConfig(**SMALL, table=t))._table(torch.device("cpu")) for t in (0, 1))
    assert not torch.equal(one.keys, other.keys)
    assert not torch.equal(one.values, other.values)


def test_gaps_follow_the_clipped_lomax_law():
    dt = batch(Srcd()).dt.double().flatten()
    assert dt.min() == pytest.approx(0.1)
    assert dt.max() <= 1000
    n = dt.numel()
    for level in (0.1, 0.5, 2.0, 20.0):
        below = float((dt <= level + 1e-6).double().mean())
        expected = 1 - (1 + level) ** -1.5
        assert below == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / n))


def test_dynamics_follow_the_recursion_and_are_stationary():
    task = Srcd()
    examples = batch(task, rows=256)
    before, after = examples.inputs["channels"].squeeze(-1).double(), examples.targets["dynamics"].squeeze(-1).double()
    assert torch.equal(before[:, 1:], after[:, :-1])
    noise = after - 0.95 * before - 0.5 * torch.sin(examples.dt.double())
    assert float(noise.var()) == pytest.approx(task.floor, rel=5 * math.sqrt(2 / noise.numel()))
    assert abs(float(noise.mean())) < 5 * 0.1 / math.sqrt(noise.numel())
    mean, deviation = task._stationary
    for column in (0, 1024, -1):
        assert float(before[:, column].mean()) == pytest.approx(mean, abs=5 * deviation / 16)
        assert float(before[:, column].std()) == pytest.approx(deviation, rel=5 / math.sqrt(2 * 256))


def test_zipf_patterns_fall_off_by_rank():
    examples = batch(Srcd.variant("zipf"), rows=256)
    pattern = examples.pattern[examples.kind == RECURRING]
    counts = pattern.bincount(minlength=100).double()
    expected = torch.arange(1, 101, dtype=torch.float64) ** -1.0
    expected = expected / expected.sum() * counts.sum()
    assert ((counts - expected).abs() < 5 * expected.sqrt() + 1).all()


def perfect(examples):
    size = int(examples.targets["value"].max()) + 1
    value = torch.nn.functional.one_hot(examples.targets["value"].clamp_min(0), max(size, 16)).float() * 50
    return {"value": value, "dynamics": examples.targets["dynamics"].clone()}


def test_metrics_are_split_into_recurring_and_novel():
    task = Srcd(SrcdConfig(**SMALL))
    examples = batch(task)
    predictions = perfect(examples)
    predictions["value"][examples.kind == NOVEL] *= -1
    predictions["dynamics"][examples.kind == DYNAMICS] += 0.2
    predictions["dynamics"][examples.kind != DYNAMICS] += 9.0
    counts = {key: float(value) for key, value in task.counts(predictions, examples).items()}
    metrics = task.metrics(counts)
    assert metrics["accuracy_recurring"] == 1
    assert metrics["accuracy_novel"] == 0
    assert metrics["accuracy"] == pytest.approx(float((examples.kind == RECURRING).sum()) / (64 * 13))
    assert metrics["dynamics_mse"] == pytest.approx(0.04, rel=1e-4)
    assert metrics["dynamics_floor"] == pytest.approx(0.01)
    assert metrics["opt"] == pytest.approx(float((examples.kind == NOVEL).double().mean()))
    assert metrics["static_bound"] == pytest.approx(13 / 256)


def test_losses_are_in_nats_a_scored_position():
    task = Srcd(SrcdConfig(**SMALL))
    examples = batch(task)
    predictions = {"value": torch.zeros(64, 256, 16), "dynamics": examples.targets["dynamics"] + 0.1}
    losses = task.losses(predictions, examples)
    assert losses["value"].item() == pytest.approx(math.log(16))
    assert losses["dynamics"].item() == pytest.approx(0.5, rel=1e-4), "an error as large as the noise costs half a nat"
    assert {k: int(v) for k, v in task.scored(examples).items()} == {
        "value": 64 * 13,
        "dynamics": int((examples.kind == DYNAMICS).sum()),
    }


def test_no_novel_queries_give_no_novel_accuracy():
    task = Srcd(SrcdConfig(**SMALL, recurring=1.0))
    examples = batch(task)
    counts = {key: float(value) for key, value in task.counts(perfect(examples), examples).items()}
    assert task.metrics(counts)["accuracy_novel"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 4}, "task.length = 4"),
        ({"queries": 0.6}, "task.queries = 0.6"),
        ({"recurring": 1.5}, "task.recurring = 1.5"),
        ({"novel_keys": 50}, "task.novel_keys = 50 is not possible; allowed: at least 77"),
        ({"gap": 10}, "task.gap = 10"),
        ({"lenght": 4}, "no field 'lenght'"),
    ],
    ids=str,
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Srcd.variant("srcd", **settings)


def _answers(task: Srcd, rows: int):
    """Each query of a recurring key: its kind, the stores before it as (position, value), the answer, the usual one."""
    examples = batch(task, rows=rows)
    table = task._table(torch.device("cpu"))
    usual = dict(zip(table.keys.tolist(), table.values.tolist(), strict=True))
    keys, values, targets = examples.inputs["key"], examples.inputs["value"], examples.targets["value"]
    for row, t in ((examples.kind == RECURRING) | (examples.kind == OVERRIDDEN)).nonzero().tolist():
        key = int(keys[row, t])
        before = ((keys[row, :t] == key) & (values[row, :t] > 0)).nonzero().flatten().tolist()
        stores = [(s, int(values[row, s]) - 1) for s in before]
        yield int(examples.kind[row, t]), stores, int(targets[row, t]), usual[key]


@pytest.mark.parametrize("rebound", [1, 2])
def test_the_context_overrides_the_table(rebound):
    task = Srcd(SrcdConfig(**SMALL, overridden=0.5, rebound=rebound))
    found = list(_answers(task, 64))
    overridden = [entry for entry in found if entry[0] == OVERRIDDEN]
    assert len(overridden) / len(found) == pytest.approx(0.5, abs=0.1)
    for kind, stores, answer, usual in found:
        assert answer == stores[-1][1]
        assert (answer != usual) == (kind == OVERRIDDEN)
        values = {value for _, value in stores}
        assert len(values) == (rebound if kind == OVERRIDDEN else 1)
        assert (usual in values) == (kind == RECURRING)


def test_after_a_drift_stores_follow_another_table():
    task = Srcd(SrcdConfig(**SMALL, drift=0.25))
    kinds = set()
    for kind, stores, answer, usual in _answers(task, 64):
        drifted = stores[-1][0] >= 64
        assert (kind == OVERRIDDEN) == drifted == (answer != usual)
        kinds.add(kind)
    assert kinds == {RECURRING, OVERRIDDEN}


def test_another_stream_has_another_table():
    here, there = (Srcd.variant(name, **SMALL)._table(torch.device("cpu")) for name in ("srcd", "stream"))
    assert set(here.keys.tolist()) != set(there.keys.tolist())


def test_accuracy_of_overridden_queries_is_reported_where_there_are_any():
    task = Srcd.variant("override", **SMALL)
    examples = batch(task, rows=32)
    right = torch.nn.functional.one_hot(examples.targets["value"].clamp_min(0), 16).float()
    predictions = {"value": right, "dynamics": examples.targets["dynamics"]}
    metrics = task.metrics({k: float(v) for k, v in task.counts(predictions, examples).items()})
    assert metrics["accuracy_overridden"] == metrics["accuracy"] == 1
    assert "overridden" in task.kinds
    plain = Srcd.variant("srcd", **SMALL)
    assert "accuracy_overridden" not in plain.metrics(dict.fromkeys(task.counts(predictions, examples), 1.0))


def test_more_bindings_than_novel_keys_still_get_keys_of_their_own():
    task = Srcd(SrcdConfig(length=2048, novel_keys=80))
    assert task.config.bindings > 80
    examples = batch(task, rows=32)
    for row in range(32):
        asked = examples.inputs["key"][row][examples.kind[row] == NOVEL].tolist()
        assert len(asked) == len(set(asked)) > 10


def test_unknown_variant():
    with pytest.raises(ValueError, match="variant = 'short' is not possible; allowed: srcd, novel"):
        Srcd.variant("short")


@pytest.mark.gpu
def test_the_same_on_a_gpu():
    task = Srcd()
    here, there = batch(task, rows=8), task.batch(seed=0, step=0, rows=range(8), device="cuda")
    for name, value in here.inputs.items():
        torch.testing.assert_close(there.inputs[name].cpu(), value, rtol=0, atol=0)
    torch.testing.assert_close(there.dt.cpu(), here.dt, rtol=0, atol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_makes_a_batch(variant):
    task = Srcd.variant(variant)
    examples = batch(task, rows=1)
    assert examples.kind.shape == (1, task.length)
