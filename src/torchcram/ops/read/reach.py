"""Who can read what, found on the device: rows by events, an order of events, and lists of events for groups of rows.

Rows come in the order of positions, so those that can read an event are a stretch of them. A tile of events needs the
rows from the first to the last that can read any of it: events that are forgotten at about the same time are put side
by side, in the order of writing, so that few of those rows cannot read the others. A tile of rows needs what any of
them can read: in a long sequence that is a small part of what was ever written, so it is listed.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

NEVER = 1 << 30
"""Position of a row that is padding: no event lasts that long."""
_FEW = 16_384  # events that are put in order in small tiles
_OTHERS = 32  # tiles whose counts are looked at together
_LISTED = 1 << 22  # entries of all lists: 80 MiB
_CHUNK, _COUNTED = 1024, 4096  # events that a program lists, at most, and that it counts at a time
_SURVIVES, _UNREAD = tl.constexpr(62), tl.constexpr(63)  # classes of events; the others are powers of √2
_CLASSES = tl.constexpr(64)


class Reach(NamedTuple):
    """Which rows can read each event, and in which order to take events; all [B, E] int32."""

    first: Tensor
    """The first row that can read it."""
    end: Tensor
    """One after the last; not after the first: none can."""
    order: Tensor
    """All events of a sequence, those next to each other that are read by about the same rows."""

    @property
    def pairs(self) -> Tensor:
        """[B]: rows and events that they can read."""
        return (self.end - self.first).clamp_min(0).sum(1)


class Lists(NamedTuple):
    """What each group of rows can read."""

    events: Tensor
    """[B, groups, E] int32, of which `upto` are given."""
    records: Tensor
    """[B, groups, E, 4] int32: of the rows of the group that can read an event, 16 bits the first and above them how
    many; its time, as two float32; its strength, float32, in powers of 2."""
    upto: Tensor
    """[B, tiles] int32: how many events of its group's list a tile of rows needs; it cannot read those further on."""
    tiles: int
    """Of a group."""


