"""The read as GPU kernels: scores never leave the chip, and the backward pass recomputes them.

Rows and events both come in the order of positions, so each tile of rows needs one stretch of the events and each tile
of events one stretch of the rows; the stretches are found on the device. Times are split into two float32 numbers each,
whose differences are exact to float32's precision.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchcram.ops.dispatch import on_device
from torchcram.ops.records import BONUS, Events, Rows

LARGEST = 256
"""Largest size of a head that the kernels are made for."""
_SHARED = 96 << 10  # bytes of a multiprocessor's memory to fill; all that CUDA GPUs of today have
_NEVER = 1 << 30  # position of a row that is padding: no event lasts that long
_LOG2E = tl.constexpr(1.4426950408889634)
_BONUS = tl.constexpr(BONUS * 1.4426950408889634)


def episodic_read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    recency: Tensor,
    rows: Rows,
    row_time: Tensor,
    events: Events,
    target: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    out, mass, pairs = _Read.apply(
        query, key, value, strength.float(), recency.float(), rows.at, rows.valid, row_time, target, *events
    )
    return out, mass, pairs


class _Times(NamedTuple):
    """A call's positions and times as the kernels want them: contiguous, 32 bits wide."""

    at: Tensor
    target: Tensor
    row_high: Tensor
    row_low: Tensor
    written: Tensor
    expires: Tensor
    event_high: Tensor
    event_low: Tensor

    @classmethod
    def of(cls, at: Tensor, valid: Tensor, row_time: Tensor, target: Tensor | None, events: Events) -> "_Times":
        return cls(
            at.masked_fill(~valid, _NEVER).int().contiguous(),
            (torch.full_like(at, -1) if target is None else target).int().contiguous(),
            *_halves(row_time),
            events.written.int().contiguous(),
            events.expires.int().contiguous(),
            *_halves(events.time),
        )


def _halves(time: Tensor) -> tuple[Tensor, Tensor]:
    high = time.float().contiguous()
    return high, (time - high).float().contiguous()


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        strength: Tensor,
        recency: Tensor,
        at: Tensor,
        valid: Tensor,
        row_time: Tensor,
        target: Tensor | None,
        *when: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, count, heads, size = query.shape
        total = key.shape[1]
        q, k, v, strength, recency = (x.contiguous() for x in (query, key, value, strength, recency))
        out = torch.empty_like(q)
        log_total = q.new_empty(batch, heads, count, dtype=torch.float32)
        mass = q.new_zeros(batch, total, dtype=torch.float32)
        pairs = _pairs(at, valid, *when[:2])
        ctx.mark_non_differentiable(mass, pairs)
        ctx.empty = count == 0 or total == 0
        if ctx.empty:
            ctx.save_for_backward(q, k, v, strength, recency)
            return out, mass, pairs
        times = _Times.of(at, valid, row_time, target, Events(*when))
        plan = _Plan.of(times, q)
        shape = (count, total, heads, 1 / math.sqrt(size))
        with on_device(q):
            _forward[(batch * heads, plan.row_tiles)](
                q, k, v, strength, recency, *times, *plan.events_of_rows, out, log_total, *shape, **plan.meta
            )
            _mass[(batch, plan.event_tiles)](
                q, k, strength, recency, *times, *plan.rows_of_events, log_total, mass, *shape, **plan.meta
            )
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, strength, recency, *times, out, log_total)
        return out, mass, pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _mass_grad: Tensor, _pairs_grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.empty:
            grads = tuple(torch.zeros_like(x) for x in ctx.saved_tensors)
            return *grads, *(None,) * 7
        q, k, v, strength, recency, *times, out, log_total = ctx.saved_tensors
        plan: _Plan = ctx.plan
        batch, count, heads, size = q.shape
        total = k.shape[1]
        grad = grad.to(q.dtype).contiguous()
        inner = (grad.float() * out.float()).sum(-1).transpose(1, 2).contiguous()
        grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, k, v))
        grad_strength = q.new_empty(batch, heads, total, dtype=torch.float32)
        grad_recency = q.new_empty(batch, heads, plan.event_tiles, dtype=torch.float32)
        shape = (count, total, heads, 1 / math.sqrt(size))
        with on_device(q):
            _backward_rows[(batch * heads, plan.row_tiles)](
                q,
                k,
                v,
                strength,
                recency,
                *times,
                *plan.events_of_rows,
                grad,
                inner,
                log_total,
                grad_q,
                *shape,
                **plan.meta,
            )
            _backward_events[(batch * heads, plan.event_tiles)](
                q,
                k,
                v,
                strength,
                recency,
                *times,
                *plan.rows_of_events,
                grad,
                inner,
                log_total,
                grad_k,
                grad_v,
                grad_strength,
                grad_recency,
                *shape,
                plan.event_tiles,
                **plan.meta,
            )
        return (grad_q, grad_k, grad_v, grad_strength.sum(1), grad_recency.sum((0, 2)), *(None,) * 7)


