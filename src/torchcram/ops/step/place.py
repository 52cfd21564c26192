"""Where a new event would go."""

import triton
import triton.language as tl

from torchcram.ops.records import KNOWN as _OFF

_KNOWN = tl.constexpr(_OFF)


@triton.jit
def find_place(row, HELD, KNOWN, POSITION, slots, largest, TILE: tl.constexpr):
    """The new event's place: a free one, or that of the worst, of which the newest is the first to go.

    How good the worst is, its slot, and how many events there are.
    """
    far = row.to(tl.int64)
    worst = tl.full((), float("inf"), tl.float32)
    newest = tl.full((), -3, tl.int64)
    slot = tl.full((), 0, tl.int32)
    count = tl.full((), 0, tl.int32)
    for begin in range(0, slots, TILE):
        at = begin + tl.arange(0, TILE)
        inside = at < slots
        position = tl.load(POSITION + far * slots + at, mask=inside, other=-1)
        held = tl.load(HELD + far * slots + at, mask=inside, other=0.0).to(tl.float32)
        known = tl.load(KNOWN + far * slots + at, mask=inside, other=0) != 0
        held = (held - tl.where(known, _KNOWN, 0.0)).to(HELD.dtype.element_ty).to(tl.float32)
        held = tl.where(held == held, tl.minimum(tl.maximum(held, -largest), largest), -largest)
        held = tl.where(position < 0, float("-inf"), held)
        held = tl.where(inside, held, float("inf"))
        low = tl.min(held, 0)
        alike = inside & (held == low)
        latest = tl.max(tl.where(alike, position, -2), 0)
        place = tl.min(tl.where(alike & (position == latest), at, slots), 0)
        goes = (low < worst) | ((low == worst) & (latest > newest))
        worst, newest, slot = tl.where(goes, low, worst), tl.where(goes, latest, newest), tl.where(goes, place, slot)
        count += tl.sum((position >= 0).to(tl.int32), 0)
    return worst, slot, count
