"""The kernel of a step that decides who reads, reads, and writes what is new to the place found for it."""

import triton
import triton.language as tl

from torchcram.ops.step.products import let_next_begin, wait_for_last

_LOWEST = tl.constexpr(-3.4e38)


@triton.jit
def _router(TOKEN, SCALARS, OUT, OUT_BIAS, LEAD, HIDDEN: tl.constexpr, UNITS: tl.constexpr):
    """What the router makes of the token, and its weights."""
    unit = tl.arange(0, UNITS)
    known = unit < HIDDEN
    return (
        tl.load(TOKEN + unit, mask=known, other=0.0),
        tl.load(SCALARS + unit, mask=known, other=0.0),
        tl.load(SCALARS + HIDDEN + unit, mask=known, other=0.0),
        tl.load(SCALARS + 2 * HIDDEN + unit, mask=known, other=0.0),
        tl.load(SCALARS + 3 * HIDDEN + unit, mask=known, other=0.0),
        tl.load(OUT + unit, mask=known, other=0.0),
        tl.load(OUT + HIDDEN + unit, mask=known, other=0.0),
        tl.load(OUT + 2 * HIDDEN + unit, mask=known, other=0.0),
        tl.load(OUT_BIAS),
        tl.load(OUT_BIAS + 1),
        tl.load(OUT_BIAS + 2),
        tl.load(LEAD),
    )


@triton.jit
def _action(router, log_gap, norm, quality, surprise, threshold):
    """The action with the largest logit, the first of equals; see `Router.forward`."""
    token, by_gap, by_norm, by_quality, by_surprise, to_none, to_read, to_recall, none, read, recall, lead = router
    hidden = token + log_gap * by_gap + norm * by_norm + quality * by_quality + tl.log(1 + surprise) * by_surprise
    hidden = hidden * tl.sigmoid(hidden)
    lead = lead * (quality - threshold)
    none += tl.sum(hidden * to_none, 0)
    read += tl.sum(hidden * to_read, 0) - lead
    recall += tl.sum(hidden * to_recall, 0) + lead
    # NaN counts as the largest, as it does to torch.
    action = tl.where((read > none) | ((read != read) & (none == none)), 1, 0)
    best = tl.where(action == 1, read, none)
    return tl.where((recall > best) | ((recall != recall) & (best == best)), 2, action)


