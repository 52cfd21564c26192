"""The kernels of a step that multiply by weights.

With AHEAD a kernel begins before the one before it has ended: it asks for its weights, which nothing changes, and then
waits for what that one leaves. Nothing that is written in the course of a step is looked at before that.
"""

import triton
import triton.language as tl

from torchcram.ops.step.place import find_place


@triton.jit
def let_next_begin(AHEAD: tl.constexpr):
    """The next kernel may begin once all programs of this one have come here."""
    if AHEAD:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_last(AHEAD: tl.constexpr):
    """From here on all is there that kernels before this one have made. Every program has to come here."""
    if AHEAD:
        tl.extra.cuda.gdc_wait()


@triton.jit
def tile_rows(batch, ROWS: tl.constexpr):
    """The sequences of this program, and which of them there are."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    return row, row < batch


@triton.jit
def _real(MASK, row, inside):
    """Which of these have a position now."""
    return tl.load(MASK + row, mask=inside, other=0) != 0


@triton.jit
def weights(W, begin, column, known, LENGTH: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr):
    """Some rows of W from one of its columns on: [parts, rows, DEPTH / parts], of which each warp multiplies some.

    Its parts are PARTS, or fewer where they would be too small to multiply.
    """
    LONG: tl.constexpr = DEPTH // PARTS if DEPTH // PARTS > 16 else 16
    at = begin + depths(DEPTH // LONG, LONG)
    return tl.load(W + column[None, :, None] * LENGTH + at, mask=known[None, :, None] & (at < LENGTH), other=0.0)


@triton.jit
def depths(PARTS: tl.constexpr, LONG: tl.constexpr):
    """[PARTS, 1, LONG]: numbers from 0 on."""
    return tl.arange(0, PARTS)[:, None, None] * LONG + tl.arange(0, LONG)[None, None, :]


@triton.jit
def nothing(row, w):
    """What a product with w begins with: a warp that has a part of the depth to itself needs no other's numbers."""
    return tl.zeros((w.shape[0], w.shape[1], row.shape[0]), tl.float32)


@triton.jit
def times(total, a, w):
    """total + w aᵀ, by parts of the depth. The few sequences are its columns: a tile can be half as wide as high."""
    return tl.dot(w, tl.permute(a.to(w.dtype), (0, 2, 1)), total, input_precision="ieee")


@triton.jit
def joined(total):
    """[sequences, columns] of a product, from its parts."""
    return tl.trans(tl.sum(total, 0))


@triton.jit
def _part(total, A, row, taken, begin, w, STEP: tl.constexpr, LENGTH: tl.constexpr):
    """What a part of a product's depth adds to it."""
    at = begin + depths(w.shape[0], w.shape[2])
    a = tl.load(A + row[None, :, None] * STEP + at, mask=taken[None, :, None] & (at < LENGTH), other=0.0)
    return times(total, a, w)


@triton.jit
def _product(A, row, taken, w, W, column, known, STEP: tl.constexpr, LENGTH: tl.constexpr):
    """A Wᵀ, of the rows taken and the columns known; A's rows are STEP numbers apart. w: its first weights."""
    DEPTH: tl.constexpr = w.shape[0] * w.shape[2]
    total = _part(nothing(row, w), A, row, taken, 0, w, STEP, LENGTH)
    for begin in range(DEPTH, LENGTH, DEPTH):
        w = weights(W, begin, column, known, LENGTH, DEPTH, w.shape[0])
        total = _part(total, A, row, taken, begin, w, STEP, LENGTH)
    return joined(total)


@triton.jit
def scale_of(SQUARES, row, inside, eps, WIDTH: tl.constexpr, GROUPS: tl.constexpr, SOME: tl.constexpr):
    """What x of each row is multiplied by in its norm: SQUARES [B, GROUPS] has parts of |x|²."""
    part = tl.arange(0, SOME)
    mask = inside[:, None] & (part < GROUPS)[None, :]
    square = tl.sum(tl.load(SQUARES + row[:, None] * GROUPS + part[None, :], mask=mask, other=0.0), 1)
    return 1 / tl.sqrt(square / WIDTH + eps)


