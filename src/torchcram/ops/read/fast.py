"""The read in tiles of rows, against all events up to the last one a tile can see, masked; backward recomputes."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchcram.ops.records import Events, Rows

_TILE_SCORES = 1 << 22  # scores held at once, B·H·rows·events: 16 MiB in float32


def episodic_read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    recency: Tensor,
    rows: Rows,
    row_time: Tensor,
    events: Events,
) -> tuple[Tensor, Tensor, Tensor]:
    if query.shape[1] == 0 or key.shape[1] == 0:
        nothing = query * 0.0
        return (
            nothing,
            query.new_zeros(key.shape[:2]),
            rows.valid.new_zeros(query.shape[0], dtype=torch.int64),
        )
    # Narrow inputs (autocast, bfloat16 models) are read in float32: sums of weights and logarithms of ages need it.
    wide = torch.promote_types(torch.promote_types(query.dtype, strength.dtype), torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        found, mass, pairs = _Read.apply(  # type: ignore[no-untyped-call]
            *(x.to(wide) for x in (query, key, value, strength, recency)), rows.at, rows.valid, row_time, *events
        )
    return found.to(query.dtype), mass, pairs


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        strength: Tensor,
        recency: Tensor,
        index: Tensor,
        valid: Tensor,
        row_time: Tensor,
        written: Tensor,
        expires: Tensor,
        time: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, heads = query.shape[0], query.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [B, H, R or E, d]
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        mass = query.new_zeros(key.shape[:2])
        pairs = torch.zeros(batch, dtype=torch.int64, device=query.device)
        events = Events(written, expires, time)
        ctx.bounds = _bounds(index, valid, written, _tile(query, key))
        for tile, end in ctx.bounds:
            readable, age = _view(index, valid, row_time, events, tile, end, q.dtype)
            weights = _weights(q[:, :, tile], k[:, :, :end], strength[:, :end], recency, readable, age)
            count = readable.sum(2)
            filled = (count > 0).to(q.dtype).unsqueeze(1)  # [B, 1, r]
            torch.mul(weights @ v[:, :, :end], filled.unsqueeze(-1), out=out[:, :, tile])
            each = (filled / heads).expand(-1, heads, -1).reshape(batch, 1, -1)
            mass[:, :end] += (each @ weights.view(batch, -1, end)).squeeze(1)
            pairs += count.sum(1)
        ctx.save_for_backward(query, key, value, strength, recency, index, valid, row_time, written, expires, time, out)
        ctx.mark_non_differentiable(mass, pairs)
        return out.transpose(1, 2), mass, pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _mass: Tensor, _pairs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, strength, recency, index, valid, row_time, *when, out = ctx.saved_tensors
        q, k, v, g = (x.transpose(1, 2) for x in (query, key, value, grad))
        events = Events(*when)
        scale = 1 / math.sqrt(q.shape[-1])
        grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
        grad_k = torch.zeros_like(k, memory_format=torch.contiguous_format)
        grad_v = torch.zeros_like(v, memory_format=torch.contiguous_format)
        grad_strength, grad_recency = torch.zeros_like(strength), torch.zeros_like(recency)
        inner = (g * out).sum(-1, keepdim=True)
        for tile, end in ctx.bounds:
            readable, age = _view(index, valid, row_time, events, tile, end, q.dtype)
            weights = _weights(q[:, :, tile], k[:, :, :end], strength[:, :end], recency, readable, age)
            tile_g = g[:, :, tile] * readable.any(2)[:, None, :, None]
            grad_v[:, :, :end] += weights.transpose(2, 3) @ tile_g
            grad_s = (tile_g @ v[:, :, :end].transpose(2, 3)).sub_(inner[:, :, tile]).mul_(weights)
            grad_q[:, :, tile] = (grad_s @ k[:, :, :end]).mul_(scale)
            grad_k[:, :, :end] += (grad_s.transpose(2, 3) @ q[:, :, tile]).mul_(scale)
            grad_strength[:, :end] += grad_s.sum((1, 2))
            grad_recency += torch.einsum("bhre,bre->h", grad_s, age)
        heads_last = (x.transpose(1, 2) for x in (grad_q, grad_k, grad_v))
        return *heads_last, grad_strength, grad_recency, None, None, None, None, None, None


def _tile(query: Tensor, key: Tensor) -> int:
    batch, count, heads, _ = query.shape
    return max(16, min(count, _TILE_SCORES // max(1, batch * heads * key.shape[1])))


def _bounds(index: Tensor, valid: Tensor, written: Tensor, size: int) -> list[tuple[slice, int]]:
    """Tiles of rows, each with the number of leading events that its last row can see."""
    count = index.shape[1]
    if count <= size:
        return [(slice(0, count), written.shape[1])]
    latest = [part.max() for part in torch.split(index.masked_fill(~valid, -1), size, dim=1)]
    seen = (written < torch.stack(latest).view(-1, 1, 1)).sum(2).amax(1).clamp_min(1).tolist()
    return [(slice(n * size, min((n + 1) * size, count)), end) for n, end in enumerate(seen)]


def _view(
    index: Tensor, valid: Tensor, row_time: Tensor, events: Events, tile: slice, end: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Which events the rows of a tile may read [B, r, e], and log(1 + age) of those (whatever is finite elsewhere)."""
    t = index[:, tile].masked_fill(~valid[:, tile], -1).unsqueeze(2)
    readable = (events.written[:, None, :end] < t) & (t <= events.expires[:, None, :end])
    age = torch.empty(readable.shape, dtype=dtype, device=readable.device)
    torch.sub(row_time[:, tile, None], events.time[:, None, :end], out=age)  # in float64, kept in the model's dtype
    return readable, age.clamp_min_(0).log1p_()


def _weights(q: Tensor, k: Tensor, strength: Tensor, recency: Tensor, readable: Tensor, age: Tensor) -> Tensor:
    """Attention weights [B, H, r, e]: exactly 0 for what a row may not read.

    What is hidden scores very low, not -inf: a row with nothing to read then has even weights over everything instead
    of NaN, and the callers drop it.
    """
    batch, heads, rows, size = q.shape
    events = k.shape[2]
    shared = torch.where(readable, strength.unsqueeze(1), torch.finfo(q.dtype).min / 2)
    scores = torch.addcmul(shared.unsqueeze(1), recency.view(-1, 1, 1), age.unsqueeze(1)).view(-1, rows, events)
    scores.baddbmm_(
        q.reshape(batch * heads, rows, size),
        k.reshape(batch * heads, events, size).transpose(1, 2),
        alpha=1 / math.sqrt(size),
    )
    return scores.softmax(-1).view(batch, heads, rows, events)
