"""A step through a layer as GPU kernels, each as much as can be done before all programs must have finished.

With few sequences a product takes as long as its weights take to arrive. So each program makes a few columns of one for
all sequences of a tile, from weights that lie side by side; and it asks for all that it can before it waits for any.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device
from torchcram.ops.step import GROUP, Clock, Held, Scratch, Sizes, Weights

_KNOWN = tl.constexpr(8.0)  # as `memory.episodic.KNOWN`
_LOWEST = tl.constexpr(-3.4e38)
_DEPTH = 512  # bytes of a row that are multiplied at a time
_TILE = 1024  # slots looked at together for the worst
_BYTES = 16 << 10  # of keys or values that are read together


def step(x: Tensor, clock: Clock, weights: Weights, held: Held, scratch: Scratch, sizes: Sizes) -> Tensor:
    batch, width, rank = len(x), sizes.width, sizes.rank
    rows = 16 if batch <= 16 else 32
    tiles, groups = triton.cdiv(batch, rows), width // GROUP
    enters, projects = sizes.entering, sizes.projected
    drive, active, quality, router, priority, entering = (begin - width for begin in enters[1:])
    own = {"ROWS": rows, "GROUP": GROUP}
    deep, shallow, wide = (min(_DEPTH // x.element_size(), _power(size)) for size in (width, rank, sizes.feed))
    size, slots = width // sizes.heads, sizes.slots
    out = torch.empty_like(x)
    with on_device(x):
        _enter[(enters[-1] // GROUP + groups, tiles)](
            x,
            weights.norm,
            weights.enter,
            weights.enter_bias,
            clock.mask,
            clock.gap,
            weights.rate,
            weights.expect,
            held.working,
            held.prediction,
            scratch.u,
            scratch.h,
            scratch.made,
            scratch.missed,
            batch,
            sizes.eps[0],
            WIDTH=width,
            RANK=rank,
            MADE=entering,
            ACTIVE=active,
            QUALITY=quality,
            DEPTH=deep,
            SHALLOW=shallow,
            **own,
        )
        for number in range(sizes.steps):
            _euler[(groups + (number == 0), tiles)](
                scratch.h[number % 2],
                scratch.h[(number + 1) % 2],
                weights.recurrent,
                weights.gate_weight,
                weights.gate_bias,
                clock.log_gap,
                scratch.made,
                weights.judge,
                weights.score,
                weights.score_bias,
                scratch.judged,
                batch,
                1 / sizes.steps,
                WIDTH=width,
                RANK=rank,
                MADE=entering,
                DRIVE=drive,
                ACTIVE=active,
                QUALITY=quality,
                DEPTH=deep,
                SHALLOW=shallow,
                JUDGES=min(64, _power(rank)),
                **own,
            )
        h = scratch.h[sizes.steps % 2]
        _project[(projects[-1] // GROUP, tiles)](
            h,
            scratch.u,
            weights.mix,
            weights.project,
            clock.mask,
            held.prediction,
            scratch.projected,
            batch,
            WIDTH=width,
            RANK=rank,
            PRIORITY=projects[2],
            QUERY=projects[3],
            MADE=projects[-1],
            DEPTH=deep,
            **own,
        )
        _read[(batch, sizes.heads)](
            h,
            scratch.made,
            scratch.missed,
            scratch.judged,
            scratch.projected,
            clock.log_gap,
            clock.mask,
            clock.position,
            clock.time,
            weights.scalars,
            weights.out,
            weights.out_bias,
            weights.lead,
            weights.recency,
            held.key,
            held.value,
            held.priority,
            held.known,
            held.time,
            held.position,
            held.mass,
            scratch.scores,
            scratch.found,
            scratch.priority,
            scratch.slot,
            scratch.tally,
            batch,
            slots,
            sizes.threshold,
            torch.finfo(held.priority.dtype).max,
            1 / math.sqrt(size),
            1.0 if sizes.trained_length is None else 1 / math.log(sizes.trained_length),
            WIDTH=width,
            WIDE=_power(width),
            GROUPS=groups,
            SOME=_power(groups),
            HIDDEN=sizes.hidden,
            UNITS=_power(sizes.hidden),
            MADE=entering,
            ROUTER=router,
            PRIORITY=priority,
            PROJECTED=projects[-1],
            OWN=projects[2],
            QUERY=projects[3],
            HEADS=sizes.heads,
            SIZE=size,
            TRAINED=sizes.trained_length or 0,
            TILE=min(_TILE, _power(slots)),
            FEW=min(_BYTES // x.element_size() // size, _power(slots)),
            num_warps=8,
        )
        _mix[(groups + 1, tiles)](
            x,
            scratch.projected,
            scratch.made,
            weights.recall,
            scratch.found,
            weights.outward,
            clock.mask,
            clock.position,
            clock.time,
            scratch.tally,
            scratch.slot,
            scratch.priority,
            held.priority,
            held.known,
            held.time,
            held.position,
            held.mass,
            scratch.x,
            batch,
            slots,
            WIDTH=width,
            RANK=rank,
            MADE=entering,
            ACTIVE=active,
            PROJECTED=projects[-1],
            DEPTH=deep,
            SHALLOW=shallow,
            **own,
        )
        _widen[(triton.cdiv(sizes.feed, GROUP), tiles)](
            scratch.x,
            weights.feed_norm,
            weights.widen,
            weights.widen_bias,
            scratch.feed,
            batch,
            sizes.eps[1],
            WIDTH=width,
            FEED=sizes.feed,
            DEPTH=deep,
            **own,
        )
        _narrow[(groups, tiles)](
            scratch.feed,
            weights.narrow,
            weights.narrow_bias,
            scratch.x,
            clock.mask,
            out,
            batch,
            WIDTH=width,
            FEED=sizes.feed,
            DEPTH=wide,
            **own,
        )
    return out


def _power(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


@triton.jit
def _rows(batch, MASK, ROWS: tl.constexpr):
    """The sequences of this program, which of them there are, and which have a position now."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < batch
    return row, inside, tl.load(MASK + row, mask=inside, other=0) != 0


