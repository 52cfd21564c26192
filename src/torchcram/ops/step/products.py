"""The kernels of a step that multiply by weights.

With AHEAD a kernel begins before the one before it has ended: it asks for its weights, which nothing changes, and then
waits for what that one leaves. Nothing that is written in the course of a step is looked at before that.
"""

import triton
import triton.language as tl


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
def _rows(batch, ROWS: tl.constexpr):
    """The sequences of this program, and which of them there are."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    return row, row < batch


@triton.jit
def _real(MASK, row, inside):
    """Which of these have a position now."""
    return tl.load(MASK + row, mask=inside, other=0) != 0


@triton.jit
def _weights(W, begin, column, known, LENGTH: tl.constexpr, DEPTH: tl.constexpr):
    """Some columns of Wᵀ [DEPTH, columns], from one of its rows on."""
    at = begin + tl.arange(0, DEPTH)
    inside = at < LENGTH
    return tl.load(W + column[None, :] * LENGTH + at[:, None], mask=known[None, :] & inside[:, None], other=0.0)


@triton.jit
def _part(total, A, row, taken, begin, w, STEP: tl.constexpr, LENGTH: tl.constexpr, DEPTH: tl.constexpr):
    """What a part of a product's depth adds to it."""
    at = begin + tl.arange(0, DEPTH)
    a = tl.load(A + row[:, None] * STEP + at[None, :], mask=taken[:, None] & (at < LENGTH)[None, :], other=0.0)
    return tl.dot(a.to(w.dtype), w, total, input_precision="ieee")


@triton.jit
def _product(total, A, row, taken, w, W, column, known, STEP: tl.constexpr, LENGTH: tl.constexpr, DEPTH: tl.constexpr):
    """total + A Wᵀ, of the rows taken and the columns known; A's rows are STEP numbers apart. w: its first weights."""
    total = _part(total, A, row, taken, 0, w, STEP, LENGTH, DEPTH)
    for begin in range(DEPTH, LENGTH, DEPTH):
        w = _weights(W, begin, column, known, LENGTH, DEPTH)
        total = _part(total, A, row, taken, begin, w, STEP, LENGTH, DEPTH)
    return total


@triton.jit
def _scale(SQUARES, row, inside, eps, WIDTH: tl.constexpr, GROUPS: tl.constexpr, SOME: tl.constexpr):
    """What x of each row is multiplied by in its norm: SQUARES [B, GROUPS] has parts of |x|²."""
    part = tl.arange(0, SOME)
    mask = inside[:, None] & (part < GROUPS)[None, :]
    square = tl.sum(tl.load(SQUARES + row[:, None] * GROUPS + part[None, :], mask=mask, other=0.0), 1)
    return 1 / tl.sqrt(square / WIDTH + eps)


