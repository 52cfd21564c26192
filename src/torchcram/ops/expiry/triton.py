"""The buffer as GPU kernels, for rows that hold one sequence each.

Events are numbered by rank, best first. At the end of each chunk of positions stands the bar: the rank from which on
events have been beaten by M others by then. Bars only ever get better, so each event that leaves does so in the one
chunk at whose end the bar has passed it. Most events come after the bar has passed them, and that is all there is to
know of them. The others are listed for their chunk; where in it they leave is found by counting those of the chunk that
beat them.

To find bars, ranks are put into buckets, and those of each chunk are counted: the counts of all chunks so far say in
which bucket the M-th best is, and only that bucket is looked at. So the work is O(N + (N / size)³) for chunks and
buckets of one size, about √N.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device
from torchcram.ops.expiry.ranking import ranked

_LEAST, _MOST = 128, 1024  # positions of a chunk, and ranks of a bucket
_TILE = 256  # events looked at together
_PAIRS = 1 << 14  # numbers in a table that a program looks at


@torch.library.custom_op("torchcram::expiry", mutates_args=())
def expire(
    priority: Tensor, mask: Tensor, held_priority: Tensor, held_position: Tensor, slots: int
) -> tuple[Tensor, Tensor]:
    """When events expire [B, S + N], and which new ones are admitted [B, N]; see `ops.expiry`."""
    (batch, length), held = priority.shape, held_position.shape[1]
    total = held + length
    given = priority, mask, held_priority.to(priority.dtype), held_position
    priority, mask, held_priority, held_position = (x.contiguous() for x in given)
    age = held_position.argsort(dim=1) if held else held_position  # slots in the order of writing
    rank, order = ranked(priority, mask, held_priority, held_position, age)
    chunk = min(_MOST, max(_LEAST, triton.next_power_of_2(math.isqrt(length))))
    chunks = triton.cdiv(length, chunk)
    buckets = max(32, triton.next_power_of_2(triton.cdiv(total, chunk)))
    room = 2 * chunk + max(0, held - slots)
    counts = rank.new_empty(batch, chunks, buckets)
    bars = rank.new_empty(batch, chunks + 1)
    listed, lengths = rank.new_empty(batch, chunks, room), rank.new_empty(batch, chunks)
    expires, admitted = rank.new_empty(batch, total, dtype=torch.int64), torch.empty_like(mask)
    fate = mask, held_position, age, expires, admitted
    with on_device(rank):
        _count_ranks[(batch, chunks)](rank, counts, lengths, held, total, CHUNK=chunk, BUCKETS=buckets, num_warps=4)
        _find_bars[(batch, chunks)](
            order,
            counts,
            bars,
            held,
            total,
            slots,
            CHUNK=chunk,
            BUCKETS=buckets,
            AHEAD=max(1, _PAIRS // 2 // buckets),
            num_warps=4,
        )
        _sift[(batch, triton.cdiv(total, _TILE))](
            *(rank, bars, listed, lengths, *fate, held, length, chunks, room, chunks.bit_length()),
            CHUNK=chunk,
            TILE=_TILE,
            num_warps=4,
        )
        # In the chunks in which a long row's buffer fills up, most events are listed: several programs share a list.
        _leave[(batch, chunks, triton.cdiv(chunk, _LEAST))](
            *(rank, listed, lengths, *fate, held, length, slots, room),
            CHUNK=chunk,
            FEW=min(32, _PAIRS // chunk),
            num_warps=8,
        )
    return expires, admitted


@expire.register_fake
def _(
    priority: Tensor, mask: Tensor, held_priority: Tensor, held_position: Tensor, slots: int
) -> tuple[Tensor, Tensor]:
    total = held_position.shape[1] + priority.shape[1]
    return held_position.new_empty(priority.shape[0], total), mask.new_empty(mask.shape)


@triton.jit
def _count_ranks(RANK, COUNTS, LENGTHS, held, total, CHUNK: tl.constexpr, BUCKETS: tl.constexpr):
    """How many events of a chunk are in each bucket of ranks; those held from before count as the first chunk's.

    LENGTHS of lists that have nothing in them yet are set to 0.
    """
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    end = tl.minimum(held + (number + 1) * CHUNK, total)
    counts = tl.zeros((BUCKETS,), tl.int32)
    for begin in range(tl.where(number == 0, 0, held + number * CHUNK), end, CHUNK):
        at = begin + tl.arange(0, CHUNK)
        rank = tl.load(RANK + row * total + at, mask=at < end, other=0)
        counts += tl.histogram(rank // CHUNK, BUCKETS, mask=at < end)
    own = row * tl.num_programs(1) + number
    tl.store(COUNTS + own * BUCKETS + tl.arange(0, BUCKETS), counts)
    tl.store(LENGTHS + own, 0)


@triton.jit
def _find_bars(
    ORDER, COUNTS, BARS, held, total, slots, CHUNK: tl.constexpr, BUCKETS: tl.constexpr, AHEAD: tl.constexpr
):
    """The bar after a chunk: one more than the M-th smallest rank so far, or `total` while there are fewer than M."""
    row, number, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    bucket = tl.arange(0, BUCKETS)
    by_chunk = tl.zeros((AHEAD, BUCKETS), tl.int32)
    for first in range(0, number + 1, AHEAD):
        chunk = first + tl.arange(0, AHEAD)
        place = (row * chunks + chunk[:, None]) * BUCKETS + bucket[None, :]
        by_chunk += tl.load(COUNTS + place, mask=chunk[:, None] <= number, other=0)
    counts = tl.sum(by_chunk, 0)
    end = tl.minimum(held + (number + 1) * CHUNK, total)
    before = tl.sum((tl.cumsum(counts, 0) < slots).to(tl.int32), 0)  # buckets whose events are all among the M best
    wanted = slots - tl.sum(tl.where(bucket < before, counts, 0), 0)
    rank = before * CHUNK + tl.arange(0, CHUNK)
    event = tl.load(ORDER + row * total + rank, mask=rank < total, other=total)
    better = tl.sum((tl.cumsum((event < end).to(tl.int32), 0) < wanted).to(tl.int32), 0)
    BARS += row * (chunks + 1)
    tl.store(BARS + number + 1, tl.where(end < slots, total, before * CHUNK + better + 1))
    tl.store(BARS, total, mask=number == 0)


@triton.jit
def _tell(event, until, wanted, row, MASK, HELD_POSITION, AGE, EXPIRES, ADMITTED, held, length):
    """Events leave at `until`, those that are none at once, and none before it was there."""
    new = wanted & (event >= held)
    at = event - held
    real = tl.load(MASK + row * length + at, mask=new, other=0) != 0
    tl.store(EXPIRES + row * (held + length) + event, tl.where(real, tl.maximum(until, at), at).to(tl.int64), mask=new)
    tl.store(ADMITTED + row * length + at, real & (until > at), mask=new)
    old = wanted & (event < held)
    slot = tl.load(AGE + row * held + event, mask=old, other=0)
    real = tl.load(HELD_POSITION + row * held + slot, mask=old, other=-1) >= 0
    tl.store(EXPIRES + row * (held + length) + slot, tl.where(real, until, -1).to(tl.int64), mask=old)


@triton.jit
def _sift(
    RANK,
    BARS,
    LISTED,
    LENGTHS,
    MASK,
    HELD_POSITION,
    AGE,
    EXPIRES,
    ADMITTED,
    held,
    length,
    chunks,
    room,
    steps,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Tell of events that never leave, and of those that the bar passes before they come; list the others.

    A list is in no order.
    """
    row = tl.program_id(0).to(tl.int64)
    total = held + length
    event = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = event < total
    rank = tl.load(RANK + row * total + event, mask=inside, other=0)
    BARS += row * (chunks + 1) + 1
    number, above = tl.zeros((TILE,), tl.int32), tl.zeros((TILE,), tl.int32) + chunks
    for _ in range(steps):  # for the first chunk after which the bar has passed
        middle = (number + above) // 2
        searching = number < above
        within = rank < tl.load(BARS + middle, mask=searching, other=0)
        above = tl.where(searching & ~within, middle, above)
        number = tl.where(searching & within, middle + 1, number)
    stays = number == chunks
    listed = inside & ~stays & (event < held + (number + 1) * CHUNK)
    until = tl.where(stays, length, number * CHUNK)
    _tell(event, until, inside & ~listed, row, MASK, HELD_POSITION, AGE, EXPIRES, ADMITTED, held, length)
    own = row * chunks + number
    place = tl.atomic_add(LENGTHS + own, 1, mask=listed)
    tl.store(LISTED + own * room + place, event, mask=listed)