class _Plan(NamedTuple):
    """How a call is cut into tiles, and what each tile has to look at."""

    row_tiles: int
    event_tiles: int
    events_of_rows: tuple[Tensor, Tensor]
    """First and end of the events each tile of rows can read, [B, row tiles] each."""
    rows_of_events: tuple[Tensor, Tensor]
    """First and end of the rows that can read each tile of events, [B, event tiles] each."""
    meta: dict[str, Any]

    @classmethod
    def of(cls, times: _Times, query: Tensor) -> "_Plan":
        count, size = query.shape[1], query.shape[3]
        total = times.written.shape[1]
        rows, events, warps, stages = _sizes(count, size, query.dtype)
        row_tiles, event_tiles = triton.cdiv(count, rows), triton.cdiv(total, events)
        at = times.at
        last = _tiles(torch.where(at < _NEVER, at, -1), rows, -1).amax(2)
        first = _tiles(at, rows, _NEVER).amin(2)
        lasting = times.expires.cummax(1).values  # no event before the first place that reaches `first` does so
        events_of_rows = (
            torch.searchsorted(lasting, first, out_int32=True),
            torch.searchsorted(times.written, last, out_int32=True),
        )
        written = _tiles(times.written, events, _NEVER).amin(2)
        expires = _tiles(times.expires, events, -1).amax(2)
        rows_of_events = (
            torch.searchsorted(at, written, right=True, out_int32=True),
            torch.searchsorted(at, expires, right=True, out_int32=True),
        )
        if query.dtype == torch.float32:
            precision = "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        else:
            precision = "ieee"
        meta = {
            "SIZE": size,
            "WIDTH": max(16, triton.next_power_of_2(size)),
            "ROWS": rows,
            "EVENTS": events,
            "PRECISION": precision,
            "num_warps": warps,
            "num_stages": stages,
        }
        return cls(row_tiles, event_tiles, events_of_rows, rows_of_events, meta)


def _pairs(at: Tensor, valid: Tensor, written: Tensor, expires: Tensor) -> Tensor:
    """[B]: how many events each row can read, summed: those written before it, less those that have expired."""
    before = torch.searchsorted(written.contiguous(), at.contiguous())
    gone = torch.searchsorted(expires.sort(1).values, at.contiguous())
    return ((before - gone) * valid).sum(1)


