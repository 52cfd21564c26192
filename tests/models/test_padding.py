"""Padding, wherever it stands and whatever it holds, changes nothing."""

import copy

import pytest
import torch

from tests.models.feeding import LOSSES, assert_close, assert_same_state, feed
from torchcram import InputConfig, OutputConfig, RoutingPolicy, TokenField

INPUTS = InputConfig(tokens=(TokenField(name="tokens", vocabulary=16),), channels=2)
OUTPUTS = [
    OutputConfig(name="tokens", kind="tokens", size=16),
    OutputConfig(name="label", kind="classification", size=3),
]
CONVOLUTION = {"episodic.convolution": 3}
LENGTH = 50

# Where the real positions of a row of 70 stand.
PLACES = {
    "right": list(range(LENGTH)),
    "left": list(range(70 - LENGTH, 70)),
    "middle": [*range(15), *range(35, 70)],
    "scattered": sorted(torch.randperm(70, generator=torch.Generator().manual_seed(0))[:LENGTH].tolist()),
}


@pytest.fixture
def model(lively):
    return lively(CONVOLUTION, seed=4, vocabulary=None, inputs=INPUTS, outputs=OUTPUTS)


@pytest.fixture
def row(events):
    tokens, dt = events(1, LENGTH, seed=21)
    channels = torch.randn(1, LENGTH, 2, generator=torch.Generator().manual_seed(22))
    return {"tokens": tokens, "channels": channels}, dt


def garbage(length):
    """Ids out of range, NaN, infinite and negative numbers, for one row."""
    tokens = torch.tensor([-5, 999, 2**40]).repeat(length)[:length]
    channels = torch.tensor([torch.nan, torch.inf, 1e30]).repeat(length)[: 2 * length]
    dt = torch.tensor([torch.nan, -1.0, torch.inf, 1e30]).repeat(length)[:length]
    return {"tokens": tokens.view(1, length), "channels": channels.view(1, length, 2)}, dt.view(1, length)


def padded(inputs, dt, places):
    """The same row with its positions at `places` of 70, and garbage everywhere else."""
    mask = torch.zeros(1, 70, dtype=torch.bool)
    mask[:, places] = True
    spread, gaps = garbage(70)
    for name, value in inputs.items():
        spread[name][:, places] = value
    gaps[:, places] = dt
    return spread, gaps, mask


@pytest.mark.parametrize("where", PLACES)
@torch.no_grad()
def test_padded_equals_unpadded(where, model, row):
    places = PLACES[where]
    alone = model(row[0], dt=row[1])
    inputs, dt, mask = padded(*row, places)
    out = model(inputs, dt=dt, mask=mask)
    assert torch.equal(out.routing[:, places], alone.routing)
    assert_close(out.logits["tokens"][:, places], alone.logits["tokens"])
    assert_close(out.logits["label"], alone.logits["label"])
    assert_same_state(out.state, alone.state)
    assert out.ledger() == alone.ledger()
    assert (out.logits["tokens"][~mask] == 0).all()
    assert (out.routing[~mask] == 0).all()


@pytest.mark.parametrize("pools", [True, False])
@torch.no_grad()
def test_the_last_position_alone_is_predicted_from(pools, lively, events):
    """With a head that needs all of a call, and without; of rows that end early, and one without any position."""
    label = OutputConfig(name="label", kind="classification", size=3)
    model = lively(outputs=[OutputConfig(name="next", kind="tokens", size=16), *([label] if pools else [])])
    tokens, dt = events(3, 20, seed=9)
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[0, 12:] = False
    mask[2] = False
    every, alone = (model(tokens, dt=dt, mask=mask, last=last) for last in (False, True))
    assert alone.predictions["next"].shape == (3, 1, 16)
    assert_close(alone.predictions["next"][0], every.predictions["next"][0, 11:12])
    assert_close(alone.predictions["next"][1], every.predictions["next"][1, 19:])
    assert (alone.predictions["next"][2] == 0).all()
    assert_same_state(alone.state, every.state)
    if pools:
        assert_close(alone.predictions["label"], every.predictions["label"])


@torch.no_grad()
def test_padding_across_chunks(model, row):
    """Chunks of one position: some are all padding."""
    inputs, dt, mask = padded(*row, PLACES["scattered"])
    state = None
    outs = []
    for t in range(70):
        here = {name: value[:, t : t + 1] for name, value in inputs.items()}
        outs.append(model(here, dt=dt[:, t : t + 1], mask=mask[:, t : t + 1], state=state))
        state = outs[-1].state
    alone = model(row[0], dt=row[1])
    assert_close(torch.cat([out.logits["tokens"] for out in outs], 1)[mask], alone.logits["tokens"][0])
    assert_close(outs[-1].logits["label"], alone.logits["label"])
    assert_same_state(state, alone.state)


