"""Lists of chosen positions as GPU kernels: torch's own operations would be eight, one of them a thread block a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

_CHUNK = 1024  # positions of a program
_FEW = 16_384  # positions of which each program counts those before its own by itself
_AHEAD = 8192  # positions looked at together beyond a program's own


def listing(chosen: Tensor, room: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length = chosen.shape
    make = torch.empty if chosen.numel() else torch.zeros
    shapes = (batch, room), (batch, length), (batch,)
    at, place, count = (make(shape, dtype=torch.int64, device=chosen.device) for shape in shapes)
    valid = make((batch, room), dtype=torch.bool, device=chosen.device)
    if chosen.numel() == 0:
        return at, valid, place, count
    chosen = chosen.contiguous().view(torch.uint8)
    counts, each = chosen, 1
    with on_device(chosen):
        if length > _FEW:
            counts, each = torch.empty(batch, triton.cdiv(length, _CHUNK), dtype=torch.int32, device=at.device), _CHUNK
            _count[counts.shape](chosen, counts, length, CHUNK=_CHUNK)
        parts = counts.shape[1]
        _list[(batch, triton.cdiv(max(length, room), _CHUNK))](
            *(chosen, counts, at, valid, place, count, length, room, parts, each),
            CHUNK=_CHUNK,
            PARTS=triton.next_power_of_2(parts),
            num_warps=8,
        )
    return at, valid, place, count


def following(chosen: Tensor) -> Tensor:
    batch, length = chosen.shape
    out = torch.empty(batch, length, dtype=torch.int64, device=chosen.device)
    if out.numel() == 0:
        return out
    with on_device(out):
        _follow[(batch, triton.cdiv(length, _CHUNK))](
            chosen.contiguous().view(torch.uint8), out, length, CHUNK=_CHUNK, AHEAD=_AHEAD, num_warps=8
        )
    return out


@triton.jit
def _count(CHOSEN, COUNTS, length, CHUNK: tl.constexpr):
    """How many are chosen in each chunk."""
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    chosen = tl.load(CHOSEN + tl.program_id(0).to(tl.int64) * length + at, mask=at < length, other=0)
    tl.store(COUNTS + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(chosen.to(tl.int32), 0))


@triton.jit
def _list(
    CHOSEN,
    COUNTS,
    AT,
    VALID,
    PLACE,
    COUNT,
    length,
    room,
    parts,
    each,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """List those of a chunk, say where each position is in the list, and fill a chunk of the list beyond its end.

    COUNTS [B, parts]: how many of `each` positions are chosen.
    """
    row, begin = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK
    part = tl.arange(0, PARTS)
    counts = tl.load(COUNTS + row * parts + part, mask=part < parts, other=0).to(tl.int32)
    every = tl.sum(counts, 0)
    before = tl.sum(tl.where(part * each < begin, counts, 0), 0)
    at = begin + tl.arange(0, CHUNK)
    inside = at < length
    chosen = tl.load(CHOSEN + row * length + at, mask=inside, other=0).to(tl.int32)
    place = before + tl.cumsum(chosen, 0) - 1
    listed = (chosen != 0) & (place < room)
    tl.store(PLACE + row * length + at, tl.where(listed, place, room).to(tl.int64), mask=inside)
    AT += row * room
    tl.store(AT + place, at.to(tl.int64), mask=listed)
    beyond = (at >= every) & (at < room)
    tl.store(AT + at, tl.zeros((CHUNK,), tl.int64), mask=beyond)
    tl.store(VALID + row * room + at, at < every, mask=at < room)
    tl.store(COUNT + row, every.to(tl.int64), mask=begin == 0)


@triton.jit
def _sooner(a, b):
    return tl.minimum(a, b)


@triton.jit
def _follow(CHOSEN, OUT, length, CHUNK: tl.constexpr, AHEAD: tl.constexpr):
    """The next that is chosen after each position of a chunk: one of it, or the first after it."""
    row, begin = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK
    CHOSEN += row * length
    at = begin + tl.arange(0, CHUNK)
    chosen = tl.load(CHOSEN + at + 1, mask=at + 1 < length, other=0)
    found = tl.associative_scan(tl.where(chosen != 0, at + 1, length), 0, _sooner, reverse=True)
    start, first = begin + CHUNK + 1, length
    while (first == length) & (start < length):
        further = start + tl.arange(0, AHEAD)
        another = tl.load(CHOSEN + further, mask=further < length, other=0)
        first = tl.min(tl.where(another != 0, further, length), 0)
        start += AHEAD
    tl.store(OUT + row * length + at, tl.minimum(found, first).to(tl.int64), mask=at < length)