# An operator of its own, which torch.compile takes as it is.
@torch.library.custom_op("torchcram::episodic_reach", mutates_args=())
def reach(at: Tensor, written: Tensor, expires: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`Reach` of rows at [B, R], in order and then `NEVER`, and of events [B, E] in order; all int32, contiguous."""
    (batch, count), total = at.shape, written.shape[1]
    first, end, kind, order = (torch.empty_like(written) for _ in range(4))
    if written.numel() == 0:
        return first, end, order
    tile = 128 if total <= _FEW else 256
    tiles = triton.cdiv(total, tile)
    counts = written.new_empty(batch, tiles, _CLASSES.value)
    with on_device(at):
        _reach[(batch, tiles)](
            *(at, written, expires, first, end, kind, counts, count, total, count.bit_length()), TILE=tile, num_warps=4
        )
        _arrange[(batch, tiles)](kind, counts, order, total, TILE=tile, OTHERS=_OTHERS, num_warps=4)
    return first, end, order


@reach.register_fake
def _(at: Tensor, written: Tensor, expires: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(written), torch.empty_like(written), torch.empty_like(written)


def lists(first: Tensor, end: Tensor, time: Tensor, strength: Tensor, count: int, rows: int) -> Lists:
    """For `count` rows in tiles of `rows`: a list for each tile, or for several where those would be too many."""
    batch, total = first.shape
    tiles = triton.cdiv(count, rows)
    together = 1
    while 2 * together * rows < 1 << 15 and batch * triton.cdiv(tiles, together) * total > _LISTED:
        together *= 2
    groups = triton.cdiv(tiles, together)
    chunk = min(_CHUNK, max(128, 8192 // together))
    events = first.new_empty(batch, groups, total)
    records = first.new_empty(batch, groups, total, 4)
    upto = first.new_empty(batch, tiles)
    with on_device(first):
        _list_live[(batch, groups, triton.cdiv(total, chunk))](
            *(first, end, time, strength, events, records, upto, count, total, tiles),
            ROWS=rows,
            TILES=together,
            CHUNK=chunk,
            COUNTED=_COUNTED,
            num_warps=4,
        )
    return Lists(events, records, upto, together)


@triton.jit
def _reach(AT, WRITTEN, EXPIRES, FIRST, END, KIND, COUNTS, count, total, steps, TILE: tl.constexpr):
    """Count the rows up to where events are written, and to where they expire; and say what class each is of.

    COUNTS [B, tiles, classes]: how many of each class there are in a tile of events.
    """
    batch = tl.program_id(0).to(tl.int64)
    event = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = event < total
    own = batch * total + event
    written = tl.load(WRITTEN + own, mask=inside, other=0)
    expires = tl.load(EXPIRES + own, mask=inside, other=0)
    AT += batch * count
    first, end = tl.zeros((TILE,), tl.int32), tl.zeros((TILE,), tl.int32)
    above_first, above_end = first + count, end + count
    for _ in range(steps):
        middle = (first + above_first) // 2
        searching = first < above_first
        earlier = tl.load(AT + middle, mask=searching, other=0) <= written
        above_first = tl.where(searching & ~earlier, middle, above_first)
        first = tl.where(searching & earlier, middle + 1, first)
        middle = (end + above_end) // 2
        searching = end < above_end
        earlier = tl.load(AT + middle, mask=searching, other=0) <= expires
        above_end = tl.where(searching & ~earlier, middle, above_end)
        end = tl.where(searching & earlier, middle + 1, end)
    follows = tl.load(AT + end, mask=inside & (end < count), other=1 << 30)
    kind = (2 * tl.log2(end.to(tl.float32) + 1)).to(tl.int32)
    kind = tl.where(follows >= 1 << 30, _SURVIVES, kind)
    kind = tl.where(end <= first, _UNREAD, kind)
    tl.store(FIRST + own, first, mask=inside)
    tl.store(END + own, end, mask=inside)
    tl.store(KIND + own, kind, mask=inside)
    classes = tl.arange(0, _CLASSES)
    counted = tl.sum(((kind[:, None] == classes[None, :]) & inside[:, None]).to(tl.int32), 0)
    tl.store(COUNTS + (batch * tl.num_programs(1) + tl.program_id(1)) * _CLASSES + classes, counted)


@triton.jit
def _arrange(KIND, COUNTS, ORDER, total, TILE: tl.constexpr, OTHERS: tl.constexpr):
    """Put each event after all of lower classes and those of its own class that come before it."""
    batch, own, tiles = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    classes = tl.arange(0, _CLASSES)
    every, before = tl.zeros((_CLASSES,), tl.int32), tl.zeros((_CLASSES,), tl.int32)
    for start in range(0, tiles, OTHERS):
        tile = start + tl.arange(0, OTHERS)
        place = (batch * tiles + tile[:, None]) * _CLASSES + classes[None, :]
        counts = tl.load(COUNTS + place, mask=(tile < tiles)[:, None], other=0)
        every += tl.sum(counts, 0)
        before += tl.sum(tl.where((tile < own)[:, None], counts, 0), 0)
    begins = tl.cumsum(every, 0) - every + before
    number = tl.arange(0, TILE)
    event = own * TILE + number
    inside = event < total
    kind = tl.load(KIND + batch * total + event, mask=inside, other=0)
    # Loaded once more, as a row: those of the tile that are compared with each.
    others = tl.load(KIND + batch * total + event, mask=inside, other=-1)
    alike = (kind[:, None] == others[None, :]) & (number[None, :] < number[:, None])
    place = tl.sum(tl.where(kind[:, None] == classes[None, :], begins[None, :], 0), 1) + tl.sum(alike.to(tl.int32), 1)
    tl.store(ORDER + batch * total + place, event, mask=inside)


@triton.jit
def _list_live(
    FIRST,
    END,
    TIME,
    STRENGTH,
    EVENTS,
    RECORDS,
    UPTO,
    count,
    total,
    tiles,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    CHUNK: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """The events of a chunk, in order, that some row of a group can read: after those of all chunks before."""
    batch, group, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    FIRST += batch * total
    END += batch * total
    TIME += batch * total
    STRENGTH += batch * total
    begin = group * TILES * ROWS
    stop = tl.minimum(begin + TILES * ROWS, count)
    before = chunk * CHUNK
    # Later events are first read by later rows: once that is after the group, everything of it has been listed.
    reached = tl.load(FIRST + before - 1, mask=chunk > 0, other=-1)
    if reached >= begin + TILES * ROWS:
        return
    counted = tl.zeros((COUNTED,), tl.int32)
    for start in range(0, before, COUNTED):
        event = start + tl.arange(0, COUNTED)
        first = tl.load(FIRST + event, mask=event < before, other=0)
        end = tl.load(END + event, mask=event < before, other=0)
        counted += _is_live(first, end, begin, stop).to(tl.int32)
    listed = tl.sum(counted, 0)
    event = before + tl.arange(0, CHUNK)
    inside = event < total
    first = tl.load(FIRST + event, mask=inside, other=0)
    end = tl.load(END + event, mask=inside, other=0)
    time = tl.load(TIME + event, mask=inside, other=0)
    strength = tl.load(STRENGTH + event, mask=inside, other=0.0) * 1.4426950408889634
    live = _is_live(first, end, begin, stop)
    place = (batch * tl.num_programs(1) + group) * total + (listed + tl.cumsum(live.to(tl.int32), 0) - 1)
    tl.store(EVENTS + place, event, mask=live)
    from_row = tl.maximum(first - begin, 0)
    stretch = from_row | (tl.minimum(end, stop) - begin - from_row) << 16
    high, low = time.to(tl.int32), (time >> 32).to(tl.int32)
    record = tl.join(tl.join(stretch, low), tl.join(high, strength.to(tl.int32, bitcast=True)))
    field = tl.arange(0, 4)
    tl.store(RECORDS + place[:, None] * 4 + field[None, :], tl.reshape(record, (CHUNK, 4)), mask=live[:, None])
    # A tile needs those that its last row or one before can read; the chunk that has the last of them says how many.
    tile = group * TILES + tl.arange(0, TILES)
    after = (tile + 1) * ROWS
    seen = live[None, :] & (first[None, :] < after[:, None])
    upto = listed + tl.sum(seen.to(tl.int32), 1)
    last = tl.load(FIRST + tl.minimum(before + CHUNK, total) - 1)
    here = (reached < after) & ((last >= after) | (before + CHUNK >= total))
    tl.store(UPTO + batch * tiles + tile, upto, mask=here & (tile < tiles))


@triton.jit
def _is_live(first, end, begin, stop):
    return (first < end) & (first < stop) & (begin < end)
