"""The bounded priority buffer: both forms, and what may be read at each position found by sorting."""

from dataclasses import dataclass
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchcram.ops import Expiry, expiry, use
from torchcram.ops.expiry import fast, reference

LENGTHS = [1, 2, 3, 7, 8, 9, 16, 31, 33, 64, 65, 130]
FORMS = [(4, 1024, 4), (1, 2, 0), (3, 8, 1000)]  # bits of a digit, length of a chunk, few


@dataclass
class Stream:
    """Sequences to be offered to a buffer; `position` counts the real positions of the same sequence before."""

    priority: Tensor
    mask: Tensor
    reset: Tensor
    position: Tensor

    @classmethod
    def build(cls, priority: Tensor, mask: Tensor, reset: Tensor) -> "Stream":
        position = torch.zeros_like(mask, dtype=torch.int64)
        for b in range(mask.shape[0]):
            count = 0
            for t in range(mask.shape[1]):
                count = 0 if reset[b, t] else count
                position[b, t] = count
                count += bool(mask[b, t])
        return cls(priority, mask, reset, position)

    def part(self, begin: int, end: int) -> "Stream":
        return Stream(*(x[:, begin:end] for x in (self.priority, self.mask, self.reset, self.position)))


@dataclass
class Held:
    """What the slots hold: priority, position (-1 = empty) and which event of the stream it is, all [B, S]."""

    priority: Tensor
    position: Tensor
    event: Tensor

    @classmethod
    def empty(cls, batch: int) -> "Held":
        return cls(torch.zeros(batch, 0), *torch.zeros(2, batch, 0, dtype=torch.int64))

    def after(self, stream: Stream, fate: Expiry, begin: int, slots: int | None) -> "Held":
        """The slots after a call on `stream`, whose first event is number `begin`."""
        batch, length = stream.mask.shape
        held = self.position.shape[1]
        size = held + length if slots is None else max(held, min(slots, held + length))
        out = Held(torch.zeros(batch, size), *(torch.full((batch, size), -1, dtype=torch.int64) for _ in range(2)))
        for b in range(batch):
            for i in range(held + length):
                if fate.expires[b, i] < length:
                    continue
                source, k = (self, i) if i < held else (stream, i - held)
                s = int((out.position[b] >= 0).sum())
                out.priority[b, s], out.position[b, s] = source.priority[b, k], source.position[b, k]
                out.event[b, s] = self.event[b, i] if i < held else begin + k
        return out


def run(form, stream: Stream, held: Held, slots: int | None) -> Expiry:
    fate = form.expiry(stream.priority, stream.mask, stream.reset, stream.position, held.priority, held.position, slots)
    return Expiry(
        fate.expires.clamp_max(stream.mask.shape[1]), fate.admitted
    )  # N and more both mean "outlives the call"


def readable(fate: Expiry, held: Held, begin: int) -> list[list[set[int]]]:
    """The numbers of the events that each position of a call may read."""
    batch, length = fate.admitted.shape
    before = held.event.shape[1]
    out: list[list[set[int]]] = [[set() for _ in range(length)] for _ in range(batch)]
    for b in range(batch):
        for i, last in enumerate(fate.expires[b].tolist()):
            event = int(held.event[b, i]) if i < before else begin + i - before
            for t in range(max(0, i - before + 1), min(last, length - 1) + 1):
                out[b][t].add(event)
    return out


def best_of_the_past(stream: Stream, slots: int | None) -> list[list[set[int]]]:
    """The same by sorting: the M best events so far of the sequence, the older of two equals first."""
    out = []
    for b in range(stream.mask.shape[0]):
        past, row = [], []
        for t in range(stream.mask.shape[1]):
            past = [] if stream.reset[b, t] else past
            row.append({event for _, event in sorted(past)[:slots]})
            if stream.mask[b, t]:
                past.append((-float(stream.priority[b, t]), t))
        out.append(row)
    return out


def draw_stream(batch: int, length: int, levels: int, real: float, resets: float, seed: int) -> Stream:
    """`levels` different priorities (few: many ties); shares of real positions and of resets."""
    generator = torch.Generator().manual_seed(seed)
    priority = torch.randint(levels, (batch, length), generator=generator) / levels - 0.5
    mask = torch.rand(batch, length, generator=generator) < real
    reset = torch.rand(batch, length, generator=generator) < resets
    return Stream.build(priority, mask, reset)


