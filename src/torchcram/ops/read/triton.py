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

from torchcram.ops.dispatch import on_device
from torchcram.ops.records import BONUS, Events, Rows

LARGEST = 256
"""Largest size of a head that the kernels are made for."""
_SHARED = 96 << 10  # bytes of a multiprocessor's memory to fill; all that CUDA GPUs of today have
_MANY = 1024  # programs that keep a GPU busy
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
    times = _Times.of(rows, row_time, target, events)
    pairs = readable_pairs(times.at, times.written, times.expires)
    if query.shape[1] == 0 or key.shape[1] == 0:
        return query * 0.0, query.new_zeros(key.shape[:2], dtype=torch.float32), pairs
    tensors = (x.contiguous() for x in (query, key, value, strength.float(), recency.float()))
    out, _, mass = read(*tensors, *times, *_stretches(times, query))
    return out, mass.detach(), pairs


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
    def of(cls, rows: Rows, row_time: Tensor, target: Tensor | None, events: Events) -> "_Times":
        return cls(
            rows.at.masked_fill(~rows.valid, _NEVER).int().contiguous(),
            (torch.full_like(rows.at, -1) if target is None else target).int().contiguous(),
            *_halves(row_time),
            events.written.int().contiguous(),
            events.expires.int().contiguous(),
            *_halves(events.time),
        )


def _halves(time: Tensor) -> tuple[Tensor, Tensor]:
    high = time.float().contiguous()
    return high, (time - high).float().contiguous()


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op("torchcram::episodic_read", mutates_args=())
def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    recency: Tensor,
    at: Tensor,
    target: Tensor,
    row_high: Tensor,
    row_low: Tensor,
    written: Tensor,
    expires: Tensor,
    event_high: Tensor,
    event_low: Tensor,
    first_event: Tensor,
    end_event: Tensor,
    first_row: Tensor,
    end_row: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What rows find [B, R, H, d], the logarithm of their weights' sum [B, H, R], and events' mass [B, E]."""
    batch, count, heads, size = q.shape
    total = k.shape[1]
    out = torch.empty_like(q)
    log_total = q.new_empty(batch, heads, count, dtype=torch.float32)
    mass = q.new_zeros(batch, total, dtype=torch.float32)
    times = at, target, row_high, row_low, written, expires, event_high, event_low
    shape = (count, total, heads, 1 / math.sqrt(size))
    by_rows, by_events = _Tiles.of_rows(q), _Tiles.of_events(q)
    with on_device(q):
        _read_forward[(batch * heads, first_event.shape[1])](
            q, k, v, strength, recency, *times, first_event, end_event, out, log_total, *shape, **by_rows.meta(q)
        )
        _read_mass[(batch, first_row.shape[1])](
            q, k, strength, recency, *times, first_row, end_row, log_total, mass, *shape, **by_events.meta(q)
        )
    return out, log_total, mass


@torch.library.custom_op("torchcram::episodic_read_backward", mutates_args=())
def read_backward(
    grad: Tensor,
    inner: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    recency: Tensor,
    at: Tensor,
    target: Tensor,
    row_high: Tensor,
    row_low: Tensor,
    written: Tensor,
    expires: Tensor,
    event_high: Tensor,
    event_low: Tensor,
    first_event: Tensor,
    end_event: Tensor,
    first_row: Tensor,
    end_row: Tensor,
    out: Tensor,
    log_total: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values; of strengths by heads [B, H, E], and of recency by tiles [B, H, tiles].

    inner [B, H, R]: what `grad` and `out` have in common.
    """
    batch, count, heads, size = q.shape
    total, tiles = k.shape[1], first_row.shape[1]
    grad, inner = grad.to(q.dtype).contiguous(), inner.contiguous()
    grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, k, v))
    grad_strength = q.new_empty(batch, heads, total, dtype=torch.float32)
    grad_recency = q.new_empty(batch, heads, tiles, dtype=torch.float32)
    times = at, target, row_high, row_low, written, expires, event_high, event_low
    shape = (count, total, heads, 1 / math.sqrt(size))
    given = (grad, inner, log_total)
    by_rows, by_events = _Tiles.of_rows(q).meta(q), _Tiles.of_events(q).meta(q)
    with on_device(q):
        _read_backward_rows[(batch * heads, first_event.shape[1])](
            q, k, v, strength, recency, *times, first_event, end_event, *given, grad_q, *shape, **by_rows
        )
        grads = grad_k, grad_v, grad_strength, grad_recency
        _read_backward_events[(batch * heads, tiles)](
            q, k, v, strength, recency, *times, first_row, end_row, *given, *grads, *shape, tiles, **by_events
        )
    return grad_q, grad_k, grad_v, grad_strength, grad_recency


@read.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, count, heads, _ = q.shape
    numbers = torch.float32
    return (
        torch.empty_like(q),
        q.new_empty(batch, heads, count, dtype=numbers),
        q.new_empty(*k.shape[:2], dtype=numbers),
    )


