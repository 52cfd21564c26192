"""Several sequences in one row are as good as each on its own."""

import pytest
import torch

from tests.models.feeding import assert_close, assert_same_state, feed, predictions, random_sizes, routing, total
from torchcram import OutputConfig

OUTPUTS = [
    OutputConfig(name="tokens", kind="tokens", size=16),
    OutputConfig(name="label", kind="classification", size=3),
]
LENGTHS = [23, 1, 40, 16]
BEGINS = [0, 23, 24, 64]
LENGTH = sum(LENGTHS)


@pytest.fixture(params=["plain", "convolution", "worth", "exact quality"])
def model(request, lively):
    changes = {
        "plain": {},
        "convolution": {"episodic.convolution": 3, "episodic.slots": 5},
        "worth": {"router.rule": "worth"},
        "exact quality": {"router.quality": "exact"},
    }
    return lively(changes[request.param], seed=4, outputs=OUTPUTS)


@pytest.fixture
def row(events):
    """Four sequences in one row: ids, gaps and starts."""
    tokens, dt = events(1, LENGTH, seed=31)
    start = torch.zeros(1, LENGTH, dtype=torch.bool)
    start[0, BEGINS] = True
    return tokens, dt, start


def alone(model, tokens, dt):
    """Each of the row's sequences in a call of its own."""
    parts = [slice(begin, begin + length) for begin, length in zip(BEGINS, LENGTHS, strict=True)]
    return [model(tokens[:, part], dt=dt[:, part]) for part in parts]


@torch.no_grad()
def test_packed_equals_separate(model, row):
    tokens, dt, start = row
    packed, separate = model(tokens, dt=dt, start=start), alone(model, tokens, dt)
    assert torch.equal(packed.routing, routing(separate))
    assert_close(packed.logits["tokens"], predictions(separate))
    assert_close(packed.logits["label"][0], predictions(separate, "label").view(4, 3))
    assert_same_state(packed.state, separate[-1].state)
    assert packed.ledger() == total(separate)


@torch.no_grad()
def test_packed_across_chunks(model, row):
    tokens, dt, start = row
    separate = alone(model, tokens, dt)
    for sizes in ([1] * LENGTH, random_sizes(LENGTH, seed=1), [23, 41, 16], [20, 50, 10]):
        outs = feed(model, tokens, sizes, dt=dt, start=start)
        assert torch.equal(routing(outs), routing(separate))
        assert_close(predictions(outs), predictions(separate))
        assert_same_state(outs[-1].state, separate[-1].state)
        assert total(outs) == total(separate)


@torch.no_grad()
def test_start_in_the_middle_of_a_call_forgets_the_state(model, row):
    tokens, dt, start = row
    outs = feed(model, tokens, [30, LENGTH - 30], dt=dt, start=start)
    # The second call goes on with the third sequence and then holds the fourth.
    separate = alone(model, tokens, dt)
    assert outs[1].logits["label"].shape == (1, 2, 3)
    assert_close(outs[1].logits["label"][0, 0], separate[2].logits["label"][0])
    assert_close(outs[1].logits["label"][0, 1], separate[3].logits["label"][0])


@torch.no_grad()
def test_start_at_the_first_position_forgets_the_state(model, row):
    tokens, dt, start = row
    before = model(tokens, dt=dt).state
    again = model(tokens, dt=dt, start=start, state=before)
    fresh = model(tokens, dt=dt, start=start)
    assert_close(again.logits["tokens"], fresh.logits["tokens"])
    assert_close(again.logits["label"], fresh.logits["label"])
    assert_same_state(again.state, fresh.state)


