"""The read on a GPU: who can read what is found first (`reach.py`), then the kernels run (`kernels.py`).

Times are split into two float32 numbers each, whose differences are exact to float32's precision.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from torchcram.ops.dispatch import on_device
from torchcram.ops.read import kernels
from torchcram.ops.read.reach import NEVER, Reach, lists, reach
from torchcram.ops.records import Events, Rows

LARGEST = 256
"""Largest size of a head that the kernels are made for."""
_SHARED = 96 << 10  # bytes of a multiprocessor's memory to fill; all that CUDA GPUs of today have
_MANY = 1024  # programs that keep a GPU busy
_FULL = 8  # tiles of events that are worth a program of their own
_JOINED = 16  # rows whose pieces are put together, at most
_PARTIAL = 1 << 26  # numbers that gradients of keys may have before they are summed


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
    at = rows.at.masked_fill(~rows.valid, NEVER).int().contiguous()
    who = Reach(*reach(at, events.written.int().contiguous(), events.expires.int().contiguous()))
    if query.shape[1] == 0 or key.shape[1] == 0:
        return query * 0.0, query.new_zeros(key.shape[:2], dtype=torch.float32), who.pairs
    tensors = (x.contiguous() for x in (query, key, value, strength.float(), recency.float()))
    asked = None if target is None else target.int().contiguous()
    out, _, mass = read(*tensors, asked, _split(row_time), _split(events.time), *who)
    return out, mass.sum(1).detach(), who.pairs


def _split(time: Tensor) -> Tensor:
    """float64 as two float32."""
    high = time.float()
    return torch.stack((high, (time - high).float()), -1)


def _packed(times: Tensor) -> Tensor:
    """Two float32 as one int64, the first below: kernels load them together."""
    return times.contiguous().view(torch.int64).squeeze(-1)


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op("torchcram::episodic_read", mutates_args=())
def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    recency: Tensor,
    target: Tensor | None,
    row_time: Tensor,
    event_time: Tensor,
    first: Tensor,
    end: Tensor,
    order: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What rows find [B, R, H, d], the log2 of their weights' sum [B, H, R], and the mass of events [B, parts, E]."""
    batch, count, heads, size = q.shape
    total = k.shape[1]
    by_rows, of_mass = Tiles.of_rows(q), Tiles.of_mass(q)
    parts = of_mass.parts(batch, q, k)
    out = torch.empty_like(q)
    log_total = q.new_empty(batch, heads, count, dtype=torch.float32)
    pieces, each = by_rows.pieces(q, k)
    by_piece = [out, log_total]
    if pieces > 1:
        by_piece = [q.new_empty(pieces, *x.shape, dtype=torch.float32) for x in by_piece]
    mass = q.new_empty(batch, parts, total, dtype=torch.float32)
    row_time, event_time, asked = _packed(row_time), _packed(event_time), first if target is None else target
    scale = 1 / math.sqrt(size)
    events, records, upto, tiles = lists(first, end, event_time, strength, count, by_rows.rows)
    sizes = count, total, heads
    with on_device(q):
        kernels._read_forward[(batch * heads, upto.shape[1], pieces)](
            *(q, k, v, recency, asked, row_time, events, records, upto, *by_piece),
            *(*sizes, events.shape[1], each, scale),
            TILES=tiles,
            WHOLE=pieces == 1,
            **by_rows.meta(q, target),
        )
        if pieces > 1:
            kernels._read_join[(batch * heads, triton.cdiv(count, by_rows.joined))](
                *(*by_piece, upto, out, log_total, count, heads, each), **by_rows.join(q)
            )
        kernels._read_mass[(batch, triton.cdiv(total, of_mass.events), parts)](
            *(q, k, strength, recency, asked, row_time, event_time, first, end, order, log_total, mass, *sizes, scale),
            **of_mass.meta(q, target),
        )
    return out, log_total, mass