@triton.jit
def _leave(
    RANK,
    LISTED,
    LENGTHS,
    MASK,
    HELD_POSITION,
    AGE,
    EXPIRES,
    ADMITTED,
    held,
    length,
    slots,
    room,
    CHUNK: tl.constexpr,
    FEW: tl.constexpr,
):
    """Tell when those events expire that leave during a chunk, and were there."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = held + length
    own = row * tl.num_programs(1) + number
    RANK += row * total
    LISTED += own * room
    count = tl.load(LENGTHS + own)
    begin = held + number * CHUNK
    fresh_at = begin + tl.arange(0, CHUNK)
    fresh = tl.load(RANK + fresh_at, mask=fresh_at < total, other=total)
    better = tl.minimum(slots, begin)  # than the bar before the chunk
    if number == 0:
        better = held
    for first in range(tl.program_id(2) * FEW, count, tl.num_programs(2) * FEW):
        at = first + tl.arange(0, FEW)
        inside = at < count
        event = tl.load(LISTED + at, mask=inside, other=0)
        rank = tl.load(RANK + event, mask=inside, other=0)
        needed = tl.zeros((FEW,), tl.int32) + slots - better
        for start in range(0, count, CHUNK):  # those held before the chunk that are no better
            other_at = start + tl.arange(0, CHUNK)
            other = tl.load(LISTED + other_at, mask=other_at < count, other=total)
            others = tl.load(RANK + other, mask=other < begin, other=-1)
            needed += tl.sum((others[None, :] >= rank[:, None]).to(tl.int32), 1)
        beaten = tl.cumsum((fresh[None, :] < rank[:, None]).to(tl.int32), 1)
        until = number * CHUNK + tl.sum((beaten < needed[:, None]).to(tl.int32), 1)
        _tell(event, until, inside, row, MASK, HELD_POSITION, AGE, EXPIRES, ADMITTED, held, length)
