"""The buffer as GPU kernels, for rows that hold one sequence each.

Events are numbered by rank, best first. At the end of each chunk of positions, the first kernel finds the bar: the rank
from which on events have been beaten by M others by then. Bars only ever get better, so each event that leaves does so
in the one chunk at whose end the bar has passed it. Where in the chunk, the second kernel finds by counting those of
the chunk that beat it.

A bar is found by looking at all events so far. In long rows, bars are found for sections of many chunks first, and what
they leave is listed: the M best events, and no others, can still be among the M best later on.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

_CHUNK, _LONG = 128, 16_384  # positions of a chunk; twice as many, in sections, in rows that are longer than this
_SECTION = 16  # chunks of a section
_TILE = 1024  # ranks looked at together
_FEW = 32  # events that are looked for at a time in what a chunk brings
_BITS = 8  # of a digit of a rank, by which the bar is narrowed down


@torch.library.custom_op("torchcram::expiry", mutates_args=())
def expire(
    priority: Tensor, mask: Tensor, held_priority: Tensor, held_position: Tensor, slots: int
) -> tuple[Tensor, Tensor]:
    """When events expire [B, S + N], and which new ones are admitted [B, N]; see `ops.expiry`."""
    (batch, length), held = priority.shape, held_position.shape[1]
    total = held + length
    mask = mask.contiguous()
    # The older of equals is the better one, and what is no event at all is worse than any.
    age = held_position.argsort(dim=1)
    worth = torch.cat(
        [
            held_priority.masked_fill(held_position < 0, -torch.inf).gather(1, age).to(priority.dtype),
            priority.masked_fill(~mask, -torch.inf),
        ],
        dim=1,
    )
    order = worth.argsort(dim=1, descending=True, stable=True)
    ranks = torch.arange(total, dtype=torch.int32, device=order.device).expand_as(order)
    rank = torch.empty_like(ranks, memory_format=torch.contiguous_format).scatter_(1, order, ranks)
    long = length > _LONG
    chunk = 2 * _CHUNK if long else _CHUNK
    chunks = triton.cdiv(length, chunk)
    sections = triton.cdiv(chunks, _SECTION) if long else 1
    room = 2 * chunk + max(0, held - slots)
    bars = rank.new_empty(batch, chunks + 1)
    best, counts = rank.new_empty(batch, sections, slots if long else 1), rank.new_zeros(batch, sections)
    scratch = rank.new_empty(batch, chunks, room, 3)
    expires, admitted = torch.empty_like(order), torch.empty_like(mask)
    looking: dict[str, Any] = {"PASSES": triton.cdiv(max(1, (total - 1).bit_length()), _BITS), "BITS": _BITS}
    looking |= {"TILE": _TILE, "num_warps": 8}
    given = held, total, slots
    with on_device(rank):
        if sections > 1:
            ends = rank.new_empty(batch, sections + 1)
            _find_bars[(batch, sections)](
                rank, best, counts, ends, *given, sections, CHUNK=chunk * _SECTION, SECTION=sections, **looking
            )
            _list_best[(batch, sections - 1)](
                rank, ends, best, counts, *given, sections, SIZE=chunk * _SECTION, TILE=_TILE, num_warps=8
            )
        _find_bars[(batch, chunks)](
            rank, best, counts, bars, *given, chunks, CHUNK=chunk, SECTION=_SECTION if long else chunks, **looking
        )
        _leave[(batch, chunks)](
            rank,
            order,
            bars,
            mask,
            held_position.contiguous(),
            age,
            expires,
            admitted,
            scratch,
            held,
            length,
            slots,
            chunks,
            room,
            CHUNK=chunk,
            TILE=_TILE,
            FEW=_FEW,
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
def _count(RANKS, begin, end, above, shift, BITS: tl.constexpr, TILE: tl.constexpr):
    """How many of some ranks that begin with the digits `above` have each next digit."""
    place = tl.arange(0, TILE)
    counts = tl.zeros((1 << BITS,), tl.int32)
    for first in range(begin, end, TILE):
        inside = first + place < end
        rank = tl.load(RANKS + first + place, mask=inside, other=0)
        alike = inside & ((rank >> shift >> BITS) == above)
        counts += tl.histogram((rank >> shift) & ((1 << BITS) - 1), 1 << BITS, mask=alike)
    return counts


@triton.jit
def _find_bars(
    RANK,
    BEST,
    COUNTS,
    BARS,
    held,
    total,
    slots,
    chunks,
    CHUNK: tl.constexpr,
    SECTION,
    PASSES: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The bar after a chunk: one more than the M-th smallest rank so far, or `total` while there are fewer than M.

    Of what came before the chunk's section, only the best are looked at, which are listed.
    """
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    section = number // SECTION
    before = row * tl.cdiv(chunks, SECTION) + section
    RANK += row * total
    BARS += row * (chunks + 1)
    BEST += before * slots
    listed = 0
    begin = 0
    if section > 0:
        listed = tl.load(COUNTS + before)
        begin = held + section * SECTION * CHUNK
    end = tl.minimum(held + (number + 1) * CHUNK, total)
    every = tl.arange(0, 1 << BITS)
    above = 0  # the digits found so far
    which = slots
    for level in tl.static_range(PASSES):
        shift = BITS * (PASSES - 1 - level)
        counts = _count(BEST, 0, listed, above, shift, BITS, TILE)
        counts += _count(RANK, begin, end, above, shift, BITS, TILE)
        digit = tl.sum((tl.cumsum(counts, 0) < which).to(tl.int32), 0)
        which -= tl.sum(tl.where(every < digit, counts, 0), 0)
        above = (above << BITS) + digit
    tl.store(BARS + number + 1, tl.where(end < slots, total, above + 1))
    tl.store(BARS, total, mask=number == 0)