def _sizes(count: int, size: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Rows and events of a tile, warps, pipeline stages: the fastest of those tried on an H200 at size 64.

    Larger heads take smaller tiles: keys and values of every stage must fit into a multiprocessor's memory.
    """
    rows, events, stages = (64, 64, 2) if dtype == torch.float32 else (128, 32, 3)
    width = max(16, triton.next_power_of_2(size))
    while events > 16 and 2 * stages * events * width * dtype.itemsize > _SHARED:
        events //= 2
    rows = min(rows, max(16, 8192 // width), max(16, triton.next_power_of_2(count)))
    return rows, events, 4, stages


def _tiles(x: Tensor, size: int, filler: int) -> Tensor:
    """[B, X] to [B, tiles, size], the last tile filled up."""
    short = -x.shape[1] % size
    full: Tensor = torch.nn.functional.pad(x, (0, short), value=filler)
    return full.view(full.shape[0], full.shape[1] // size, size)


@triton.jit
def _load(X, batch, count, heads, head, index, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Some entries of one head of X [B, X, H, d], as [entries, WIDTH]; 0 outside."""
    column = tl.arange(0, WIDTH)
    place = ((batch * count + index[:, None]).to(tl.int64) * heads + head) * SIZE + column[None, :]
    return tl.load(X + place, mask=(index < count)[:, None] & (column < SIZE)[None, :], other=0.0)


@triton.jit
def _store(X, x, batch, count, heads, head, index, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    place = ((batch * count + index[:, None]).to(tl.int64) * heads + head) * SIZE + column[None, :]
    tl.store(X + place, x.to(X.dtype.element_ty), mask=(index < count)[:, None] & (column < SIZE)[None, :])


@triton.jit
def _rows_at(AT, TARGET, ROW_HIGH, ROW_LOW, batch, count, row):
    """Position of some rows, the event each is thought to ask for, and their times; padding reads nothing."""
    inside = row < count
    at = tl.load(AT + batch * count + row, mask=inside, other=1 << 30)
    target = tl.load(TARGET + batch * count + row, mask=inside, other=-1)
    high = tl.load(ROW_HIGH + batch * count + row, mask=inside, other=0.0)
    low = tl.load(ROW_LOW + batch * count + row, mask=inside, other=0.0)
    return at, target, high, low


@triton.jit
def _events_at(WRITTEN, EXPIRES, EVENT_HIGH, EVENT_LOW, STRENGTH, batch, total, event):
    """When some events can be read, their times, and their strengths in powers of 2."""
    inside = event < total
    written = tl.load(WRITTEN + batch * total + event, mask=inside, other=1 << 30)
    expires = tl.load(EXPIRES + batch * total + event, mask=inside, other=-1)
    high = tl.load(EVENT_HIGH + batch * total + event, mask=inside, other=0.0)
    low = tl.load(EVENT_LOW + batch * total + event, mask=inside, other=0.0)
    strength = tl.load(STRENGTH + batch * total + event, mask=inside, other=0.0)
    return written, expires, high, low, strength * _LOG2E


@triton.jit
def _scores(
    q,
    k,
    at,
    target,
    row_high,
    row_low,
    event,
    written,
    expires,
    high,
    low,
    strength,
    recency,
    scale,
    PRECISION: tl.constexpr,
):
    """Scores in powers of 2, what is readable, and log2(1 + age); each [rows, events]."""
    readable = (written[None, :] < at[:, None]) & (at[:, None] <= expires[None, :])
    age = (row_high[:, None] - high[None, :]) + (row_low[:, None] - low[None, :])
    logs = tl.log2(1.0 + tl.maximum(age, 0.0))
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * _LOG2E)
    scores += tl.where(event[None, :] == target[:, None], _BONUS, 0.0)
    return scores + strength[None, :] + recency * logs, readable, logs


@triton.jit
def _forward(
    Q,
    K,
    V,
    STRENGTH,
    RECENCY,
    AT,
    TARGET,
    ROW_HIGH,
    ROW_LOW,
    WRITTEN,
    EXPIRES,
    EVENT_HIGH,
    EVENT_LOW,
    FIRST,
    END,
    OUT,
    LOG_TOTAL,
    count,
    total,
    heads,
    scale,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EVENTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile, batch, head = tl.program_id(1), tl.program_id(0) // heads, tl.program_id(0) % heads
    row = tile * ROWS + tl.arange(0, ROWS)
    at, target, row_high, row_low = _rows_at(AT, TARGET, ROW_HIGH, ROW_LOW, batch, count, row)
    q = _load(Q, batch, count, heads, head, row, SIZE, WIDTH)
    recency = tl.load(RECENCY + head)
    top = tl.full((ROWS,), -1e30, tl.float32)
    norm = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    begin = tl.load(FIRST + batch * tl.num_programs(1) + tile) // EVENTS * EVENTS
    end = tl.load(END + batch * tl.num_programs(1) + tile)
    for start in range(begin, end, EVENTS):
        event = start + tl.arange(0, EVENTS)
        written, expires, high, low, strength = _events_at(
            WRITTEN, EXPIRES, EVENT_HIGH, EVENT_LOW, STRENGTH, batch, total, event
        )
        k = _load(K, batch, total, heads, head, event, SIZE, WIDTH)
        scores, readable, _ = _scores(
            q, k, at, target, row_high, row_low, event, written, expires, high, low, strength, recency, scale, PRECISION
        )
        higher = tl.maximum(top, tl.max(tl.where(readable, scores, -1e30), 1))
        weights = tl.where(readable, tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(top - higher)
        v = _load(V, batch, total, heads, head, event, SIZE, WIDTH)
        found = found * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        norm = norm * shrink + tl.sum(weights, 1)
        top = higher
    filled = norm > 0
    found = found / tl.where(filled, norm, 1.0)[:, None]
    _store(OUT, found, batch, count, heads, head, row, SIZE, WIDTH)
    place = (batch * heads + head) * count + row
    tl.store(LOG_TOTAL + place, top + tl.log2(tl.where(filled, norm, 1.0)), mask=row < count)


@triton.jit
def _mass(
    Q,
    K,
    STRENGTH,
    RECENCY,
    AT,
    TARGET,
    ROW_HIGH,
    ROW_LOW,
    WRITTEN,
    EXPIRES,
    EVENT_HIGH,
    EVENT_LOW,
    FIRST,
    END,
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
    PRECISION: tl.constexpr,
):
    tile, batch = tl.program_id(1), tl.program_id(0)
    event = tile * EVENTS + tl.arange(0, EVENTS)
    written, expires, high, low, strength = _events_at(
        WRITTEN, EXPIRES, EVENT_HIGH, EVENT_LOW, STRENGTH, batch, total, event
    )
    begin = tl.load(FIRST + batch * tl.num_programs(1) + tile) // ROWS * ROWS
    end = tl.load(END + batch * tl.num_programs(1) + tile)
    mass = tl.zeros((EVENTS,), tl.float32)
    for head in range(heads):
        k = _load(K, batch, total, heads, head, event, SIZE, WIDTH)
        recency = tl.load(RECENCY + head)
        for start in range(begin, end, ROWS):
            row = start + tl.arange(0, ROWS)
            at, target, row_high, row_low = _rows_at(AT, TARGET, ROW_HIGH, ROW_LOW, batch, count, row)
            q = _load(Q, batch, count, heads, head, row, SIZE, WIDTH)
            log_total = tl.load(LOG_TOTAL + (batch * heads + head) * count + row, mask=row < count, other=0.0)
            scores, readable, _ = _scores(
                q,
                k,
                at,
                target,
                row_high,
                row_low,
                event,
                written,
                expires,
                high,
                low,
                strength,
                recency,
                scale,
                PRECISION,
            )
            mass += tl.sum(tl.where(readable, tl.exp2(scores - log_total[:, None]), 0.0), 0)
    tl.store(MASS + batch * total + event, mass / heads, mask=event < total)


@triton.jit
def _backward_rows(
    Q,
    K,
    V,
    STRENGTH,
    RECENCY,
    AT,
    TARGET,
    ROW_HIGH,
    ROW_LOW,
    WRITTEN,
    EXPIRES,
    EVENT_HIGH,
    EVENT_LOW,
    FIRST,
    END,
    GRAD,
    INNER,
    LOG_TOTAL,
    GRAD_Q,
    count,
    total,
    heads,
    scale,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EVENTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile, batch, head = tl.program_id(1), tl.program_id(0) // heads, tl.program_id(0) % heads
    row = tile * ROWS + tl.arange(0, ROWS)
    at, target, row_high, row_low = _rows_at(AT, TARGET, ROW_HIGH, ROW_LOW, batch, count, row)
    q = _load(Q, batch, count, heads, head, row, SIZE, WIDTH)
    grad = _load(GRAD, batch, count, heads, head, row, SIZE, WIDTH)
    place = (batch * heads + head) * count + row
    log_total = tl.load(LOG_TOTAL + place, mask=row < count, other=0.0)
    inner = tl.load(INNER + place, mask=row < count, other=0.0)
    recency = tl.load(RECENCY + head)
    grad_q = tl.zeros((ROWS, WIDTH), tl.float32)
    begin = tl.load(FIRST + batch * tl.num_programs(1) + tile) // EVENTS * EVENTS
    end = tl.load(END + batch * tl.num_programs(1) + tile)
    for start in range(begin, end, EVENTS):
        event = start + tl.arange(0, EVENTS)
        written, expires, high, low, strength = _events_at(
            WRITTEN, EXPIRES, EVENT_HIGH, EVENT_LOW, STRENGTH, batch, total, event
        )
        k = _load(K, batch, total, heads, head, event, SIZE, WIDTH)
        v = _load(V, batch, total, heads, head, event, SIZE, WIDTH)
        scores, readable, _ = _scores(
            q, k, at, target, row_high, row_low, event, written, expires, high, low, strength, recency, scale, PRECISION
        )
        weights = tl.where(readable, tl.exp2(scores - log_total[:, None]), 0.0)
        slope = weights * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - inner[:, None])
        grad_q += tl.dot(slope.to(k.dtype), k, input_precision=PRECISION)
    _store(GRAD_Q, grad_q * scale, batch, count, heads, head, row, SIZE, WIDTH)


@triton.jit
def _backward_events(
    Q,
    K,
    V,
    STRENGTH,
    RECENCY,
    AT,
    TARGET,
    ROW_HIGH,
    ROW_LOW,
    WRITTEN,
    EXPIRES,
    EVENT_HIGH,
    EVENT_LOW,
    FIRST,
    END,
    GRAD,
    INNER,
    LOG_TOTAL,
    GRAD_K,
    GRAD_V,
    GRAD_STRENGTH,
    GRAD_RECENCY,
    count,
    total,
    heads,
    scale,
    tiles,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    EVENTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile, batch, head = tl.program_id(1), tl.program_id(0) // heads, tl.program_id(0) % heads
    event = tile * EVENTS + tl.arange(0, EVENTS)
    written, expires, high, low, strength = _events_at(
        WRITTEN, EXPIRES, EVENT_HIGH, EVENT_LOW, STRENGTH, batch, total, event
    )
    k = _load(K, batch, total, heads, head, event, SIZE, WIDTH)
    v = _load(V, batch, total, heads, head, event, SIZE, WIDTH)
    recency = tl.load(RECENCY + head)
    grad_k = tl.zeros((EVENTS, WIDTH), tl.float32)
    grad_v = tl.zeros((EVENTS, WIDTH), tl.float32)
    grad_strength = tl.zeros((EVENTS,), tl.float32)
    grad_recency = tl.zeros((EVENTS,), tl.float32)
    begin = tl.load(FIRST + batch * tiles + tile) // ROWS * ROWS
    end = tl.load(END + batch * tiles + tile)
    for start in range(begin, end, ROWS):
        row = start + tl.arange(0, ROWS)
        at, target, row_high, row_low = _rows_at(AT, TARGET, ROW_HIGH, ROW_LOW, batch, count, row)
        q = _load(Q, batch, count, heads, head, row, SIZE, WIDTH)
        grad = _load(GRAD, batch, count, heads, head, row, SIZE, WIDTH)
        place = (batch * heads + head) * count + row
        log_total = tl.load(LOG_TOTAL + place, mask=row < count, other=0.0)
        inner = tl.load(INNER + place, mask=row < count, other=0.0)
        scores, readable, logs = _scores(
            q, k, at, target, row_high, row_low, event, written, expires, high, low, strength, recency, scale, PRECISION
        )
        weights = tl.where(readable, tl.exp2(scores - log_total[:, None]), 0.0)
        grad_v += tl.dot(tl.trans(weights.to(grad.dtype)), grad, input_precision=PRECISION)
        slope = weights * (tl.dot(grad, tl.trans(v), input_precision=PRECISION) - inner[:, None])
        grad_k += tl.dot(tl.trans(slope.to(q.dtype)), q, input_precision=PRECISION)
        grad_strength += tl.sum(slope, 0)
        grad_recency += tl.sum(slope * logs, 0)
    _store(GRAD_K, grad_k * scale, batch, total, heads, head, event, SIZE, WIDTH)
    _store(GRAD_V, grad_v, batch, total, heads, head, event, SIZE, WIDTH)
    inside = event < total
    tl.store(GRAD_STRENGTH + (batch * heads + head) * total + event, grad_strength, mask=inside)
    # log2 to the natural logarithm, once for all.
    tl.store(GRAD_RECENCY + (batch * heads + head) * tiles + tile, tl.sum(grad_recency) / _LOG2E)