@st.composite
def streams(draw) -> tuple[Stream, int | None]:
    length = draw(st.sampled_from(LENGTHS))
    stream = draw_stream(
        batch=draw(st.integers(1, 3)),
        length=length,
        levels=draw(st.sampled_from([1, 2, 5, 1000])),
        real=draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        resets=draw(st.sampled_from([0.0, 0.03, 0.3, 1.0])),
        seed=draw(st.integers(0, 2**31)),
    )
    for t in draw(st.sets(st.sampled_from([0, length // 2, length - 1]))):
        stream.reset[0, t] = True
    slots = draw(st.one_of(st.none(), st.integers(1, 9), st.integers(1, length + 3)))
    return Stream.build(stream.priority, stream.mask, stream.reset), slots


examples = settings(max_examples=300, deadline=None, derandomize=True)


@examples
@given(streams(), st.sampled_from(FORMS), st.floats(0, 1))
def test_fast_form_equals_reference_with_any_buffer_from_before(case, form, share):
    """The held slots come from the reference on a first part: empty, partly or completely full."""
    stream, slots = case
    batch, length = stream.mask.shape
    cut = round(share * (length - 1))
    held = Held.empty(batch)
    if cut:
        first = stream.part(0, cut)
        held = held.after(first, run(reference, first, held, slots), 0, slots)
    rest = stream.part(cut, length)
    with mock.patch.multiple(fast, _BITS=form[0], _CHUNK=form[1], FEW=form[2]):
        ours = run(fast, rest, held, slots)
    expected = run(reference, rest, held, slots)
    assert torch.equal(ours.expires, expected.expires)
    assert torch.equal(ours.admitted, expected.admitted)


@pytest.mark.parametrize("form", [fast, reference], ids=["fast", "reference"])
@examples
@given(case=streams())
def test_the_best_events_of_the_past_are_readable(form, case):
    stream, slots = case
    held = Held.empty(stream.mask.shape[0])
    assert readable(run(form, stream, held, slots), held, 0) == best_of_the_past(stream, slots)


@examples
@given(streams(), st.floats(0, 1))
def test_two_calls_equal_one(case, share):
    stream, slots = case
    batch, length = stream.mask.shape
    cut = round(share * length)
    nothing = Held.empty(batch)
    whole = run(fast, stream, nothing, slots)
    expected = readable(whole, nothing, 0)
    held = nothing
    if cut:
        first = stream.part(0, cut)
        fate = run(fast, first, nothing, slots)
        assert torch.equal(fate.admitted, whole.admitted[:, :cut])
        assert readable(fate, nothing, 0) == [row[:cut] for row in expected]
        held = nothing.after(first, fate, 0, slots)
    if cut < length:
        fate = run(fast, stream.part(cut, length), held, slots)
        assert torch.equal(fate.admitted, whole.admitted[:, cut:])
        assert readable(fate, held, cut) == [row[cut:] for row in expected]


@pytest.mark.parametrize("seed", range(2))
def test_a_buffer_longer_than_a_chunk(seed):
    stream = draw_stream(batch=2, length=1500, levels=10_000, real=0.95, resets=0.001, seed=seed)
    held = Held.empty(2)
    ours, expected = (run(form, stream, held, 1100) for form in (fast, reference))
    assert torch.equal(ours.expires, expected.expires), f"seed {seed}"
    assert torch.equal(ours.admitted, expected.admitted), f"seed {seed}"


@pytest.mark.parametrize("form", [fast, reference], ids=["fast", "reference"])
def test_by_hand(form):
    """Two slots: c evicts a, d ties with b and loses as the newer, e is padding, then a start empties the slots."""
    priority = torch.tensor([[1.0, 3.0, 4.0, 3.0, 9.0, 0.0]])
    mask = torch.tensor([[True, True, True, True, False, True]])
    reset = torch.tensor([[False, False, False, False, False, True]])
    held = Held.empty(1)
    fate = run(form, Stream.build(priority, mask, reset), held, 2)
    assert fate.expires.tolist() == [[2, 4, 4, 3, 4, 6]]
    assert fate.admitted.tolist() == [[True, True, True, False, False, True]]


@pytest.mark.parametrize("form", [fast, reference], ids=["fast", "reference"])
@pytest.mark.parametrize("slots", [1, 3, None])
def test_nothing_but_padding_leaves_the_buffer_alone(form, slots):
    stream = draw_stream(batch=2, length=70, levels=5, real=0.0, resets=0.0, seed=1)
    held = Held(torch.tensor([[2.0], [0.0]]), torch.tensor([[4], [-1]]), torch.tensor([[0], [-1]]))
    fate = run(form, stream, held, slots)
    assert fate.expires[:, 0].tolist() == [70, -1]
    assert not fate.admitted.any()
    assert torch.equal(fate.expires[:, 1:], torch.arange(70).expand(2, 70))


@pytest.mark.parametrize("form", ["fast", "reference"])
def test_priorities_may_carry_a_gradient_and_nan_ranks_last(form):
    priority = torch.tensor([[torch.nan, -torch.inf, 0.5, torch.nan, -9.0, torch.inf, 0.1]], requires_grad=True)
    mask = torch.ones(1, 7, dtype=torch.bool)
    stream, held = Stream.build(priority, mask, ~mask), Held.empty(1)
    with use(form):
        fate = expiry(*vars(stream).values(), held.priority, held.position, 2)
    assert fate.expires.clamp_max(7).tolist() == [[4, 2, 7, 3, 5, 7, 6]]
    assert fate.admitted.tolist() == [[True, True, True, False, True, True, False]]
    assert not fate.expires.requires_grad