@torch.no_grad()
def test_sequences_with_padding_between(model, row):
    tokens, dt, start = row
    # 3 padded positions before each sequence but the first, and 2 at the end.
    places = [t + 3 * sum(t >= begin for begin in BEGINS[1:]) for t in range(LENGTH)]
    wide = LENGTH + 3 * 3 + 2
    padded_tokens, padded_dt = torch.full((1, wide), -1), torch.full((1, wide), torch.nan)
    padded_start, mask = torch.zeros(1, wide, dtype=torch.bool), torch.zeros(1, wide, dtype=torch.bool)
    padded_tokens[:, places], padded_dt[:, places], padded_start[:, places] = tokens, dt, start
    mask[:, places] = True
    out = model(padded_tokens, dt=padded_dt, start=padded_start, mask=mask)
    plain = model(tokens, dt=dt, start=start)
    assert_close(out.logits["tokens"][:, places], plain.logits["tokens"])
    assert_close(out.logits["label"], plain.logits["label"])
    assert_same_state(out.state, plain.state)
    assert out.ledger() == plain.ledger()


@torch.no_grad()
def test_padding_before_the_first_sequence_is_no_sequence(lively, row):
    model = lively(seed=4, outputs=OUTPUTS)
    tokens, dt, start = row
    mask = torch.ones(1, LENGTH + 5, dtype=torch.bool)
    mask[:, :5] = False
    tokens, dt, start = (torch.nn.functional.pad(x, (5, 0)) for x in (tokens, dt, start))
    out = model(tokens, dt=dt, start=start, mask=mask)
    plain = model(tokens[:, 5:], dt=dt[:, 5:], start=start[:, 5:])
    assert_close(out.logits["tokens"][:, 5:], plain.logits["tokens"])
    assert_close(out.logits["label"], plain.logits["label"])


@torch.no_grad()
def test_rows_with_different_numbers_of_sequences(lively, events):
    model = lively(seed=4, outputs=OUTPUTS)
    tokens, dt = events(3, 30, seed=32)
    start = torch.zeros(3, 30, dtype=torch.bool)
    start[0, [0, 10, 20]] = True
    start[1, 15] = True
    labels = model(tokens, dt=dt, start=start).logits["label"]
    assert labels.shape == (3, 3, 3)
    pieces = {(0, 0): (0, 10), (0, 1): (10, 20), (0, 2): (20, 30), (1, 0): (0, 15), (1, 1): (15, 30), (2, 0): (0, 30)}
    for (b, g), (begin, end) in pieces.items():
        single = model(tokens[b : b + 1, begin:end], dt=dt[b : b + 1, begin:end]).logits["label"]
        assert_close(labels[b, g], single[0])
    nothing = model(tokens[:1], mask=torch.zeros(1, 30, dtype=torch.bool)).logits["label"]
    for b, g in [(1, 2), (2, 1), (2, 2)]:
        assert torch.equal(labels[b, g], nothing[0])


@torch.no_grad()
def test_nothing_leaks_into_the_next_sequence(model, row):
    tokens, dt, start = row
    changed, gaps = tokens.clone(), dt.clone()
    changed[:, :24] = (changed[:, :24] + 5) % 16
    gaps[:, :24] = 1000 - gaps[:, :24]
    first, second = (model(ids, dt=gap, start=start) for ids, gap in ((tokens, dt), (changed, gaps)))
    assert (first.logits["tokens"][:, :24] - second.logits["tokens"][:, :24]).abs().max() > 0.1
    assert torch.equal(first.routing[:, 24:], second.routing[:, 24:])
    assert_close(first.logits["tokens"][:, 24:], second.logits["tokens"][:, 24:], atol=2e-6)
    assert_close(first.logits["label"][:, 2:], second.logits["label"][:, 2:], atol=2e-6)
    assert_same_state(first.state, second.state, rtol=1e-6)


def test_no_gradient_reaches_the_sequence_before(lively, events):
    model = lively({"episodic.convolution": 3}, seed=4, vocabulary=None, inputs="channels", channels=2, size=16)
    channels = torch.randn(1, 30, 2, generator=torch.Generator().manual_seed(33)).requires_grad_()
    start = torch.zeros(1, 30, dtype=torch.bool)
    start[0, 12] = True
    model(channels, start=start).logits[:, 12:].square().sum().backward()
    assert (channels.grad[:, :12] == 0).all()
    assert (channels.grad[:, 12:] != 0).all()
