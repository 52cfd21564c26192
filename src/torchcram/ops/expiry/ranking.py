"""Ranks of all events, best first, as GPU kernels: torch's own sort of many rows takes ten launches, and moves 64 bits.

An event is one number: its priority, so turned that the best is the least, and below it its place in the order of
writing. So no two are equal, and the older of equals is the better one. Pieces of a row are sorted in registers; then
as many as `_MERGED` sorted runs become one, by looking up in each of them how many are better.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

_PIECE = 1024  # events that are sorted together
_MERGED = 16  # runs that become one
_TILE = 128  # events whose places a program looks up
_NOTHING = tl.constexpr((1 << 63) - 1)  # worse than any event


def ranked(
    priority: Tensor, mask: Tensor, held_priority: Tensor, held_position: Tensor, age: Tensor
) -> tuple[Tensor, Tensor]:
    """The rank of each event, and the event of each rank, both [B, S + N] int32; what is no event at all comes last.

    priority, mask [B, N]; held_priority, held_position [B, S]; age [B, S]: the slots, that of the oldest event first,
    which are the first S events. All contiguous, priorities of 32 bits or fewer and not NaN.
    """
    (batch, length), held = priority.shape, age.shape[1]
    total = held + length
    keys = torch.empty(batch, total, dtype=torch.int64, device=priority.device)
    rank, order = (torch.empty(batch, total, dtype=torch.int32, device=priority.device) for _ in range(2))
    run = min(_PIECE, triton.next_power_of_2(total))
    with on_device(keys):
        _sort_pieces[(batch, triton.cdiv(total, run))](
            priority, mask, held_priority, held_position, age, keys, held, length, PIECE=run, num_warps=8
        )
        while True:
            last = run * _MERGED >= total
            merged = keys if last else torch.empty_like(keys)
            runs = min(_MERGED, triton.next_power_of_2(triton.cdiv(total, run)))
            _merge[(batch, triton.cdiv(total, _TILE))](
                keys, merged, rank, order, total, RUN=run, RUNS=runs, LAST=last, TILE=_TILE, num_warps=4
            )
            if last:
                return rank, order
            keys, run = merged, run * _MERGED


@triton.jit
def _sort_pieces(PRIORITY, MASK, HELD_PRIORITY, HELD_POSITION, AGE, KEYS, held, length, PIECE: tl.constexpr):
    """Number the events of a piece, and sort them."""
    row, total = tl.program_id(0).to(tl.int64), held + length
    event = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    new = (event >= held) & (event < total)
    at = row * length + event - held
    real = tl.load(MASK + at, mask=new, other=0) != 0
    worth = tl.load(PRIORITY + at, mask=real, other=float("-inf")).to(tl.float32)
    slot = row * held + tl.load(AGE + row * held + event, mask=event < held, other=0)
    there = tl.load(HELD_POSITION + slot, mask=event < held, other=-1) >= 0
    before = tl.load(HELD_PRIORITY + slot, mask=there, other=float("-inf")).to(tl.float32)
    worth = tl.where(event < held, before, worth)
    bits = tl.where(worth == 0, 0.0, worth).to(tl.int32, bitcast=True)  # 0 and -0 are equals
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = (~rising).to(tl.int64) << 32 | event
    sorted = tl.sort(tl.where(event < total, key, _NOTHING))
    tl.store(KEYS + row * total + event, sorted, mask=event < total)


@triton.jit
def _merge(
    KEYS,
    MERGED,
    RANK,
    ORDER,
    total,
    RUN: tl.constexpr,
    RUNS: tl.constexpr,
    LAST: tl.constexpr,
    TILE: tl.constexpr,
):
    """Put each event where it belongs among those of RUNS sorted runs, each of RUN events; the last ones are shorter.

    If they are all there are, say which rank each event has, and which event has each rank.
    """
    row = tl.program_id(0).to(tl.int64)
    KEYS += row * total
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = at < total
    key = tl.load(KEYS + at, mask=inside, other=_NOTHING)
    group = at // (RUN * RUNS) * (RUN * RUNS)
    begin = group[None, :] + tl.arange(0, RUNS)[:, None] * RUN
    better = tl.zeros((RUNS, TILE), tl.int32)  # events of each run
    step = RUN
    while step > 0:
        step = step // 2
        # Steps of RUN / 2, … 1, and once more of 1: up to RUN in all.
        next = begin + better + tl.maximum(step, 1) - 1
        beaten = tl.load(KEYS + next, mask=inside[None, :] & (next < total), other=_NOTHING) < key[None, :]
        better += tl.where(beaten, tl.maximum(step, 1), 0)
    place = group + tl.sum(better, 0)
    if LAST:
        event = key.to(tl.int32)
        tl.store(RANK + row * total + event, place, mask=inside)
        tl.store(ORDER + row * total + place, event, mask=inside)
    else:
        tl.store(MERGED + row * total + place, key, mask=inside)
