"""The kernels before the first layer of a step and after its last."""

import triton
import triton.language as tl

from torchcram.ops.step.products import (
    depths,
    joined,
    let_next_begin,
    nothing,
    put,
    scale_of,
    tile_rows,
    times,
    wait_for_last,
    weights,
)


@triton.jit
def begin(
    TOKENS,
    DT,
    MASK,
    POSITION,
    TIME,
    TABLE,
    WEIGHT,
    BIAS,
    FREQUENCIES,
    GAP,
    LOG_GAP,
    REAL,
    NOW_POSITION,
    NOW,
    X,
    SQUARES,
    batch,
    vocabulary,
    unit,
    WIDTH: tl.constexpr,
    WAVES: tl.constexpr,
    SOME: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """X of a token and the gap before it, with parts of |x|²; the first programs say where the sequences stand then.

    It is an ordinary kernel, which waits for all of the step before; only the next may begin before it has ended.
    """
    let_next_begin(EARLY)
    row, inside = tile_rows(batch, ROWS)
    column = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    wave = tl.arange(0, SOME)
    known = wave < WAVES
    real = tl.load(MASK + row, mask=inside, other=0) != 0
    gap = tl.where(real, tl.div_rn(tl.load(DT + row, mask=inside, other=0.0), unit), 0.0)
    more = 1 + gap
    # As exact for the smallest gaps as for others: what is lost in 1 + Δτ is lost in both.
    log_gap = tl.where(more == 1, gap, tl.log(more) * (gap / tl.where(more == 1, 1.0, more - 1)))
    if tl.program_id(0) == 0:
        position = tl.load(POSITION + row, mask=inside, other=0)
        time = tl.load(TIME + row, mask=inside, other=0.0)
        tl.store(GAP + row, gap, mask=inside)
        tl.store(LOG_GAP + row, log_gap, mask=inside)
        tl.store(REAL + row, real, mask=inside)
        tl.store(NOW_POSITION + 2 * row, position, mask=inside)
        tl.store(NOW_POSITION + 2 * row + 1, position + real.to(tl.int64), mask=inside)
        tl.store(NOW + row, time + gap.to(tl.float64), mask=inside)
    token = tl.load(TOKENS + row, mask=inside, other=0)
    there = inside & (token >= 0) & (token < vocabulary)
    # A token that is none gives no number, rather than whatever is in memory there.
    own = tl.load(TABLE + token[:, None] * WIDTH + column[None, :], mask=there[:, None], other=float("nan"))
    # The weights' rows: of log(1 + Δτ), of the sines, of the cosines.
    here = WEIGHT + column[None, :] * (1 + 2 * WAVES) + wave[:, None]
    phase = gap[:, None] * tl.load(FREQUENCIES + wave, mask=known, other=0.0).to(tl.float32)[None, :]
    sines = tl.load(here + 1, mask=known[:, None], other=0.0)
    cosines = tl.load(here + 1 + WAVES, mask=known[:, None], other=0.0)
    # What encodes the gap is rounded as the weights are, and what the map gives as well.
    seen = log_gap.to(sines.dtype).to(tl.float32)
    first = tl.load(WEIGHT + column * (1 + 2 * WAVES)).to(tl.float32)
    x = seen[:, None] * first[None, :] + tl.load(BIAS + column).to(tl.float32)[None, :]
    x = tl.dot(tl.sin(phase).to(sines.dtype), sines, x, input_precision="ieee")
    x = tl.dot(tl.cos(phase).to(cosines.dtype), cosines, x, input_precision="ieee")
    x = x.to(X.dtype.element_ty).to(tl.float32) + own.to(tl.float32)
    put(X, SQUARES, x, row, inside, column, WIDTH, GROUP)


@triton.jit
def _go_on(
    REAL,
    NOW_POSITION,
    NOW,
    TALLY,
    POSITION,
    TIME,
    COUNTS,
    batch,
    LAYERS: tl.constexpr,
    STACK: tl.constexpr,
    MANY: tl.constexpr,
):
    """The clock of all sequences goes on, and what the step did is counted."""
    layer = tl.arange(0, STACK)
    positions = tl.full((), 0, tl.int64)
    reading = tl.full((), 0, tl.int64)
    dense = tl.full((), 0, tl.int64)
    reads = tl.zeros((STACK,), tl.int64)
    pairs = tl.zeros((STACK,), tl.int64)
    writes = tl.zeros((STACK,), tl.int64)
    for begin in range(0, batch, MANY):
        row = begin + tl.arange(0, MANY)
        inside = row < batch
        real = (tl.load(REAL + row, mask=inside, other=0) != 0).to(tl.int64)
        position = tl.load(NOW_POSITION + 2 * row, mask=inside, other=0)
        tl.store(POSITION + row, position + real, mask=inside)
        tl.store(TIME + row, tl.load(NOW + row, mask=inside, other=0.0), mask=inside)
        here = TALLY + layer[:, None] * 3 * batch + row[None, :]
        mask = (layer < LAYERS)[:, None] & inside[None, :]
        read = (tl.load(here, mask=mask, other=0) == 1).to(tl.int64)
        positions += tl.sum(real, 0)
        reading += tl.sum(tl.max(read, 0), 0)
        dense += tl.sum((position + 1) * real, 0)
        reads += tl.sum(read, 1)
        writes += tl.sum(tl.load(here + batch, mask=mask, other=0), 1)
        pairs += tl.sum(tl.load(here + 2 * batch, mask=mask, other=0), 1)
    tl.store(COUNTS, tl.load(COUNTS) + positions)
    tl.store(COUNTS + 1, tl.load(COUNTS + 1) + reading)
    tl.store(COUNTS + 2, tl.load(COUNTS + 2) + dense)
    here, known = COUNTS + 3 + layer, layer < LAYERS
    tl.store(here, tl.load(here, mask=known, other=0) + reads, mask=known)
    tl.store(here + LAYERS, tl.load(here + LAYERS, mask=known, other=0) + pairs, mask=known)
    tl.store(here + 2 * LAYERS, tl.load(here + 2 * LAYERS, mask=known, other=0) + writes, mask=known)


@triton.jit
def finish(
    X,
    SQUARES,
    NORM,
    WEIGHT,
    BIAS,
    REAL,
    NOW_POSITION,
    NOW,
    TALLY,
    POSITION,
    TIME,
    COUNTS,
    OUT,
    batch,
    eps,
    size,
    WIDTH: tl.constexpr,
    LAYERS: tl.constexpr,
    STACK: tl.constexpr,
    MANY: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    DEPTH: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """OUT = norm(X) Wᵀ + bias, 0 for sequences that have no position now; a program more than that takes counts."""
    let_next_begin(AHEAD)
    first = tl.program_id(0) * GROUP
    row, inside = tile_rows(batch, ROWS)
    if first < size:
        column = first + tl.arange(0, GROUP)
        known = column < size
        bias = tl.load(BIAS + column, mask=known, other=0.0).to(tl.float32)
        w = weights(WEIGHT, 0, column, known, WIDTH, DEPTH, PARTS)
        total = nothing(row, w)
        wait_for_last(AHEAD)
        real = tl.load(REAL + row, mask=inside, other=0) != 0
        scale = scale_of(SQUARES, row, inside, eps, WIDTH, GROUPS, SOME)
        for begin in range(0, WIDTH, DEPTH):
            at = begin + depths(w.shape[0], w.shape[2])
            if begin > 0:
                w = weights(WEIGHT, begin, column, known, WIDTH, DEPTH, PARTS)
            mask = inside[None, :, None] & (at < WIDTH)
            x = tl.load(X + row[None, :, None] * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
            norm = tl.load(NORM + at, mask=at < WIDTH, other=0.0).to(tl.float32)
            total = times(total, x * norm, w)
        out = tl.where(real[:, None], joined(total) * scale[:, None] + bias[None, :], 0.0)
        here = OUT + row[:, None] * size + column[None, :]
        tl.store(here, out.to(OUT.dtype.element_ty), mask=inside[:, None] & known[None, :])
    else:
        wait_for_last(AHEAD)
        if tl.program_id(1) == 0:
            _go_on(REAL, NOW_POSITION, NOW, TALLY, POSITION, TIME, COUNTS, batch, LAYERS, STACK, MANY)
