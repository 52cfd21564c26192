"""The read's kernels: scores never leave the chip, and the backward pass recomputes them.

Programs that have a tile of rows go through the events their list names, and programs that have a tile of events go
through the rows that can read any of them. What a row cannot read scores `_HIDDEN`, so that its weight is
exactly 0.
"""

import triton
import triton.language as tl

from torchcram.ops.instructions import INTERPRETED, log2
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
def _hide(strength, after, span):
    """Strengths, or `_HIDDEN` for rows that come before the first that can read, or after the span of those that can.

    Rows before the first are, as numbers without a sign, beyond any span. A compiler that sees many comparisons packs
    their outcomes into bits, and takes as long to get them out again; so it does not see them.
    """
    if INTERPRETED:
        return tl.where(after.to(tl.uint32, bitcast=True) < span.to(tl.uint32, bitcast=True), strength, _HIDDEN)
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.lt.u32 p, $2, $3; selp.f32 $0, $1, 0fF149F2CA, p; }",
        "=f,f,r,r",
        [strength, after, span],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _since(TIME, own, inside):
    """The times of some rows, and 1 more, as two numbers: less the time of an event that is 1 + its age."""
    high, low = _floats(tl.load(TIME + own, mask=inside, other=0))
    return high, low + 1.0


@triton.jit
def _four(RECORD, place, inside, COUNT: tl.constexpr):
    """Some records of four numbers each.

    They are loaded together: a tensor of fewer entries than there are threads would be loaded by every thread that
    needs any of it, an entry at a time.
    """
    field = tl.arange(0, 4)
    both = tl.load(RECORD + place[:, None] * 4 + field[None, :], mask=inside[:, None], other=0)
    even, odd = tl.split(tl.reshape(both, (COUNT, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _bias(row, first, span, target, row_high, row_low, event, high, low, strength, POINTED: tl.constexpr):
    """What is added to the scores of all heads, in powers of 2, and log2(1 + age).

    Rows and events are given as [rows, 1] and [1, events], or the other way round; strengths in powers of 2. An event
    can be read by a span of rows from the first.
    """
    if POINTED:
        strength += tl.where(event == target, _BONUS, 0.0)
    since = (row_high - high) + (row_low - low)
    return _hide(strength, row - first, span), log2(tl.maximum(since, 1.0))


@triton.jit
def _listed(LIST, RECORD, start, upto, EVENTS: tl.constexpr):
    """Some entries of a list: the events, whether there are so many, which rows of the group can read them, their
    times, and their strengths."""
    place = start + tl.arange(0, EVENTS)
    inside = place < upto
    event = tl.load(LIST + place, mask=inside, other=0)
    stretch, high, low, strength = _four(RECORD, place, inside, EVENTS)
    high, low = high.to(tl.float32, bitcast=True), low.to(tl.float32, bitcast=True)
    return event, inside, stretch & 0xFFFF, stretch >> 16, high, low, strength.to(tl.float32, bitcast=True)


@triton.jit
def _ordered(ORDER, FIRST, END, EVENT_TIME, STRENGTH, batch, total, place, inside):
    """Some events in their order: the events, which rows can read them, their times, and their strengths."""
    event = tl.load(ORDER + batch * total + place, mask=inside, other=0)
    own = batch * total + event
    first = tl.load(FIRST + own, mask=inside, other=0)
    end = tl.load(END + own, mask=inside, other=0)
    high, low = _floats(tl.load(EVENT_TIME + own, mask=inside, other=0))
    strength = tl.load(STRENGTH + own, mask=inside, other=0.0)
    return event, first, end, high, low, strength * _LOG2E


@triton.jit
def _read_forward(
    Q,
    K,
    V,
    RECENCY,
    TARGET,
    ROW_TIME,
    LIST,
    RECORD,
    UPTO,
    OUT,
    LOG_TOTAL,
    count,
    total,
    heads,
    groups,
    each,
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
    begin, upto = _events_of(UPTO + batch * tl.num_programs(1) + tile, each)
    if not WHOLE:  # noqa: SIM102 - known when it is compiled, the other is not
        if begin >= upto:
            return  # as whoever puts the parts together knows
    row = tile * ROWS + tl.arange(0, ROWS)
    known = row < count
    target = _asked(TARGET, batch, count, row, known, POINTED)
    row_high, row_low = _since(ROW_TIME, batch * count + row, known)
    of_group = tile % TILES * ROWS + tl.arange(0, ROWS)
    q = _load(Q, batch, count, heads, head, row, known, SIZE, WIDTH)
    recency = tl.load(RECENCY + head)
    top = tl.full((ROWS,), _LOWEST, tl.float32)
    norm = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    LIST += (batch * groups + tile // TILES).to(tl.int64) * total
    RECORD += (batch * groups + tile // TILES).to(tl.int64) * total * 4
    for start in range(begin, upto, EVENTS):
        event, inside, first, span, high, low, strength = _listed(LIST, RECORD, start, upto, EVENTS)
        k = _load(K, batch, total, heads, head, event, inside, SIZE, WIDTH)
        bias, logs = _bias(
            of_group[:, None],
            first[None, :],
            span[None, :],
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
def _events_of(UPTO, each):
    """Of a list up to so many, the stretch that is this program's.

    Stretches are the same for all tiles of rows: those that run at the same time read the same keys and values.
    """
    begin = tl.program_id(2) * each
    return begin, tl.minimum(begin + each, tl.load(UPTO))


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
    UPTO,
    OUT,
    LOG_TOTAL,
    count,
    heads,
    each,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """What some rows of a tile find in all parts, PARTS [parts, B, R, H, d] and LOGS [parts, B, H, R]."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    batches = tl.num_programs(0) // heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    known = row < count
    top = tl.full((ROWS,), _LOWEST, tl.float32)
    norm = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    for part in range(_parts(UPTO, batch, count, each, ROWS, TILE)):
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
def _read_sum(
    PARTS,
    UPTO,
    SUM,
    count,
    heads,
    each,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The gradient of some queries of a tile from all parts, PARTS [parts, B, R, H, d]."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    known = row < count
    grad = tl.zeros((ROWS, WIDTH), tl.float32)
    for part in range(_parts(UPTO, batch, count, each, ROWS, TILE)):
        own = part * (tl.num_programs(0) // heads) + batch
        grad += _load(PARTS, own, count, heads, head, row, known, SIZE, WIDTH)
    _store(SUM, grad, batch, count, heads, head, row, known, SIZE, WIDTH)


@triton.jit
def _parts(UPTO, batch, count, each, ROWS: tl.constexpr, TILE: tl.constexpr):
    """How many parts there are of what this program's rows, some of a tile, can read."""
    return tl.cdiv(tl.load(UPTO + batch * tl.cdiv(count, TILE) + tl.program_id(1) * ROWS // TILE), each)


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
    span = tl.maximum(tl.minimum(end, stop) - first, 0)  # rows after the part are another's
    mass = tl.zeros((EVENTS, ROWS), tl.float32)
    for start in range(begin, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        known = row < stop
        target = _asked(TARGET, batch, count, row, known, POINTED)
        row_high, row_low = _since(ROW_TIME, batch * count + row, known)
        bias, logs = _bias(
            row[None, :],
            first[:, None],
            span[:, None],
            target[None, :],
            row_high[None, :],
            row_low[None, :],
            event[:, None],
            high[:, None],
            low[:, None],
            strength[:, None],
            POINTED,
        )
        log_total = tl.load(LOG_TOTAL + batch * heads * count + row, mask=known, other=0.0)
        for head in range(heads):
            # The next head's, which is here by the time that it is needed.
            ahead = tl.minimum(head + 1, heads - 1)
            next_total = tl.load(LOG_TOTAL + (batch * heads + ahead) * count + row, mask=known, other=0.0)
            k = _load(K, batch, total, heads, head, event, inside, SIZE, WIDTH)
            q = _load(Q, batch, count, heads, head, row, known, SIZE, WIDTH)
            recency = tl.load(RECENCY + head)
            scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * _LOG2E)
            mass += tl.exp2(scores + (recency * logs + (bias - log_total[None, :])))
            log_total = next_total
    tl.store(MASS + (batch * parts + part) * total + event, tl.sum(mass, 1) / heads, mask=inside)


@triton.jit
def _read_backward_rows(
    Q,
    K,
    V,
    RECENCY,
    TARGET,
    ROW,
    LIST,
    RECORD,
    UPTO,
    GRAD,
    GRAD_Q,
    count,
    total,
    heads,
    groups,
    each,
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
    """The gradient of a tile of queries from a part of what they can read, GRAD_Q [parts, B, R, H, d]."""
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    begin, upto = _events_of(UPTO + batch * tl.num_programs(1) + tile, each)
    if not WHOLE:  # noqa: SIM102 - known when it is compiled, the other is not
        if begin >= upto:
            return  # as whoever puts the parts together knows
    row = tile * ROWS + tl.arange(0, ROWS)
    known = row < count
    target = _asked(TARGET, batch, count, row, known, POINTED)
    own = (batch * heads + head) * count + row
    row_high, row_low, log_total, inner = _four(ROW, own, known, ROWS)
    of_group = tile % TILES * ROWS + tl.arange(0, ROWS)
    q = _load(Q, batch, count, heads, head, row, known, SIZE, WIDTH)
    grad = _load(GRAD, batch, count, heads, head, row, known, SIZE, WIDTH)
    recency = tl.load(RECENCY + head)
    grad_q = tl.zeros((ROWS, WIDTH), tl.float32)
    LIST += (batch * groups + tile // TILES).to(tl.int64) * total
    RECORD += (batch * groups + tile // TILES).to(tl.int64) * total * 4
    for start in range(begin, upto, EVENTS):
        event, inside, first, span, high, low, strength = _listed(LIST, RECORD, start, upto, EVENTS)
        k = _load(K, batch, total, heads, head, event, inside, SIZE, WIDTH)
        v = _load(V, batch, total, heads, head, event, inside, SIZE, WIDTH)
        bias, logs = _bias(
            of_group[:, None],
            first[None, :],
            span[None, :],
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
    ROW,
    EVENT_TIME,
    FIRST,
    END,
    ORDER,
    GRAD,
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
    span = tl.maximum(tl.minimum(end, stop) - first, 0)  # rows after the part are another's
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
        row_high, row_low, log_total, inner = _four(ROW, (batch * heads + head) * count + row, known, ROWS)
        q = _load(Q, batch, count, heads, head, row, known, SIZE, WIDTH)
        grad = _load(GRAD, batch, count, heads, head, row, known, SIZE, WIDTH)
        bias, logs = _bias(
            row[None, :],
            first[:, None],
            span[:, None],
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