@torch.no_grad()
def test_rows_of_different_length_equal_each_alone(lively, events):
    model = lively(seed=4)
    tokens, dt = events(4, 60, seed=23)
    lengths = [60, 1, 33, 7]
    mask = torch.arange(60) < torch.tensor(lengths)[:, None]
    out = model(tokens, dt=dt, mask=mask)
    for row, (length, state) in enumerate(zip(lengths, out.state.split(), strict=True)):
        alone = model(tokens[row : row + 1, :length], dt=dt[row : row + 1, :length])
        assert torch.equal(out.routing[row : row + 1, :length], alone.routing)
        assert_close(out.logits[row : row + 1, :length], alone.logits)
        assert_same_state(state, alone.state)


@torch.no_grad()
def test_row_of_padding_leaves_its_state_alone(model, row):
    before = model(row[0], dt=row[1])
    inputs, dt = garbage(9)
    out = model(inputs, dt=dt, mask=torch.zeros(1, 9, dtype=torch.bool), state=before.state)
    assert_same_state(out.state, before.state, rtol=0)
    assert (out.logits["tokens"] == 0).all()
    assert_close(out.logits["label"], before.logits["label"])
    assert out.ledger().positions == out.ledger().dense_pairs == sum(out.ledger().pair_counts) == 0
    assert out.ledger().reads == 0


@torch.no_grad()
def test_row_of_padding_beside_a_real_one(lively, events):
    model = lively(CONVOLUTION, seed=4)
    tokens, dt = events(2, 30, seed=24)
    mask = torch.tensor([[True], [False]]).expand(2, 30)
    out = model(tokens, dt=dt, mask=mask)
    assert_same_state(out.state.select([1]), model.initial_state(1), rtol=0)
    assert (out.logits[1] == 0).all()
    assert_same_state(out.state.select([0]), model(tokens[:1], dt=dt[:1]).state)


def test_padding_moves_no_loss_and_no_statistic(model, row, monkeypatch):
    """In training, with forced actions and pointers, so that nothing is random."""
    monkeypatch.setattr(RoutingPolicy, "points", lambda self, mask, noise: mask)
    places = PLACES["middle"]
    actions = torch.randint(3, (1, LENGTH, 3), generator=torch.Generator().manual_seed(25))
    spread = torch.zeros(1, 70, 3, dtype=torch.int64)
    spread[:, places] = actions
    inputs, dt, mask = padded(*row, places)
    other = copy.deepcopy(model).train()
    alone = model.train()(row[0], dt=row[1], policy=RoutingPolicy(actions=actions))
    out = other(inputs, dt=dt, mask=mask, policy=RoutingPolicy(actions=spread))
    assert set(alone.losses) == LOSSES
    for name, value in alone.losses.items():
        torch.testing.assert_close(out.losses[name], value, rtol=1e-4, atol=1e-6, msg=name)
    for mine, theirs in zip(model.blocks, other.blocks, strict=True):
        assert_close(theirs.quality.reads.mean, mine.quality.reads.mean)
        torch.testing.assert_close(theirs.quality.reads.variance, mine.quality.reads.variance, rtol=1e-4, atol=0)
        assert mine.quality.reads.variance != 16.0


def test_garbage_in_padding_leaves_gradients_finite_and_equal(model, row):
    places = PLACES["middle"]
    other = copy.deepcopy(model)
    model(row[0], dt=row[1]).logits["label"].square().sum().backward()
    inputs, dt, mask = padded(*row, places)
    other(inputs, dt=dt, mask=mask).logits["label"].square().sum().backward()
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None:
            torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-5, msg=name)
    assert model.encoder.channels.weight.grad.abs().max() > 0


@torch.no_grad()
def test_all_real_mask_is_no_mask(lively, events):
    model = lively(seed=4)
    tokens, dt = events(2, 30, seed=26)
    assert torch.equal(
        model(tokens, dt=dt, mask=torch.ones(2, 30, dtype=torch.bool)).logits, model(tokens, dt=dt).logits
    )


@torch.no_grad()
def test_chunks_of_padded_rows(lively, events):
    model = lively(CONVOLUTION, seed=4)
    tokens, dt = events(3, 60, seed=27)
    mask = torch.rand(3, 60, generator=torch.Generator().manual_seed(28)) < 0.6
    whole = model(tokens, dt=dt, mask=mask)
    outs = feed(model, tokens, [7, 1, 1, 30, 21], dt=dt, mask=mask)
    assert_close(torch.cat([out.logits for out in outs], 1), whole.logits)
    assert_same_state(outs[-1].state, whole.state)
