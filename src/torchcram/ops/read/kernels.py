"""The read's kernels: scores never leave the chip, and the backward pass recomputes them.

Programs that have a tile of rows go through the events their list names, and programs that have a tile of events go
through the rows that can read any of them. What a row cannot read scores `_HIDDEN`, so that its weight is
exactly 0.
"""

import triton
import triton.language as tl

from torchcram.ops.records import BONUS

_LOG2E = tl.constexpr(1.4426950408889634)
_BONUS = tl.constexpr(BONUS * 1.4426950408889634)
_HIDDEN = tl.constexpr(-1e30)
_LOWEST = tl.constexpr(-1e29)  # of all that can be read, and far above what is hidden


@triton.jit
def _load(X, batch, count, heads, head, index, inside, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Some entries of one head of X [B, X, H, d], as [entries, WIDTH]; 0 outside."""
    column = tl.arange(0, WIDTH)
    place = ((batch * count + index[:, None]).to(tl.int64) * heads + head) * SIZE + column[None, :]
    return tl.load(X + place, mask=inside[:, None] & (column < SIZE)[None, :], other=0.0)


@triton.jit
def _store(X, x, batch, count, heads, head, index, inside, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    place = ((batch * count + index[:, None]).to(tl.int64) * heads + head) * SIZE + column[None, :]
    tl.store(X + place, x.to(X.dtype.element_ty), mask=inside[:, None] & (column < SIZE)[None, :])


@triton.jit
def _halves(both):
    """Two int32 that have been packed into one int64, the first below."""
    return both.to(tl.int32), (both >> 32).to(tl.int32)


@triton.jit
def _floats(both):
    """Two float32 that have been packed into one int64."""
    first, second = _halves(both)
    return first.to(tl.float32, bitcast=True), second.to(tl.float32, bitcast=True)


@triton.jit
def _asked(TARGET, batch, count, row, known, POINTED: tl.constexpr):
    """The event that each row is thought to ask for."""
    target = tl.full(row.shape, -1, tl.int32)
    if POINTED:
        target = tl.load(TARGET + batch * count + row, mask=known, other=-1)
    return target


@triton.jit
def _bias(readable, target, row_high, row_low, event, high, low, strength, POINTED: tl.constexpr):
    """What is added to the scores of all heads, in powers of 2, and log2(1 + age).

    Rows and events are given as [rows, 1] and [1, events], or the other way round.
    """
    strong = strength * _LOG2E
    if POINTED:
        strong += tl.where(event == target, _BONUS, 0.0)
    age = (row_high - high) + (row_low - low)
    return tl.where(readable, strong, _HIDDEN), tl.log2(1.0 + tl.maximum(age, 0.0))


@triton.jit
def _listed(LIST, EVENT_TIME, STRENGTH, batch, total, place, inside):
    """Some entries of a list: the events, which rows of the group can read them, their times, and their strengths."""
    event, stretch = _halves(tl.load(LIST + place, mask=inside, other=0))
    own = batch * total + event
    high, low = _floats(tl.load(EVENT_TIME + own, mask=inside, other=0))
    strength = tl.load(STRENGTH + own, mask=inside, other=0.0)
    return event, stretch & 0xFFFF, stretch >> 16, high, low, strength


@triton.jit
def _ordered(ORDER, FIRST, END, EVENT_TIME, STRENGTH, batch, total, place, inside):
    """Some events in their order: the events, which rows can read them, their times, and their strengths."""
    event = tl.load(ORDER + batch * total + place, mask=inside, other=0)
    own = batch * total + event
    first = tl.load(FIRST + own, mask=inside, other=0)
    end = tl.load(END + own, mask=inside, other=0)
    high, low = _floats(tl.load(EVENT_TIME + own, mask=inside, other=0))
    strength = tl.load(STRENGTH + own, mask=inside, other=0.0)
    return event, first, end, high, low, strength


@triton.jit
def _read_forward(
    Q,
    K,
    V,
    STRENGTH,
    RECENCY,
    TARGET,
    ROW_TIME,
    EVENT_TIME,
    LIST,
    UPTO,
    OUT,
    LOG_TOTAL,
    count,
    total,
    heads,
    groups,
    scale,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EVENTS: tl.constexpr,
    TILES: tl.constexpr,
    POINTED: tl.constexpr,
    PRECISION: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """What a tile of rows finds in a part of what it can read; all of that, if WHOLE."""
    # The last rows have most to read: their programs begin first.
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    row = tile * ROWS + tl.arange(0, ROWS)
    known = row < count
    target = _asked(TARGET, batch, count, row, known, POINTED)
    row_high, row_low = _floats(tl.load(ROW_TIME + batch * count + row, mask=known, other=0))
    of_group = tile % TILES * ROWS + tl.arange(0, ROWS)
    q = _load(Q, batch, count, heads, head, row, known, SIZE, WIDTH)
    recency = tl.load(RECENCY + head)
    top = tl.full((ROWS,), _LOWEST, tl.float32)
    norm = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    LIST += (batch * groups + tile // TILES).to(tl.int64) * total
    begin, upto = _events_of(UPTO + batch * tl.num_programs(1) + tile, EVENTS)
    for start in range(begin, upto, EVENTS):
        place = start + tl.arange(0, EVENTS)
        inside = place < upto
        event, first, end, high, low, strength = _listed(LIST, EVENT_TIME, STRENGTH, batch, total, place, inside)
        k = _load(K, batch, total, heads, head, event, inside, SIZE, WIDTH)
        bias, logs = _bias(
            (first[None, :] <= of_group[:, None]) & (of_group[:, None] < end[None, :]),
            target[:, None],
            row_high[:, None],
            row_low[:, None],
            event[None, :],
            high[None, :],
            low[None, :],
            strength[None, :],
            POINTED,
        )
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * _LOG2E) + (bias + recency * logs)
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        v = _load(V, batch, total, heads, head, event, inside, SIZE, WIDTH)
        found = found * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        norm = norm * shrink + tl.sum(weights, 1)
        top = higher
    part = _part_of(batch, heads)
    _finish(OUT, LOG_TOTAL, found, norm, top, part, count, heads, head, row, known, SIZE, WIDTH, WHOLE)


@triton.jit
def _events_of(UPTO, EVENTS: tl.constexpr):
    """Of a list up to so many, the stretch that is this program's."""
    upto = tl.load(UPTO)
    each = tl.cdiv(tl.cdiv(upto, tl.num_programs(2)), EVENTS) * EVENTS
    begin = tl.minimum(tl.program_id(2) * each, upto)
    return begin, tl.minimum(begin + each, upto)


@triton.jit
def _part_of(batch, heads):
    """A sequence's number in what is kept of all parts, one after the other."""
    return tl.program_id(2) * (tl.num_programs(0) // heads) + batch


@triton.jit
def _finish(
    OUT,
    LOG_TOTAL,
    found,
    norm,
    top,
    batch,
    count,
    heads,
    head,
    row,
    known,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Store what rows found, and the log2 of their weights' sum: of none 0 or, not WHOLE, that of next to nothing."""
    filled = norm > 0
    safe = tl.where(filled, norm, 1.0)
    _store(OUT, found / safe[:, None], batch, count, heads, head, row, known, SIZE, WIDTH)
    log_total = tl.where(filled, top + tl.log2(safe), 0.0 if WHOLE else _HIDDEN)
    tl.store(LOG_TOTAL + (batch * heads + head) * count + row, log_total, mask=known)


@triton.jit
def _read_join(
    PARTS,
    LOGS,
    OUT,
    LOG_TOTAL,
    count,
    heads,
    parts,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What a tile of rows finds in all parts, PARTS [parts, B, R, H, d] and LOGS [parts, B, H, R]."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    batches = tl.num_programs(0) // heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    known = row < count
    top = tl.full((ROWS,), _LOWEST, tl.float32)
    norm = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    for part in range(parts):
        own = part * batches + batch
        logs = tl.load(LOGS + (own * heads + head) * count + row, mask=known, other=_HIDDEN)
        higher = tl.maximum(top, logs)
        shrink, weight = tl.exp2(top - higher), tl.exp2(logs - higher)
        more = _load(PARTS, own, count, heads, head, row, known, SIZE, WIDTH)
        found = found * shrink[:, None] + weight[:, None] * more
        norm = norm * shrink + weight
        top = higher
    _finish(OUT, LOG_TOTAL, found, norm, top, batch, count, heads, head, row, known, SIZE, WIDTH, True)


@triton.jit
def _rows_of(first, end, part, parts, ROWS: tl.constexpr):
    """The rows that one of `parts` goes through, of those that can read any of a tile of events."""
    read = first < end
    stop = tl.max(tl.where(read, end, 0), 0)
    # Not beyond the end where none can: a loop looks ahead, and a start that overflows would lie before everything.
    begin = tl.minimum(tl.min(tl.where(read, first, 2147483647), 0), stop)
    each = tl.cdiv(tl.cdiv(tl.maximum(stop - begin, 0), parts), ROWS) * ROWS
    begin += part * each
    return begin, tl.minimum(begin + each, stop)


@triton.jit
def _read_mass(
    Q,
    K,
    STRENGTH,
    RECENCY,
    TARGET,
    ROW_TIME,
    EVENT_TIME,
    FIRST,
    END,
    ORDER,
    LOG_TOTAL,
    MASS,
    count,
    total,
    heads,
    scale,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EVENTS: tl.constexpr,
    POINTED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What each event received from a part of the rows, MASS [B, parts, E]. Heads share all but their products."""
    batch, part, parts = tl.program_id(0), tl.program_id(2), tl.num_programs(2)
    place = tl.program_id(1) * EVENTS + tl.arange(0, EVENTS)
    inside = place < total
    event, first, end, high, low, strength = _ordered(
        ORDER, FIRST, END, EVENT_TIME, STRENGTH, batch, total, place, inside
    )
    begin, stop = _rows_of(first, end, part, parts, ROWS)
    until = tl.minimum(end, stop)  # rows after the part are another's
    mass = tl.zeros((EVENTS, ROWS), tl.float32)
    for start in range(begin, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        known = row < stop
        target = _asked(TARGET, batch, count, row, known, POINTED)
        row_high, row_low = _floats(tl.load(ROW_TIME + batch * count + row, mask=known, other=0))
        bias, logs = _bias(
            (first[:, None] <= row[None, :]) & (row[None, :] < until[:, None]),
            target[None, :],
            row_high[None, :],
            row_low[None, :],
            event[:, None],
            high[:, None],
            low[:, None],
            strength[:, None],
            POINTED,
        )
        for head in range(heads):
            k = _load(K, batch, total, heads, head, event, inside, SIZE, WIDTH)
            q = _load(Q, batch, count, heads, head, row, known, SIZE, WIDTH)
            log_total = tl.load(LOG_TOTAL + (batch * heads + head) * count + row, mask=known, other=0.0)
            recency = tl.load(RECENCY + head)
            scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * _LOG2E)
            mass += tl.exp2(scores + (recency * logs + (bias - log_total[None, :])))
    tl.store(MASS + (batch * parts + part) * total + event, tl.sum(mass, 1) / heads, mask=inside)


@triton.jit
def _read_backward_rows(
    Q,
    K,
    V,
    STRENGTH,
    RECENCY,
    TARGET,
    ROW_TIME,
    EVENT_TIME,
    LIST,
    UPTO,
    GRAD,
    TOTALS,
    GRAD_Q,
    count,
    total,
    heads,
    groups,
    scale,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EVENTS: tl.constexpr,
    TILES: tl.constexpr,
    POINTED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of a tile of queries from a part of what they can read, GRAD_Q [parts, B, R, H, d]."""
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    row = tile * ROWS + tl.arange(0, ROWS)
    known = row < count
    target = _asked(TARGET, batch, count, row, known, POINTED)
    row_high, row_low = _floats(tl.load(ROW_TIME + batch * count + row, mask=known, other=0))
    of_group = tile % TILES * ROWS + tl.arange(0, ROWS)
    q = _load(Q, batch, count, heads, head, row, known, SIZE, WIDTH)
    grad = _load(GRAD, batch, count, heads, head, row, known, SIZE, WIDTH)
    totals = tl.load(TOTALS + (batch * heads + head) * count + row, mask=known, other=0)
    log_total, inner = _floats(totals)
    recency = tl.load(RECENCY + head)
    grad_q = tl.zeros((ROWS, WIDTH), tl.float32)
    LIST += (batch * groups + tile // TILES).to(tl.int64) * total
    begin, upto = _events_of(UPTO + batch * tl.num_programs(1) + tile, EVENTS)
    for start in range(begin, upto, EVENTS):
        place = start + tl.arange(0, EVENTS)
        inside = place < upto
        event, first, end, high, low, strength = _listed(LIST, EVENT_TIME, STRENGTH, batch, total, place, inside)
        k = _load(K, batch, total, heads, head, event, inside, SIZE, WIDTH)
        v = _load(V, batch, total, heads, head, event, inside, SIZE, WIDTH)
        bias, logs = _bias(
            (first[None, :] <= of_group[:, None]) & (of_group[:, None] < end[None, :]),
            target[:, None],
            row_high[:, None],
            row_low[:, None],
            event[None, :],
            high[None, :],
            low[None, :],
            strength[None, :],
            POINTED,
        )
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * _LOG2E) + (bias + recency * logs)
        weights = tl.exp2(scores - log_total[:, None])
        slope = weights * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - inner[:, None])
        grad_q += tl.dot(slope.to(k.dtype), k, input_precision=PRECISION)
    _store(GRAD_Q, grad_q * scale, _part_of(batch, heads), count, heads, head, row, known, SIZE, WIDTH)


@triton.jit
def _read_backward_events(
    Q,
    K,
    V,
    STRENGTH,
    RECENCY,
    TARGET,
    ROW_TIME,
    EVENT_TIME,
    FIRST,
    END,
    ORDER,
    GRAD,
    TOTALS,
    GRAD_K,
    GRAD_V,
    GRAD_STRENGTH,
    GRAD_RECENCY,
    count,
    total,
    heads,
    scale,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EVENTS: tl.constexpr,
    POINTED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients from a part of the rows; each has the parts as its first dimension.

    Scores are [events, rows] here: so they are what the products that follow begin with, as they are.
    """
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    part, parts = tl.program_id(2), tl.num_programs(2)
    place = tl.program_id(1) * EVENTS + tl.arange(0, EVENTS)
    inside = place < total
    event, first, end, high, low, strength = _ordered(
        ORDER, FIRST, END, EVENT_TIME, STRENGTH, batch, total, place, inside
    )
    begin, stop = _rows_of(first, end, part, parts, ROWS)
    until = tl.minimum(end, stop)  # rows after the part are another's
    k = _load(K, batch, total, heads, head, event, inside, SIZE, WIDTH)
    v = _load(V, batch, total, heads, head, event, inside, SIZE, WIDTH)
    recency = tl.load(RECENCY + head)
    grad_k = tl.zeros((EVENTS, WIDTH), tl.float32)
    grad_v = tl.zeros((EVENTS, WIDTH), tl.float32)
    grad_strength = tl.zeros((EVENTS,), tl.float32)
    grad_recency = tl.zeros((EVENTS,), tl.float32)
    for start in range(begin, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        known = row < stop
        target = _asked(TARGET, batch, count, row, known, POINTED)
        row_high, row_low = _floats(tl.load(ROW_TIME + batch * count + row, mask=known, other=0))
        q = _load(Q, batch, count, heads, head, row, known, SIZE, WIDTH)
        grad = _load(GRAD, batch, count, heads, head, row, known, SIZE, WIDTH)
        totals = tl.load(TOTALS + (batch * heads + head) * count + row, mask=known, other=0)
        log_total, inner = _floats(totals)
        bias, logs = _bias(
            (first[:, None] <= row[None, :]) & (row[None, :] < until[:, None]),
            target[None, :],
            row_high[None, :],
            row_low[None, :],
            event[:, None],
            high[:, None],
            low[:, None],
            strength[:, None],
            POINTED,
        )
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * _LOG2E)
        weights = tl.exp2(scores + (recency * logs + (bias - log_total[None, :])))
        grad_v += tl.dot(weights.to(grad.dtype), grad, input_precision=PRECISION)
        slope = weights * (tl.dot(v, tl.trans(grad), input_precision=PRECISION) - inner[None, :])
        grad_k += tl.dot(slope.to(q.dtype), q, input_precision=PRECISION)
        grad_strength += tl.sum(slope, 1)
        grad_recency += tl.sum(slope * logs, 1)
    batches = tl.num_programs(0) // heads
    _store(GRAD_K, grad_k * scale, part * batches + batch, total, heads, head, event, inside, SIZE, WIDTH)
    _store(GRAD_V, grad_v, part * batches + batch, total, heads, head, event, inside, SIZE, WIDTH)
    own = part * tl.num_programs(0) + tl.program_id(0)
    tl.store(GRAD_STRENGTH + own.to(tl.int64) * total + event, grad_strength, mask=inside)
    # log2 to the natural logarithm, once for all.
    tl.store(GRAD_RECENCY + own * tl.num_programs(1) + tl.program_id(1), tl.sum(grad_recency) / _LOG2E)