@triton.jit
def _list_best(RANK, ENDS, BEST, COUNTS, held, total, slots, sections, SIZE: tl.constexpr, TILE: tl.constexpr):
    """The ranks of the M best events before a section, but for the first one, and how many they are."""
    row, section = tl.program_id(0).to(tl.int64), tl.program_id(1) + 1
    RANK += row * total
    bar = tl.load(ENDS + row * (sections + 1) + section)
    BEST += (row * sections + section) * slots
    place = tl.arange(0, TILE)
    count = 0
    end = held + section * SIZE
    for first in range(0, end, TILE):
        inside = first + place < end
        rank = tl.load(RANK + first + place, mask=inside, other=total)
        good = rank < bar
        tl.store(BEST + count + tl.cumsum(good.to(tl.int32), 0) - 1, rank, mask=good)
        count += tl.sum(good.to(tl.int32), 0)
    tl.store(COUNTS + row * sections + section, count)


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
def _leave(
    RANK,
    ORDER,
    BARS,
    MASK,
    HELD_POSITION,
    AGE,
    EXPIRES,
    ADMITTED,
    SCRATCH,
    held,
    length,
    slots,
    chunks,
    room,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    FEW: tl.constexpr,
):
    """Tell when those events expire that leave during a chunk, or that come in it and never do."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = held + length
    RANK += row * total
    ORDER += row * total
    BARS += row * (chunks + 1)
    SCRATCH += (row * chunks + number) * room * 3
    begin = held + number * CHUNK
    end = tl.minimum(begin + CHUNK, total)
    high, low, last = tl.load(BARS + number), tl.load(BARS + number + 1), tl.load(BARS + chunks)
    fresh_at = begin + tl.arange(0, CHUNK)
    fresh = tl.load(RANK + fresh_at, mask=fresh_at < end, other=total)
    never = tl.zeros((CHUNK,), tl.int32) + length
    _tell(fresh_at, never, fresh < last, row, MASK, HELD_POSITION, AGE, EXPIRES, ADMITTED, held, length)
    place = tl.arange(0, TILE)
    if number == 0:
        for first in range(0, held, TILE):
            at = first + place
            stays = tl.load(RANK + at, mask=at < held, other=total) < last
            until = tl.zeros((TILE,), tl.int32) + length
            _tell(at, until, stays, row, MASK, HELD_POSITION, AGE, EXPIRES, ADMITTED, held, length)

    # Those that the bar passes, worst first: whoever comes later will not get in, and the others are listed.
    worse = 0
    count = 0
    for first in range(0, high - low, TILE):
        rank = high - 1 - first - place
        inside = rank >= low
        event = tl.load(ORDER + rank, mask=inside, other=0).to(tl.int32)
        old, listed = inside & (event < begin), inside & (event < end)
        down_to = worse + tl.cumsum(old.to(tl.int32), 0)  # those held before the chunk that are no better
        own = SCRATCH + (count + tl.cumsum(listed.to(tl.int32), 0) - 1) * 3
        tl.store(own, rank, mask=listed)
        tl.store(own + 1, down_to, mask=listed)
        tl.store(own + 2, event, mask=listed)
        until = tl.zeros((TILE,), tl.int32) + number * CHUNK
        _tell(event, until, inside & ~listed, row, MASK, HELD_POSITION, AGE, EXPIRES, ADMITTED, held, length)
        worse += tl.sum(old.to(tl.int32), 0)
        count += tl.sum(listed.to(tl.int32), 0)
    tl.debug_barrier()
    better = tl.minimum(slots, begin)  # than the bar before the chunk
    if number == 0:
        better = held
    for first in range(0, count, FEW):
        at = first + tl.arange(0, FEW)
        inside = at < count
        rank = tl.load(SCRATCH + at * 3, mask=inside, other=0)
        needed = slots - better + tl.load(SCRATCH + at * 3 + 1, mask=inside, other=0)
        event = tl.load(SCRATCH + at * 3 + 2, mask=inside, other=0)
        beaten = tl.cumsum((fresh[None, :] < rank[:, None]).to(tl.int32), 1)
        until = number * CHUNK + tl.sum((beaten < needed[:, None]).to(tl.int32), 1)
        _tell(event, until, inside, row, MASK, HELD_POSITION, AGE, EXPIRES, ADMITTED, held, length)