@triton.jit
def put(X, SQUARES, x, row, inside, column, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """Store a group of columns of X, and its part of |x|² as it was stored."""
    x = x.to(X.dtype.element_ty)
    tl.store(X + row[:, None] * WIDTH + column[None, :], x, mask=inside[:, None])
    x = x.to(tl.float32)
    tl.store(SQUARES + row * (WIDTH // GROUP) + tl.program_id(0), tl.sum(x * x, 1), mask=inside)


@triton.jit
def enter(
    X,
    SQUARES,
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
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    DEPTH: tl.constexpr,
    SHALLOW: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """All that needs only u: the next STATE, which H begins with, Z of the others, and how badly u was predicted.

    WEIGHT has the norm's own weights in it.
    """
    let_next_begin(AHEAD)
    first = tl.program_id(0) * GROUP
    row, inside = tile_rows(batch, ROWS)
    column = first + tl.arange(0, GROUP)
    if first < WIDTH + MADE:
        w = weights(WEIGHT, 0, column, column >= 0, WIDTH, DEPTH, PARTS)
        wait_for_last(AHEAD)
        real = _real(MASK, row, inside)
        mine = inside[:, None] & (first < WIDTH)
        here = row[:, None] * WIDTH + column[None, :]
        x = tl.load(X + here, mask=mine, other=0.0).to(tl.float32)
        norm = tl.load(NORM + column, mask=column < WIDTH, other=0.0)
        rate = tl.load(RATE + column, mask=column < WIDTH, other=0.0)
        gap = tl.load(GAP + row, mask=inside, other=0.0).to(tl.float32)
        state = tl.load(STATE + here, mask=mine, other=0.0)
        bias = tl.load(BIAS + column)
        scale = scale_of(SQUARES, row, inside, eps, WIDTH, GROUPS, SOME)
        z = _product(X, row, inside, w, WEIGHT, column, column >= 0, WIDTH, WIDTH)
        z = tl.where(real[:, None], z * scale[:, None] + bias[None, :], 0.0)
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
        expect = weights(EXPECT, 0, column, column >= 0, RANK, SHALLOW, PARTS)
        wait_for_last(AHEAD)
        x = tl.load(X + row[:, None] * WIDTH + column[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        norm = tl.load(NORM + column)
        guess = _product(PREDICTION, row, inside, expect, EXPECT, column, column >= 0, RANK, RANK)
        scale = scale_of(SQUARES, row, inside, eps, WIDTH, GROUPS, SOME)
        miss = x * norm[None, :] * scale[:, None] - guess
        own = row * (WIDTH // GROUP) + tl.program_id(0) - (WIDTH + MADE) // GROUP
        tl.store(MISSED + own, tl.sum(miss * miss, 1), mask=inside)


@triton.jit
def euler(
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
    HELD,
    KNOWN,
    POSITION,
    WORST,
    SLOT,
    COUNT,
    batch,
    share,
    slots,
    largest,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    MADE: tl.constexpr,
    DRIVE: tl.constexpr,
    ACTIVE: tl.constexpr,
    QUALITY: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    SHALLOW: tl.constexpr,
    JUDGES: tl.constexpr,
    TILE: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """AFTER = H + share · gate ⊙ tanh(H Wᵀ + drive); a program more than that takes estimates the quality.

    Others after it find a place for what is new, one for each sequence: nothing else waits for them here.
    """
    let_next_begin(AHEAD)
    first = tl.program_id(0) * GROUP
    row, inside = tile_rows(batch, ROWS)
    if first < WIDTH:
        column = first + tl.arange(0, GROUP)
        w = weights(WEIGHT, 0, column, column >= 0, WIDTH, DEPTH, PARTS)
        wait_for_last(AHEAD)
        total = tl.load(Z + row[:, None] * MADE + DRIVE + column[None, :], mask=inside[:, None], other=0.0)
        log_gap = tl.load(LOG_GAP + row, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(GATE_BIAS + column)[None, :] + tl.load(GATE_WEIGHT + column)[None, :] * log_gap[:, None]
        here = row[:, None] * WIDTH + column[None, :]
        h = tl.load(H + here, mask=inside[:, None], other=0.0).to(tl.float32)
        total += _product(H, row, inside, w, WEIGHT, column, column >= 0, WIDTH, WIDTH)
        h += share * tl.sigmoid(gate) * (2 * tl.sigmoid(2 * total) - 1)
        tl.store(AFTER + here, h.to(AFTER.dtype.element_ty), mask=inside[:, None])
    elif first < WIDTH + GROUP:
        judged = tl.zeros((ROWS,), tl.float32) + tl.load(SCORE_BIAS)
        unit = tl.arange(0, JUDGES)
        judge = weights(JUDGE, 0, unit, unit < RANK, RANK, SHALLOW, PARTS)
        wait_for_last(AHEAD)
        for begin in range(0, RANK, JUDGES):
            column = begin + tl.arange(0, JUDGES)
            known = column < RANK
            if begin > 0:
                judge = weights(JUDGE, 0, column, known, RANK, SHALLOW, PARTS)
            here = Z + row[:, None] * MADE + QUALITY + column[None, :]
            total = tl.load(here, mask=inside[:, None] & known[None, :], other=0.0)
            score = tl.load(SCORE + column, mask=known, other=0.0)
            total += _product(Z + ACTIVE, row, inside, judge, JUDGE, column, known, MADE, RANK)
            judged += tl.sum(tl.where(total < 0, 0.0, total) * score[None, :], 1)
        tl.store(JUDGED + row, judged, mask=inside)
    else:
        # What is held was last changed in the step before, which has ended (see `FusedLayer.step`): so there is no need
        # to wait for it.
        sequence = (tl.program_id(0) - WIDTH // GROUP - 1) * tl.num_programs(1) + tl.program_id(1)
        held = tl.minimum(sequence, batch - 1)
        worst, slot, count = find_place(held, HELD, KNOWN, POSITION, slots, largest, TILE)
        wait_for_last(AHEAD)
        tl.store(WORST + sequence, worst, mask=sequence < batch)
        tl.store(SLOT + sequence, slot, mask=sequence < batch)
        tl.store(COUNT + sequence, count, mask=sequence < batch)


@triton.jit
def project(
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
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """All that needs u and the last h: Y, and the next PREDICTION."""
    let_next_begin(AHEAD)
    first = tl.program_id(0) * GROUP
    row, inside = tile_rows(batch, ROWS)
    column = first + tl.arange(0, GROUP)
    part = tl.where(first < QUERY, 0, 1 + (first - QUERY) // WIDTH)
    w = weights(WEIGHT, 0, column, column >= 0, WIDTH, DEPTH, PARTS)
    made = nothing(row, w)
    wait_for_last(AHEAD)
    real = _real(MASK, row, inside)
    for begin in range(0, WIDTH, DEPTH):
        at = begin + depths(w.shape[0], w.shape[2])
        known = at < WIDTH
        if begin > 0:
            w = weights(WEIGHT, begin, column, column >= 0, WIDTH, DEPTH, PARTS)
        here = row[None, :, None] * WIDTH + at
        mask = inside[None, :, None] & known
        h = tl.load(H + here, mask=mask, other=0.0).to(tl.float32)
        u = tl.load(U + here, mask=mask & (part > 0), other=0.0).to(tl.float32)
        mix = tl.load(MIX + part * WIDTH + at, mask=known, other=0.0)
        made = times(made, u + mix * h, w)
    total = joined(made)
    if (first >= WIDTH) & (first < PRIORITY):
        column -= WIDTH
        here = PREDICTION + row[:, None] * RANK + column[None, :]
        tl.store(here, total.to(PREDICTION.dtype.element_ty), mask=real[:, None] & (column < RANK)[None, :])
    else:
        tl.store(Y + row[:, None] * MADE + column[None, :], total, mask=inside[:, None])


@triton.jit
def mix(
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
    SQUARES,
    batch,
    slots,
    WIDTH: tl.constexpr,
    RANK: tl.constexpr,
    MADE: tl.constexpr,
    ACTIVE: tl.constexpr,
    PROJECTED: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    SHALLOW: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """MIXED = X + context + what is recalled or read; a program more than that says what is in new events' slots."""
    let_next_begin(AHEAD)
    first = tl.program_id(0) * GROUP
    row, inside = tile_rows(batch, ROWS)
    if first < WIDTH:
        column = first + tl.arange(0, GROUP)
        w = weights(RECALL, 0, column, column >= 0, RANK, SHALLOW, PARTS)
        wait_for_last(AHEAD)
        real = _real(MASK, row, inside)
        action = tl.load(TALLY + row, mask=inside, other=0)
        here = row[:, None] * WIDTH + column[None, :]
        total = tl.load(Y + row[:, None] * PROJECTED + column[None, :], mask=inside[:, None], other=0.0)
        total += tl.load(X + here, mask=inside[:, None], other=0.0).to(tl.float32)
        total = tl.where(real[:, None], total, 0.0)
        reads, recalls = action == 1, action == 2
        if tl.sum(recalls.to(tl.int32), 0) > 0:
            total += _product(Z + ACTIVE, row, recalls, w, RECALL, column, column >= 0, MADE, RANK)
        if tl.sum(reads.to(tl.int32), 0) > 0:
            outward = weights(OUTWARD, 0, column, column >= 0, WIDTH, DEPTH, PARTS)
            total += _product(FOUND, row, reads, outward, OUTWARD, column, column >= 0, WIDTH, WIDTH)
        put(MIXED, SQUARES, total, row, inside, column, WIDTH, GROUP)
    else:
        wait_for_last(AHEAD)
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
def widen(
    X,
    SQUARES,
    WEIGHT,
    BIAS,
    FED,
    batch,
    eps,
    WIDTH: tl.constexpr,
    FEED: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """FED = GELU(norm(X) Wᵀ + bias); WEIGHT has the norm's own weights in it."""
    let_next_begin(AHEAD)
    row, inside = tile_rows(batch, ROWS)
    column = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    known = column < FEED
    bias = tl.load(BIAS + column, mask=known, other=0.0)
    w = weights(WEIGHT, 0, column, known, WIDTH, DEPTH, PARTS)
    wait_for_last(AHEAD)
    scale = scale_of(SQUARES, row, inside, eps, WIDTH, GROUPS, SOME)
    z = _product(X, row, inside, w, WEIGHT, column, known, WIDTH, WIDTH)
    z = z * scale[:, None] + bias[None, :]
    z = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    here = FED + row[:, None] * FEED + column[None, :]
    tl.store(here, z.to(FED.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit
def narrow(
    FED,
    WEIGHT,
    BIAS,
    X,
    MASK,
    AFTER,
    SQUARES,
    batch,
    WIDTH: tl.constexpr,
    FEED: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """AFTER = X + FED Wᵀ + bias, and 0 for sequences that have no position now."""
    let_next_begin(AHEAD)
    row, inside = tile_rows(batch, ROWS)
    column = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    w = weights(WEIGHT, 0, column, column >= 0, FEED, DEPTH, PARTS)
    wait_for_last(AHEAD)
    real = _real(MASK, row, inside)
    here = row[:, None] * WIDTH + column[None, :]
    total = tl.load(X + here, mask=inside[:, None], other=0.0).to(tl.float32) + tl.load(BIAS + column)[None, :]
    total += _product(FED, row, inside, w, WEIGHT, column, column >= 0, FEED, FEED)
    put(AFTER, SQUARES, tl.where(real[:, None], total, 0.0), row, inside, column, WIDTH, GROUP)