@read_backward.register_fake
def _(grad: Tensor, inner: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    query, key, value = saved[:3]
    heads, tiles = query.shape[2], saved[-4].shape[1]
    return (
        *(torch.empty_like(x) for x in (query, key, value)),
        inner.new_empty(len(key), heads, key.shape[1]),
        inner.new_empty(len(key), heads, tiles),
    )  # type: ignore[return-value]


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    out, log_total, _ = output
    ctx.save_for_backward(*inputs, out, log_total)


def _gradient(ctx: Any, grad: Tensor, _log_total: Tensor, _mass: Tensor) -> tuple[Tensor | None, ...]:
    out = ctx.saved_tensors[-2]
    # Here, and not in the operator, it is compiled together with whatever comes before and after.
    inner = (grad.to(out.dtype).float() * out.float()).sum(-1).transpose(1, 2)
    *others, strength, recency = read_backward(grad, inner, *ctx.saved_tensors)
    return *others, strength.sum(1), recency.sum((0, 2)), *(None,) * 12


read.register_autograd(_gradient, setup_context=_remember)


def _stretches(times: _Times, query: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """First and end of the events each tile of rows can read, and of the rows that can read each tile of events."""
    rows, events = _Tiles.of_rows(query).rows, _Tiles.of_events(query).events
    at = times.at
    last = _tiles(torch.where(at < _NEVER, at, -1), rows, -1).amax(2)
    first = _tiles(at, rows, _NEVER).amin(2)
    lasting = times.expires.cummax(1).values  # no event before the first place that reaches `first` does so
    written = _tiles(times.written, events, _NEVER).amin(2)
    expires = _tiles(times.expires, events, -1).amax(2)
    return (
        torch.searchsorted(lasting, first, out_int32=True),
        torch.searchsorted(times.written, last, out_int32=True),
        torch.searchsorted(at, written, right=True, out_int32=True),
        torch.searchsorted(at, expires, right=True, out_int32=True),
    )


# Not for the compiler: it fails on a search that ends in a sum (PyTorch 2.11).
@torch.library.custom_op("torchcram::readable_pairs", mutates_args=())
def readable_pairs(at: Tensor, written: Tensor, expires: Tensor) -> Tensor:
    """[B]: by how many rows each event can be read, summed: those after it was written, less those after it expired."""
    after, gone = (torch.searchsorted(at, x, right=True) for x in (written, expires))
    return (gone - after).clamp_min(0).sum(1)


@readable_pairs.register_fake
def _(at: Tensor, written: Tensor, expires: Tensor) -> Tensor:
    return at.new_empty(len(at), dtype=torch.int64)


class _Tiles(NamedTuple):
    """How a call is cut up: the fastest of those tried on an H200 with heads of 64.

    Larger heads take smaller tiles: what is read in every stage must fit into a multiprocessor's memory.
    """

    rows: int
    events: int
    warps: int
    stages: int

    @classmethod
    def of_rows(cls, query: Tensor) -> "_Tiles":
        """Programs have a tile of rows each, and go through events."""
        batch, count, heads, size = query.shape
        rows, events, stages = (64, 64, 2) if query.dtype == torch.float32 else (128, 32, 3)
        while events > 16 and _staged(events, stages, query) > _SHARED:
            events //= 2
        rows = min(rows, max(16, 8192 // _width(size)), max(16, triton.next_power_of_2(count)))
        # Neighbours that read share a stretch of events; but where all are few, no processor is to be idle.
        while rows > 32 and batch * heads * -(-count // rows) < _MANY:
            rows //= 2
        return cls(rows, events, 4, stages)

    @classmethod
    def of_events(cls, query: Tensor) -> "_Tiles":
        """Programs have a tile of events each, and go through rows."""
        count, size = query.shape[1], query.shape[3]
        rows, events, stages = (32, 32, 2) if query.dtype == torch.float32 else (64, 64, 2)
        while rows > 16 and _staged(rows, stages, query) > _SHARED:
            rows //= 2
        events = min(events, max(16, 4096 // _width(size)))
        return cls(min(rows, max(16, triton.next_power_of_2(count))), events, 4, stages)

    def meta(self, query: Tensor) -> dict[str, Any]:
        """What the kernels are compiled for."""
        precision = "ieee"
        if query.dtype == torch.float32:
            precision = "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        return {
            "SIZE": query.shape[3],
            "WIDTH": _width(query.shape[3]),
            "ROWS": self.rows,
            "EVENTS": self.events,
            "PRECISION": precision,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def _width(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _staged(count: int, stages: int, query: Tensor) -> int:
    """Bytes of two tensors of so many entries a stage."""
    return 2 * stages * count * _width(query.shape[3]) * query.dtype.itemsize


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
def _read_forward(
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
def _read_mass(
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
def _read_backward_rows(
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
def _read_backward_events(
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