@triton.jit
def read(
    H,
    Z,
    MISSED,
    JUDGED,
    Y,
    LOG_GAP,
    MASK,
    NOW_POSITION,
    NOW,
    SCALARS,
    OUT,
    OUT_BIAS,
    LEAD,
    RECENCY,
    KEY,
    VALUE,
    HELD,
    TIME,
    POSITION,
    MASS,
    SCORES,
    FOUND,
    NEW,
    WORST,
    SLOT,
    COUNT,
    TALLY,
    batch,
    slots,
    threshold,
    largest,
    scale,
    per_log,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    HIDDEN: tl.constexpr,
    UNITS: tl.constexpr,
    MADE: tl.constexpr,
    ROUTER: tl.constexpr,
    PRIORITY: tl.constexpr,
    PROJECTED: tl.constexpr,
    OWN: tl.constexpr,
    QUERY: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    TRAINED: tl.constexpr,
    FEW: tl.constexpr,
    MANY: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """What one head of a sequence reads, if the router has it read, and then what it writes, if it is let in.

    All heads find out the same about the action. What is known of the slots must stay as it is: other heads may
    be looking at it.
    """
    let_next_begin(AHEAD)
    row, head = tl.program_id(0), tl.program_id(1)
    far = row.to(tl.int64)
    wait_for_last(AHEAD)
    real = tl.load(MASK + row) != 0
    worst, slot, count = tl.load(WORST + row), tl.load(SLOT + row), tl.load(COUNT + row)
    channel, part, own = tl.arange(0, WIDE), tl.arange(0, SOME), tl.arange(0, SIZE)
    h = tl.load(H + row * WIDTH + channel, mask=channel < WIDTH, other=0.0).to(tl.float32)
    missed = tl.load(MISSED + row * GROUPS + part, mask=part < GROUPS, other=0.0)
    judged, log_gap = tl.load(JUDGED + row), tl.load(LOG_GAP + row).to(tl.float32)
    router = _router(Z + row * MADE + ROUTER, SCALARS, OUT, OUT_BIAS, LEAD, HIDDEN, UNITS)
    mine = Y + row * PROJECTED + QUERY + head * SIZE + own
    query, recency = tl.load(mine) * scale, tl.load(RECENCY + head)
    now, now_position = tl.load(NOW + row), tl.load(NOW_POSITION + 2 * row)
    new = tl.load(Z + row * MADE + PRIORITY) + tl.load(Y + row * PROJECTED + OWN)
    new = new.to(HELD.dtype.element_ty).to(tl.float32)
    offered = tl.where(new == new, tl.minimum(tl.maximum(new, -largest), largest), -largest)
    admitted = real & (offered > worst)

    norm, surprise = tl.sqrt(tl.sum(h * h, 0) / WIDTH), tl.sum(missed, 0) / WIDTH
    action = _action(router, log_gap, norm, tl.sigmoid(judged), surprise, threshold)
    action = tl.where(real, action, 0)
    reads = action == 1
    if head == 0:
        tl.store(TALLY + row, action.to(tl.int64))
        tl.store(TALLY + batch + row, admitted.to(tl.int64))
        tl.store(TALLY + 2 * batch + row, tl.where(reads, count, 0).to(tl.int64))
        tl.store(NEW + row, new)

    KEY += far * slots * WIDTH + head * SIZE
    VALUE += far * slots * WIDTH + head * SIZE
    if reads:
        if TRAINED > 0:
            sharper = tl.log(tl.maximum(now_position, TRAINED).to(tl.float32)) * per_log
            query *= sharper * sharper
        SCORES += (far * HEADS + head) * slots
        # Each place of a tile has a highest score, a sum of weights and one of values of its own, joined at the end.
        top = tl.full((FEW,), float("-inf"), tl.float32)
        norms = tl.zeros((FEW,), tl.float32)
        sums = tl.zeros((FEW, SIZE), tl.float32)
        for begin in tl.range(0, slots, FEW, num_stages=3):
            at = begin + tl.arange(0, FEW)
            inside = at < slots
            there = at[:, None] * WIDTH + own[None, :]
            key = tl.load(KEY + there, mask=inside[:, None], other=0.0).to(tl.float32)
            value = tl.load(VALUE + there, mask=inside[:, None], other=0.0).to(tl.float32)
            held = tl.load(HELD + far * slots + at, mask=inside, other=0.0).to(tl.float32)
            age = (now - tl.load(TIME + far * slots + at, mask=inside, other=0.0)).to(tl.float32)
            readable = tl.load(POSITION + far * slots + at, mask=inside, other=-1) >= 0
            score = tl.sum(key * query[None, :], 1) + recency * tl.log(1 + tl.maximum(age, 0.0))
            score += tl.minimum(held, 0.0) - tl.log(1 + tl.exp(-tl.abs(held)))
            score = tl.where(readable, score, float("-inf"))
            tl.store(SCORES + at, score, mask=inside)
            higher = tl.maximum(top, score)
            safe = tl.maximum(higher, _LOWEST)
            before, weight = tl.exp(top - safe), tl.exp(score - safe)
            norms = norms * before + weight
            sums = sums * before[:, None] + weight[:, None] * value
            top = higher
        highest = tl.maximum(tl.max(top, 0), _LOWEST)
        share = tl.exp(top - highest)
        total = tl.sum(norms * share, 0)
        total = 1 / tl.where(total == 0, 1.0, total)
        found = tl.sum(sums * share[:, None], 0) * total
        tl.debug_barrier()
        tl.store(FOUND + row * WIDTH + head * SIZE + own, found.to(FOUND.dtype.element_ty))
        for begin in range(0, slots, MANY):
            at = begin + tl.arange(0, MANY)
            score = tl.load(SCORES + at, mask=at < slots, other=float("-inf"))
            weight = tl.exp(score - highest) * total / HEADS
            tl.atomic_add(MASS + far * slots + at, weight, mask=score != float("-inf"), sem="relaxed")
        tl.debug_barrier()
    if admitted:
        tl.store(KEY + slot * WIDTH + own, tl.load(mine + WIDTH).to(KEY.dtype.element_ty))
        tl.store(VALUE + slot * WIDTH + own, tl.load(mine + 2 * WIDTH).to(VALUE.dtype.element_ty))