@triton.jit
def _product(total, A, row, taken, W, column, known, STEP: tl.constexpr, LENGTH: tl.constexpr, DEPTH: tl.constexpr):
    """total + A Wᵀ, of the rows taken and the columns known; A's rows are STEP numbers apart."""
    for begin in range(0, LENGTH, DEPTH):
        at = begin + tl.arange(0, DEPTH)
        inside = at < LENGTH
        w = tl.load(W + column[None, :] * LENGTH + at[:, None], mask=known[None, :] & inside[:, None], other=0.0)
        a = tl.load(A + row[:, None] * STEP + at[None, :], mask=taken[:, None] & inside[None, :], other=0.0)
        total = tl.dot(a.to(w.dtype), w, total, input_precision="ieee")
    return total


@triton.jit
def _normed_product(X, NORM, row, inside, W, column, known, eps, WIDTH: tl.constexpr, DEPTH: tl.constexpr):
    """norm(X) Wᵀ, and what X · NORM is multiplied by to get norm(X)."""
    total = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    square = tl.zeros((row.shape[0],), tl.float32)
    for begin in range(0, WIDTH, DEPTH):
        at = begin + tl.arange(0, DEPTH)
        there = at < WIDTH
        w = tl.load(W + column[None, :] * WIDTH + at[:, None], mask=known[None, :] & there[:, None], other=0.0)
        x = tl.load(X + row[:, None] * WIDTH + at[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        norm = tl.load(NORM + at, mask=there, other=0.0)
        x = x.to(tl.float32)
        square += tl.sum(x * x, 1)
        total = tl.dot((x * norm[None, :]).to(w.dtype), w, total, input_precision="ieee")
    scale = 1 / tl.sqrt(square / WIDTH + eps)
    return total * scale[:, None], scale


@triton.jit
def _enter(
    X,
    NORM,
    WEIGHT,
    BIAS,
    MASK,
    GAP,
    RATE,
    EXPECT,
    STATE,
    PREDICTION,
    U,
    H,
    Z,
    MISSED,
    batch,
    eps,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    MADE: tl.constexpr,
    ACTIVE: tl.constexpr,
    QUALITY: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    SHALLOW: tl.constexpr,
):
    """All that needs only u: the next STATE, which H begins with, Z of the others, and how badly u was predicted."""
    first = tl.program_id(0) * GROUP
    row, inside, real = _rows(batch, MASK, ROWS)
    column = first + tl.arange(0, GROUP)
    if first < WIDTH + MADE:
        mine = inside[:, None] & (first < WIDTH)
        here = row[:, None] * WIDTH + column[None, :]
        x = tl.load(X + here, mask=mine, other=0.0).to(tl.float32)
        norm = tl.load(NORM + column, mask=column < WIDTH, other=0.0)
        rate = tl.load(RATE + column, mask=column < WIDTH, other=0.0)
        gap = tl.load(GAP + row, mask=inside, other=0.0).to(tl.float32)
        state = tl.load(STATE + here, mask=mine, other=0.0)
        bias = tl.load(BIAS + column)
        z, scale = _normed_product(X, NORM, row, inside, WEIGHT, column, column >= 0, eps, WIDTH, DEPTH)
        z = tl.where(real[:, None], z + bias[None, :], 0.0)
        if first < WIDTH:
            u = tl.where(real[:, None], x * norm[None, :] * scale[:, None], 0.0)
            tl.store(U + here, u.to(U.dtype.element_ty), mask=mine)
            state = tl.exp(-rate[None, :] * gap[:, None]) * state + z
            tl.store(STATE + here, state, mask=mine)
            tl.store(H + here, state.to(H.dtype.element_ty), mask=mine)
        else:
            column -= WIDTH
            z = tl.where((column >= ACTIVE)[None, :] & (column < QUALITY)[None, :] & (z < 0), 0.0, z)
            tl.store(Z + row[:, None] * MADE + column[None, :], z, mask=inside[:, None])
    else:
        column -= WIDTH + MADE
        x = tl.load(X + row[:, None] * WIDTH + column[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        norm = tl.load(NORM + column)
        guess = tl.zeros((ROWS, GROUP), tl.float32)
        guess = _product(guess, PREDICTION, row, inside, EXPECT, column, column >= 0, RANK, RANK, SHALLOW)
        square = tl.zeros((ROWS,), tl.float32)
        for begin in range(0, WIDTH, DEPTH):
            at = begin + tl.arange(0, DEPTH)
            mask = inside[:, None] & (at < WIDTH)[None, :]
            part = tl.load(X + row[:, None] * WIDTH + at[None, :], mask=mask, other=0.0).to(tl.float32)
            square += tl.sum(part * part, 1)
        miss = x * norm[None, :] / tl.sqrt(square / WIDTH + eps)[:, None] - guess
        own = row * (WIDTH // GROUP) + tl.program_id(0) - (WIDTH + MADE) // GROUP
        tl.store(MISSED + own, tl.sum(miss * miss, 1), mask=inside)


@triton.jit
def _euler(
    H,
    AFTER,
    WEIGHT,
    GATE_WEIGHT,
    GATE_BIAS,
    LOG_GAP,
    Z,
    JUDGE,
    SCORE,
    SCORE_BIAS,
    JUDGED,
    batch,
    share,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    MADE: tl.constexpr,
    DRIVE: tl.constexpr,
    ACTIVE: tl.constexpr,
    QUALITY: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    SHALLOW: tl.constexpr,
    JUDGES: tl.constexpr,
):
    """AFTER = H + share · gate ⊙ tanh(H Wᵀ + drive); a program more than that takes estimates the quality."""
    first = tl.program_id(0) * GROUP
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < batch
    if first < WIDTH:
        column = first + tl.arange(0, GROUP)
        total = tl.load(Z + row[:, None] * MADE + DRIVE + column[None, :], mask=inside[:, None], other=0.0)
        log_gap = tl.load(LOG_GAP + row, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(GATE_BIAS + column)[None, :] + tl.load(GATE_WEIGHT + column)[None, :] * log_gap[:, None]
        here = row[:, None] * WIDTH + column[None, :]
        h = tl.load(H + here, mask=inside[:, None], other=0.0).to(tl.float32)
        total = _product(total, H, row, inside, WEIGHT, column, column >= 0, WIDTH, WIDTH, DEPTH)
        h += share * tl.sigmoid(gate) * (2 * tl.sigmoid(2 * total) - 1)
        tl.store(AFTER + here, h.to(AFTER.dtype.element_ty), mask=inside[:, None])
    else:
        judged = tl.zeros((ROWS,), tl.float32) + tl.load(SCORE_BIAS)
        for begin in range(0, RANK, JUDGES):
            column = begin + tl.arange(0, JUDGES)
            known = column < RANK
            here = Z + row[:, None] * MADE + QUALITY + column[None, :]
            total = tl.load(here, mask=inside[:, None] & known[None, :], other=0.0)
            score = tl.load(SCORE + column, mask=known, other=0.0)
            total = _product(total, Z + ACTIVE, row, inside, JUDGE, column, known, MADE, RANK, SHALLOW)
            judged += tl.sum(tl.where(total < 0, 0.0, total) * score[None, :], 1)
        tl.store(JUDGED + row, judged, mask=inside)


@triton.jit
def _project(
    H,
    U,
    MIX,
    WEIGHT,
    MASK,
    PREDICTION,
    Y,
    batch,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    PRIORITY: tl.constexpr,
    QUERY: tl.constexpr,
    MADE: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """All that needs u and the last h: Y, and the next PREDICTION."""
    first = tl.program_id(0) * GROUP
    row, inside, real = _rows(batch, MASK, ROWS)
    column = first + tl.arange(0, GROUP)
    part = tl.where(first < QUERY, 0, 1 + (first - QUERY) // WIDTH)
    total = tl.zeros((ROWS, GROUP), tl.float32)
    for begin in range(0, WIDTH, DEPTH):
        at = begin + tl.arange(0, DEPTH)
        known = at < WIDTH
        w = tl.load(WEIGHT + column[None, :] * WIDTH + at[:, None], mask=known[:, None], other=0.0)
        here = row[:, None] * WIDTH + at[None, :]
        mask = inside[:, None] & known[None, :]
        h = tl.load(H + here, mask=mask, other=0.0).to(tl.float32)
        u = tl.load(U + here, mask=mask & (part > 0), other=0.0).to(tl.float32)
        mix = tl.load(MIX + part * WIDTH + at, mask=known, other=0.0)
        total = tl.dot((u + mix[None, :] * h).to(w.dtype), w, total, input_precision="ieee")
    if (first >= WIDTH) & (first < PRIORITY):
        column -= WIDTH
        here = PREDICTION + row[:, None] * RANK + column[None, :]
        tl.store(here, total.to(PREDICTION.dtype.element_ty), mask=real[:, None] & (column < RANK)[None, :])
    else:
        tl.store(Y + row[:, None] * MADE + column[None, :], total, mask=inside[:, None])


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
def _read(
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
    KNOWN,
    TIME,
    POSITION,
    MASS,
    SCORES,
    FOUND,
    NEW,
    SLOT,
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
    TILE: tl.constexpr,
    FEW: tl.constexpr,
):
    """What one head of a sequence reads, if the router has it read, and then what it writes, if it is let in.

    All heads find out the same about action and slot. What is known of the slots must stay as it is: other heads may
    be looking at it.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    far = row.to(tl.int64)
    real = tl.load(MASK + row) != 0
    channel, part, own = tl.arange(0, WIDE), tl.arange(0, SOME), tl.arange(0, SIZE)
    h = tl.load(H + row * WIDTH + channel, mask=channel < WIDTH, other=0.0).to(tl.float32)
    missed = tl.load(MISSED + row * GROUPS + part, mask=part < GROUPS, other=0.0)
    judged, log_gap = tl.load(JUDGED + row), tl.load(LOG_GAP + row).to(tl.float32)
    router = _router(Z + row * MADE + ROUTER, SCALARS, OUT, OUT_BIAS, LEAD, HIDDEN, UNITS)
    mine = Y + row * PROJECTED + QUERY + head * SIZE + own
    query, recency = tl.load(mine) * scale, tl.load(RECENCY + head)
    now, now_position = tl.load(NOW + row), tl.load(NOW_POSITION + 2 * row)
    new = tl.load(Z + row * MADE + PRIORITY) + tl.load(Y + row * PROJECTED + OWN)

    # The new event's place: a free one, or that of the worst, of which the newest is the first to go.
    new = new.to(HELD.dtype.element_ty).to(tl.float32)
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
        tl.store(SLOT + row, slot)
        tl.store(NEW + row, new)

    KEY += far * slots * WIDTH + head * SIZE
    VALUE += far * slots * WIDTH + head * SIZE
    if reads:
        if TRAINED > 0:
            sharper = tl.log(tl.maximum(now_position, TRAINED).to(tl.float32)) * per_log
            query *= sharper * sharper
        SCORES += (far * HEADS + head) * slots
        top = tl.full((FEW,), _LOWEST, tl.float32)
        for begin in tl.range(0, slots, FEW, num_stages=4):
            at = begin + tl.arange(0, FEW)
            inside = at < slots
            there = at[:, None] * WIDTH + own[None, :]
            key = tl.load(KEY + there, mask=inside[:, None], other=0.0).to(tl.float32)
            held = tl.load(HELD + far * slots + at, mask=inside, other=0.0).to(tl.float32)
            age = (now - tl.load(TIME + far * slots + at, mask=inside, other=0.0)).to(tl.float32)
            readable = tl.load(POSITION + far * slots + at, mask=inside, other=-1) >= 0
            score = tl.sum(key * query[None, :], 1) + recency * tl.log(1 + tl.maximum(age, 0.0))
            score += tl.minimum(held, 0.0) - tl.log(1 + tl.exp(-tl.abs(held)))
            score = tl.where(readable, score, float("-inf"))
            tl.store(SCORES + at, score, mask=inside)
            top = tl.maximum(top, score)
        highest = tl.max(top, 0)
        tl.debug_barrier()
        sums = tl.zeros((FEW, SIZE), tl.float32)
        norms = tl.zeros((FEW,), tl.float32)
        for begin in tl.range(0, slots, FEW, num_stages=4):
            at = begin + tl.arange(0, FEW)
            inside = at < slots
            weight = tl.exp(tl.load(SCORES + at, mask=inside, other=float("-inf")) - highest)
            there = at[:, None] * WIDTH + own[None, :]
            value = tl.load(VALUE + there, mask=inside[:, None], other=0.0).to(tl.float32)
            sums += weight[:, None] * value
            norms += weight
        total = tl.sum(norms, 0)
        total = 1 / tl.where(total == 0, 1.0, total)
        found = tl.sum(sums, 0) * total
        tl.store(FOUND + row * WIDTH + head * SIZE + own, found.to(FOUND.dtype.element_ty))
        for begin in range(0, slots, FEW):
            at = begin + tl.arange(0, FEW)
            score = tl.load(SCORES + at, mask=at < slots, other=float("-inf"))
            weight = tl.exp(score - highest) * total / HEADS
            tl.atomic_add(MASS + far * slots + at, weight, mask=score != float("-inf"), sem="relaxed")
        tl.debug_barrier()
    if admitted:
        tl.store(KEY + slot * WIDTH + own, tl.load(mine + WIDTH).to(KEY.dtype.element_ty))
        tl.store(VALUE + slot * WIDTH + own, tl.load(mine + 2 * WIDTH).to(VALUE.dtype.element_ty))


@triton.jit
def _mix(
    X,
    Y,
    Z,
    RECALL,
    FOUND,
    OUTWARD,
    MASK,
    NOW_POSITION,
    NOW,
    TALLY,
    SLOT,
    NEW,
    HELD,
    KNOWN,
    TIME,
    POSITION,
    MASS,
    MIXED,
    batch,
    slots,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    MADE: tl.constexpr,
    ACTIVE: tl.constexpr,
    PROJECTED: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    SHALLOW: tl.constexpr,
):
    """MIXED = X + context + what is recalled or read; a program more than that says what is in new events' slots."""
    first = tl.program_id(0) * GROUP
    row, inside, real = _rows(batch, MASK, ROWS)
    if first < WIDTH:
        column = first + tl.arange(0, GROUP)
        action = tl.load(TALLY + row, mask=inside, other=0)
        here = row[:, None] * WIDTH + column[None, :]
        total = tl.load(Y + row[:, None] * PROJECTED + column[None, :], mask=inside[:, None], other=0.0)
        total += tl.load(X + here, mask=inside[:, None], other=0.0).to(tl.float32)
        total = tl.where(real[:, None], total, 0.0)
        reads, recalls = action == 1, action == 2
        if tl.sum(recalls.to(tl.int32), 0) > 0:
            total = _product(total, Z + ACTIVE, row, recalls, RECALL, column, column >= 0, MADE, RANK, SHALLOW)
        if tl.sum(reads.to(tl.int32), 0) > 0:
            total = _product(total, FOUND, row, reads, OUTWARD, column, column >= 0, WIDTH, WIDTH, DEPTH)
        tl.store(MIXED + here, total.to(MIXED.dtype.element_ty), mask=inside[:, None])
    else:
        admitted = tl.load(TALLY + batch + row, mask=inside, other=0) != 0
        at = row.to(tl.int64) * slots + tl.load(SLOT + row, mask=inside, other=0)
        new = tl.load(NEW + row, mask=inside, other=0.0)
        now = tl.load(NOW + row, mask=inside, other=0.0)
        position = tl.load(NOW_POSITION + 2 * row, mask=inside, other=0)
        tl.store(HELD + at, new.to(HELD.dtype.element_ty), mask=admitted)
        tl.store(KNOWN + at, at < 0, mask=admitted)
        tl.store(TIME + at, now, mask=admitted)
        tl.store(POSITION + at, position, mask=admitted)
        tl.store(MASS + at, tl.zeros((ROWS,), MASS.dtype.element_ty), mask=admitted)


@triton.jit
def _widen(
    X,
    NORM,
    WEIGHT,
    BIAS,
    FED,
    batch,
    eps,
    WIDTH: tl.constexpr,
    FEED: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """FED = GELU(norm(X) Wᵀ + bias)."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < batch
    column = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    known = column < FEED
    bias = tl.load(BIAS + column, mask=known, other=0.0)
    z, _ = _normed_product(X, NORM, row, inside, WEIGHT, column, known, eps, WIDTH, DEPTH)
    z += bias[None, :]
    z = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    here = FED + row[:, None] * FEED + column[None, :]
    tl.store(here, z.to(FED.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit
def _narrow(
    FED,
    WEIGHT,
    BIAS,
    X,
    MASK,
    AFTER,
    batch,
    WIDTH: tl.constexpr,
    FEED: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """AFTER = X + FED Wᵀ + bias, and 0 for sequences that have no position now."""
    row, inside, real = _rows(batch, MASK, ROWS)
    column = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    here = row[:, None] * WIDTH + column[None, :]
    total = tl.load(X + here, mask=inside[:, None], other=0.0).to(tl.float32) + tl.load(BIAS + column)[None, :]
    total = _product(total, FED, row, inside, WEIGHT, column, column >= 0, FEED, FEED, DEPTH)
    total = tl.where(real[:, None], total, 0.0)
    tl.store(AFTER + here, total.to(AFTER.dtype.element_ty), mask=inside[:, None])
