"""A sequence fed whole, in chunks or token by token: the same outputs, routing, state and counts."""

import dataclasses

import pytest
import torch

from tests.models.feeding import assert_close, assert_same_state, feed, predictions, random_sizes, routing, total
from tests.models.replay import Watch, replay

LENGTH = 100

CASES = {
    "bounded": {},
    "convolution": {"episodic.convolution": 3, "episodic.slots": 4},
    "some layers": {"episodic.layers": [0, 2], "episodic.slots": 16},
    "pointwise": {"working.carry": "none", "working.steps": 1},
    "exact quality": {"router.quality": "exact"},
    "exact quality, convolution, some layers": {
        "router.quality": "exact",
        "episodic.convolution": 3,
        "episodic.layers": [1, 2],
        "episodic.slots": 5,
    },
    "scalar features": {"router.features": "scalars", "episodic.recency": False, "working.time_unit": 10.0},
    "beyond the length of training": {"episodic.trained_length": 20},
    "without semantic memory": {"semantic.rank": 0},
    "without contradiction index": {"contradiction.rank": 0},
    "a small contradiction index": {"contradiction.entries": 3},
    "worth": {"router.rule": "worth"},
    "one slot": {"episodic.slots": 1},
    "unbounded": {"episodic.slots": None},
}


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_any_chunking_gives_the_same(case, lively, events):
    tokens, dt = events(2, LENGTH, seed=11)
    model, margin = _decided_model(lively, CASES[case], tokens, dt)
    with Watch(model) as watch:
        whole = model(tokens, dt=dt)
    for sizes in ([1] * LENGTH, random_sizes(LENGTH, seed=1), random_sizes(LENGTH, seed=2), [LENGTH - 1, 1]):
        print(f"chunks of {sizes}")  # noqa: T201
        with Watch(model) as pieces:
            outs = feed(model, tokens, sizes, dt=dt)
        assert margin > 20 * _noise(watch, pieces, model), "rounding may have decided something"
        assert torch.equal(routing(outs), whole.routing)
        assert_close(predictions(outs), whole.logits)
        assert_same_state(outs[-1].state, whole.state)
        assert total(outs) == whole.ledger()


def _decided_model(lively, changes, tokens, dt):
    """A model that uses all three actions, evicts more than it holds, and comes near a tie nowhere."""
    for seed in range(40):
        model = lively(changes, seed=seed)
        with Watch(model) as watch:
            shares = torch.bincount(model(tokens, dt=dt).routing.flatten().long(), minlength=3) / (3 * tokens.numel())
        runs = [
            replay(row, model.config.episodic.slots)
            for layer in model.config.episodic_layers
            for row in watch.priorities(layer).tolist()
        ]
        evicts = model.config.episodic.slots is None or min(run.evictions for run in runs) > model.config.episodic.slots
        margin = min(_router_margin(model, watch), 10 * watch.index_margin(), *(run.margin for run in runs))
        possible = shares if model.config.semantic.rank else shares[:2]
        if possible.min() > 0.03 and evicts and margin > 5e-4:
            return model, margin
    raise AssertionError("no seed gives such a model")


def _router_margin(model, watch):
    """The least lead of a chosen action over the next best."""
    logits = watch.logits()
    for layer in set(range(model.config.layers)) - set(model.config.episodic_layers):
        logits[layer, ..., 1] = -torch.inf
    if not model.config.semantic.rank:
        logits[..., 2] = -torch.inf
    if model.config.router.rule == "worth":
        logits[..., 1] = -torch.inf
    best, second = logits.topk(2).values.unbind(-1)
    return min(float((best - second).min()), watch.worth_margin())


def _noise(one, other, model):
    """The largest difference between two runs in anything that decides."""
    differences = [one.logits() - other.logits()]
    differences += [one.priorities(layer) - other.priorities(layer) for layer in model.config.episodic_layers]
    return max(float(difference.abs().max()) for difference in differences)


@torch.no_grad()
def test_buffer_holds_what_a_plain_replay_holds(lively, events):
    model = lively(seed=4)
    tokens, dt = events(2, LENGTH, seed=11)
    with Watch(model) as watch:
        outs = feed(model, tokens, random_sizes(LENGTH, seed=3), dt=dt)
    for layer in range(3):
        held = outs[-1].state.layers[layer].episodic.position
        for row, priorities in enumerate(watch.priorities(layer).tolist()):
            assert held[row].tolist() == sorted(replay(priorities, 8).held)


@torch.no_grad()
def test_gap_across_a_chunk_boundary_counts(lively, events):
    model = lively(seed=4)
    tokens, dt = events(2, 20, seed=5)
    longer = dt.clone()
    longer[:, 10] += 50
    whole = model(tokens, dt=longer).logits
    first, second = feed(model, tokens, [10, 10], dt=longer)
    assert_close(predictions([first, second]), whole)
    assert (second.logits - feed(model, tokens, [10, 10], dt=dt)[1].logits).abs().max() > 1e-2


@torch.no_grad()
def test_default_gap_is_one(lively, events):
    model = lively()
    tokens, _ = events(2, 20, seed=5)
    assert torch.equal(model(tokens).logits, model(tokens, dt=torch.ones(2, 20)).logits)


@torch.no_grad()
def test_age_of_a_long_stream_loses_nothing(lively, events):
    """Only differences of times matter, also after 2^30 units, where float32 knows only multiples of 64."""
    model = lively(seed=4)
    tokens, dt = events(2, 60, seed=6)
    state = model(tokens[:, :30], dt=dt[:, :30]).state
    later = dataclasses.replace(
        state,
        time=state.time + 2**30,
        layers=tuple(
            dataclasses.replace(layer, episodic=dataclasses.replace(layer.episodic, time=layer.episodic.time + 2**30))
            for layer in state.layers
        ),
    )
    soon = model(tokens[:, 30:], dt=dt[:, 30:], state=state)
    late = model(tokens[:, 30:], dt=dt[:, 30:], state=later)
    assert soon.ledger().pairs > 0
    assert_close(late.logits, soon.logits)


@torch.no_grad()
def test_small_gaps_after_a_long_one_lose_nothing(lively, events):
    model = lively(seed=4)
    tokens, dt = events(2, 60, seed=6)
    dt[:, 20] = 2**30
    whole = model(tokens, dt=dt)
    outs = feed(model, tokens, [1] * 60, dt=dt)
    assert_close(predictions(outs), whole.logits)
    assert torch.equal(whole.state.time, dt.double().cumsum(1)[:, -1])


@torch.no_grad()
def test_unbounded_buffer_keeps_everything(lively, events):
    model = lively({"episodic.slots": None})
    tokens, dt = events(1, 40, seed=7)
    for out in (model(tokens, dt=dt), feed(model, tokens, [1] * 40, dt=dt)[-1]):
        for layer in out.state.layers:
            assert layer.episodic.position.tolist() == [list(range(40))]