@triton.jit
def _put(X, SQUARES, x, row, inside, column, WIDTH: tl.constexpr, GROUP: tl.constexpr):
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
    row, inside = _rows(batch, ROWS)
    column = first + tl.arange(0, GROUP)
    if first < WIDTH + MADE:
        w = _weights(WEIGHT, 0, column, column >= 0, WIDTH, DEPTH)
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
        scale = _scale(SQUARES, row, inside, eps, WIDTH, GROUPS, SOME)
        z = tl.zeros((ROWS, GROUP), tl.float32)
        z = _product(z, X, row, inside, w, WEIGHT, column, column >= 0, WIDTH, WIDTH, DEPTH)
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
        expect = _weights(EXPECT, 0, column, column >= 0, RANK, SHALLOW)
        wait_for_last(AHEAD)
        x = tl.load(X + row[:, None] * WIDTH + column[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        norm = tl.load(NORM + column)
        guess = tl.zeros((ROWS, GROUP), tl.float32)
        guess = _product(guess, PREDICTION, row, inside, expect, EXPECT, column, column >= 0, RANK, RANK, SHALLOW)
        scale = _scale(SQUARES, row, inside, eps, WIDTH, GROUPS, SOME)
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
    AHEAD: tl.constexpr,
):
    """AFTER = H + share · gate ⊙ tanh(H Wᵀ + drive); a program more than that takes estimates the quality."""
    let_next_begin(AHEAD)
    first = tl.program_id(0) * GROUP
    row, inside = _rows(batch, ROWS)
    if first < WIDTH:
        column = first + tl.arange(0, GROUP)
        w = _weights(WEIGHT, 0, column, column >= 0, WIDTH, DEPTH)
        wait_for_last(AHEAD)
        total = tl.load(Z + row[:, None] * MADE + DRIVE + column[None, :], mask=inside[:, None], other=0.0)
        log_gap = tl.load(LOG_GAP + row, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(GATE_BIAS + column)[None, :] + tl.load(GATE_WEIGHT + column)[None, :] * log_gap[:, None]
        here = row[:, None] * WIDTH + column[None, :]
        h = tl.load(H + here, mask=inside[:, None], other=0.0).to(tl.float32)
        total = _product(total, H, row, inside, w, WEIGHT, column, column >= 0, WIDTH, WIDTH, DEPTH)
        h += share * tl.sigmoid(gate) * (2 * tl.sigmoid(2 * total) - 1)
        tl.store(AFTER + here, h.to(AFTER.dtype.element_ty), mask=inside[:, None])
    else:
        wait_for_last(AHEAD)
        judged = tl.zeros((ROWS,), tl.float32) + tl.load(SCORE_BIAS)
        for begin in range(0, RANK, JUDGES):
            column = begin + tl.arange(0, JUDGES)
            known = column < RANK
            here = Z + row[:, None] * MADE + QUALITY + column[None, :]
            total = tl.load(here, mask=inside[:, None] & known[None, :], other=0.0)
            score = tl.load(SCORE + column, mask=known, other=0.0)
            judge = _weights(JUDGE, 0, column, known, RANK, SHALLOW)
            total = _product(total, Z + ACTIVE, row, inside, judge, JUDGE, column, known, MADE, RANK, SHALLOW)
            judged += tl.sum(tl.where(total < 0, 0.0, total) * score[None, :], 1)
        tl.store(JUDGED + row, judged, mask=inside)


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
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """All that needs u and the last h: Y, and the next PREDICTION."""
    let_next_begin(AHEAD)
    first = tl.program_id(0) * GROUP
    row, inside = _rows(batch, ROWS)
    column = first + tl.arange(0, GROUP)
    part = tl.where(first < QUERY, 0, 1 + (first - QUERY) // WIDTH)
    total = tl.zeros((ROWS, GROUP), tl.float32)
    w = _weights(WEIGHT, 0, column, column >= 0, WIDTH, DEPTH)
    wait_for_last(AHEAD)
    real = _real(MASK, row, inside)
    for begin in range(0, WIDTH, DEPTH):
        at = begin + tl.arange(0, DEPTH)
        known = at < WIDTH
        if begin > 0:
            w = _weights(WEIGHT, begin, column, column >= 0, WIDTH, DEPTH)
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
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    SHALLOW: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """MIXED = X + context + what is recalled or read; a program more than that says what is in new events' slots."""
    let_next_begin(AHEAD)
    first = tl.program_id(0) * GROUP
    row, inside = _rows(batch, ROWS)
    if first < WIDTH:
        column = first + tl.arange(0, GROUP)
        w = _weights(RECALL, 0, column, column >= 0, RANK, SHALLOW)
        wait_for_last(AHEAD)
        real = _real(MASK, row, inside)
        action = tl.load(TALLY + row, mask=inside, other=0)
        here = row[:, None] * WIDTH + column[None, :]
        total = tl.load(Y + row[:, None] * PROJECTED + column[None, :], mask=inside[:, None], other=0.0)
        total += tl.load(X + here, mask=inside[:, None], other=0.0).to(tl.float32)
        total = tl.where(real[:, None], total, 0.0)
        reads, recalls = action == 1, action == 2
        if tl.sum(recalls.to(tl.int32), 0) > 0:
            total = _product(total, Z + ACTIVE, row, recalls, w, RECALL, column, column >= 0, MADE, RANK, SHALLOW)
        if tl.sum(reads.to(tl.int32), 0) > 0:
            outward = _weights(OUTWARD, 0, column, column >= 0, WIDTH, DEPTH)
            total = _product(total, FOUND, row, reads, outward, OUTWARD, column, column >= 0, WIDTH, WIDTH, DEPTH)
        _put(MIXED, SQUARES, total, row, inside, column, WIDTH, GROUP)
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
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """FED = GELU(norm(X) Wᵀ + bias); WEIGHT has the norm's own weights in it."""
    let_next_begin(AHEAD)
    row, inside = _rows(batch, ROWS)
    column = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    known = column < FEED
    bias = tl.load(BIAS + column, mask=known, other=0.0)
    w = _weights(WEIGHT, 0, column, known, WIDTH, DEPTH)
    wait_for_last(AHEAD)
    scale = _scale(SQUARES, row, inside, eps, WIDTH, GROUPS, SOME)
    z = tl.zeros((ROWS, GROUP), tl.float32)
    z = _product(z, X, row, inside, w, WEIGHT, column, known, WIDTH, WIDTH, DEPTH)
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
    GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """AFTER = X + FED Wᵀ + bias, and 0 for sequences that have no position now."""
    let_next_begin(AHEAD)
    row, inside = _rows(batch, ROWS)
    column = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    w = _weights(WEIGHT, 0, column, column >= 0, FEED, DEPTH)
    wait_for_last(AHEAD)
    real = _real(MASK, row, inside)
    here = row[:, None] * WIDTH + column[None, :]
    total = tl.load(X + here, mask=inside[:, None], other=0.0).to(tl.float32) + tl.load(BIAS + column)[None, :]
    total = _product(total, FED, row, inside, w, WEIGHT, column, column >= 0, FEED, FEED, DEPTH)
    _put(AFTER, SQUARES, tl.where(real[:, None], total, 0.0), row, inside, column, WIDTH, GROUP)
