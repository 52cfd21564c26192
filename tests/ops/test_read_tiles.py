"""The read in several tiles: the same as in one, and a bounded buffer bounds the work."""

import pytest
import torch

from torchcram.ledger import measure
from torchcram.ops import Events, compact, episodic_read, expiry, use
from torchcram.ops.read import fast

BATCH, LENGTH, HEADS, SIZE = 2, 90, 2, 3


def problem(slots, share, seed, length=LENGTH, packed=False):
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.rand(BATCH, length, generator=generator) < 0.9
    start = (torch.rand(BATCH, length, generator=generator) < 0.05) & mask & packed
    position = torch.zeros(BATCH, length, dtype=torch.int64)
    for row in range(BATCH):
        seen = 0
        for t in range(length):
            seen = 0 if start[row, t] else seen
            position[row, t] = seen
            seen += int(mask[row, t])
    none = torch.zeros(BATCH, 0)
    fate = expiry(noise(BATCH, length), mask, start, position, none.double(), none.long(), slots)
    time = noise(BATCH, length).abs().cumsum(1)
    events = Events(torch.arange(length).expand(BATCH, length), fate.expires, time)
    rows = compact(mask & (torch.rand(BATCH, length, generator=generator) < share))
    count = rows.at.shape[1]
    tensors = [
        noise(BATCH, count, HEADS, SIZE),
        noise(BATCH, length, HEADS, SIZE),
        noise(BATCH, length, HEADS, SIZE),
        noise(BATCH, length),
        noise(HEADS),
    ]
    return [x.requires_grad_() for x in tensors], rows, time.gather(1, rows.at), events


def outcome(tensors, rows, row_time, events):
    found = episodic_read(*tensors, rows, row_time, events)
    weigh = torch.linspace(-1, 1, found.value.numel(), dtype=torch.float64).view_as(found.value)
    return [*found, *torch.autograd.grad((found.value * weigh).sum(), tensors)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.4, 1.0])
@pytest.mark.parametrize("slots", [1, 4, 30, None])
def test_tiles_agree_with_the_reference(slots, share, packed, monkeypatch):
    monkeypatch.setattr(fast, "_TILE_SCORES", 1)  # the fewest rows a tile can have
    given = problem(slots, share, seed=3, packed=packed)
    with use("reference"):
        expected = outcome(*given)
    for mine, theirs in zip(outcome(*given), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_bounded_buffer_bounds_the_work(monkeypatch):
    monkeypatch.setattr(fast, "_TILE_SCORES", 1)

    def flops(slots):
        tensors, rows, row_time, events = problem(slots, 1.0, seed=4, length=400)
        with torch.no_grad(), measure() as cost:
            episodic_read(*tensors, rows, row_time, events)
        return cost.flops

    assert flops(8) < 0.25 * flops(None)