@torch.library.custom_op("torchcram::episodic_read_backward", mutates_args=())
def read_backward(
    grad: Tensor,
    rows: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strength: Tensor,
    recency: Tensor,
    target: Tensor | None,
    event_time: Tensor,
    first: Tensor,
    end: Tensor,
    order: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradient of queries [B, R, H, d]; by parts of the rows, of keys and values [parts, B, E, H, d], strengths
    [parts, B, H, E] and recency.

    rows [B, H, R, 4] float32: the time and 1 more, as two numbers, the log2 of the weights' sum, and what `grad` and
    what was found have in common.
    """
    batch, count, heads, size = q.shape
    total = k.shape[1]
    by_rows, by_events = Tiles.of_rows(q), Tiles.of_events(q)
    grad = grad.to(q.dtype).contiguous()
    pieces, each = by_rows.pieces(q, k)
    grad_q = torch.empty_like(q)
    by_piece = grad_q if pieces == 1 else q.new_empty(pieces, *q.shape, dtype=torch.float32)
    grads = _room_by_events(q, k)
    event_time, asked = _packed(event_time), first if target is None else target
    scale = 1 / math.sqrt(size)
    events, records, upto, tiles = lists(first, end, event_time, strength, count, by_rows.rows)
    sizes = count, total, heads
    with on_device(q):
        kernels._read_backward_rows[(batch * heads, upto.shape[1], pieces)](
            *(q, k, v, recency, asked, rows, events, records, upto, grad, by_piece),
            *(*sizes, events.shape[1], each, scale),
            TILES=tiles,
            WHOLE=pieces == 1,
            **by_rows.meta(q, target),
        )
        if pieces > 1:
            kernels._read_sum[(batch * heads, triton.cdiv(count, by_rows.joined))](
                *(by_piece, upto, grad_q, count, heads, each), **by_rows.join(q)
            )
        kernels._read_backward_events[(batch * heads, triton.cdiv(total, by_events.events), len(grads[0]))](
            *(q, k, v, strength, recency, asked, rows, event_time, first, end, order, grad, *grads, *sizes, scale),
            **by_events.meta(q, target),
        )
    return grad_q, *grads


def _room_by_events(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where gradients of keys, values, strengths and recency go."""
    (batch, total, heads, _), tiles = k.shape, Tiles.of_events(q)
    parts = tiles.parts(batch * heads, q, k)
    while parts > 1 and parts * k.numel() > _PARTIAL:
        parts //= 2
    wide = torch.float32
    return (
        k.new_empty(parts, *k.shape, dtype=k.dtype if parts == 1 else wide),
        k.new_empty(parts, *k.shape, dtype=k.dtype if parts == 1 else wide),
        k.new_empty(parts, batch, heads, total, dtype=wide),
        k.new_empty(parts, batch, heads, -(-total // tiles.events), dtype=wide),
    )


@read.register_fake
def _(q: Tensor, k: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    batch, count, heads, _ = q.shape
    parts = Tiles.of_mass(q).parts(batch, q, k)
    return (
        torch.empty_like(q),
        q.new_empty(batch, heads, count, dtype=torch.float32),
        q.new_empty(batch, parts, k.shape[1], dtype=torch.float32),
    )


@read_backward.register_fake
def _(grad: Tensor, rows: Tensor, q: Tensor, k: Tensor, *rest: Tensor | None) -> tuple[Tensor, ...]:
    return torch.empty_like(q), *_room_by_events(q, k)


def _remember(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    out, log_total, _ = output
    ctx.save_for_backward(*inputs, log_total, out)


def _gradient(ctx: Any, grad: Tensor, _log_total: Tensor, _mass: Tensor) -> tuple[Tensor | None, ...]:
    *saved, log_total, out = ctx.saved_tensors
    row_time = saved.pop(6)
    # Here, and not in the operator, it is compiled together with whatever comes before and after.
    inner = (grad.to(out.dtype).float() * out.float()).sum(-1).transpose(1, 2)
    high, low = (x.unsqueeze(1).expand_as(inner) for x in row_time.unbind(-1))
    rows = torch.stack((high, low + 1, log_total, inner), -1)
    query, key, value, strength, recency = read_backward(grad, rows, *saved)
    key, value = (x[0] if len(x) == 1 else x.sum(0).to(out.dtype) for x in (key, value))
    return query, key, value, strength.sum((0, 2)), recency.sum((0, 1, 3)), *(None,) * 6


read.register_autograd(_gradient, setup_context=_remember)


class Tiles(NamedTuple):
    """How a call is cut up; made for heads of 64, of which an H200 can run three programs or more at a time.

    Larger heads take smaller tiles: what is read in every stage must fit into a multiprocessor's memory.
    """

    rows: int
    events: int
    warps: int
    stages: int
    registers: int | None = None
    """Of a thread, at most, for heads of 64 or less: fewer for one program leave room for another."""

    @classmethod
    def of_rows(cls, query: Tensor) -> "Tiles":
        """Programs have a tile of rows each, and go through events."""
        count, size = query.shape[1], query.shape[3]
        tiles = cls(64, 64, 4, 2) if query.dtype == torch.float32 else OF_ROWS
        rows = min(tiles.rows, max(16, 8192 // width(size)), max(16, triton.next_power_of_2(count)))
        return tiles._replace(rows=rows, events=tiles._fitting(tiles.events, query))

    @classmethod
    def of_events(cls, query: Tensor) -> "Tiles":
        """Programs have a tile of events each, and go through rows."""
        tiles = cls(32, 32, 4, 2) if query.dtype == torch.float32 else OF_EVENTS
        return tiles._of_events(query)

    @classmethod
    def of_mass(cls, query: Tensor) -> "Tiles":
        """The same, one head after the other."""
        tiles = cls(32, 32, 4, 2) if query.dtype == torch.float32 else OF_MASS
        return tiles._of_events(query)

    def pieces(self, query: Tensor, key: Tensor) -> tuple[int, int]:
        """Into how many pieces what rows can read is cut, and how long they are; so that no processor is idle where
        rows are few. Most rows can read less than all, and pieces that none of a tile can read cost next to nothing."""
        (batch, count, heads, _), total = query.shape, key.shape[1]
        wanted = max(1, 2 * _MANY // max(1, batch * heads * -(-count // self.rows)))
        each = self.events * max(_FULL, -(-total // (wanted * self.events))) if wanted > 1 else max(1, total)
        return max(1, -(-total // each)), each

    @property
    def joined(self) -> int:
        """So many rows of a tile have their pieces put together by one program."""
        return min(self.rows, _JOINED)

    def join(self, query: Tensor) -> dict[str, Any]:
        """What the kernels that put pieces together are compiled for."""
        size = query.shape[3]
        return {"SIZE": size, "WIDTH": width(size), "ROWS": self.joined, "TILE": self.rows}

    def parts(self, programs: int, query: Tensor, key: Tensor) -> int:
        """Into how many parts the rows are cut, for so many programs a tile of events."""
        wanted = _MANY // max(1, programs * -(-key.shape[1] // self.events))
        return max(1, min(wanted, -(-query.shape[1] // self.rows)))

    def _of_events(self, query: Tensor) -> "Tiles":
        rows = min(self._fitting(self.rows, query), max(16, triton.next_power_of_2(query.shape[1])))
        return self._replace(rows=rows, events=min(self.events, max(16, 1024 * self.warps // width(query.shape[3]))))

    def _fitting(self, count: int, query: Tensor) -> int:
        """So many entries of two tensors in every stage, or as many as there is memory for."""
        while count > 16 and 2 * self.stages * count * width(query.shape[3]) * query.dtype.itemsize > _SHARED:
            count //= 2
        return count

    def meta(self, query: Tensor, target: Tensor | None) -> dict[str, Any]:
        """What the kernels are compiled for."""
        precision = "ieee"
        if query.dtype == torch.float32:
            precision = "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        return {
            "SIZE": query.shape[3],
            "WIDTH": width(query.shape[3]),
            "ROWS": self.rows,
            "EVENTS": self.events,
            "POINTED": target is not None,
            "PRECISION": precision,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "maxnreg": self.registers if width(query.shape[3]) <= 64 else None,
        }


OF_ROWS, OF_EVENTS, OF_MASS = Tiles(64, 32, 4, 5), Tiles(32, 64, 4, 3, 168), Tiles(32, 64, 4, 3)


def width(size: int) -> int:
    """Numbers of a head on the chip."""
    return max(16, int(triton.next_power_of_2(size)))
