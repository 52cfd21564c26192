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
    return _Read.apply(  # type: ignore[no-untyped-call, no-any-return]
        query, key, value, strength, recency, rows.at, rows.valid, row_time, *events
    )


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
        batch, count, heads, _ = query.shape
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [B, H, R or E, d]
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        total = query.new_empty(batch, heads, count, 1)
        mass = query.new_zeros(key.shape[:2])
        pairs = torch.zeros(batch, dtype=torch.int64, device=query.device)
        events = Events(written, expires, time)
        ctx.bounds = _bounds(index, valid, written, _tile(query, key))
        for tile, end in ctx.bounds:
            readable, age = _view(index, valid, row_time, events, tile, end, q.dtype)
            scores = _scores(q[:, :, tile], k[:, :, :end], strength[:, :end], recency, readable, age)
            highest = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
            weights = scores.sub_(highest).exp_()
            sums = weights.sum(-1, keepdim=True)
            share = sums.clamp_min(torch.finfo(sums.dtype).tiny).reciprocal()
            torch.mul(weights @ v[:, :, :end], share, out=out[:, :, tile])
            # A row with nothing to read gets +inf, so that its weights are exactly 0 in the backward too.
            total[:, :, tile] = torch.where(sums > 0, highest + sums.log(), torch.inf)
            mass[:, :end] += (share.view(batch, 1, -1) @ weights.view(batch, -1, end)).squeeze(1) / heads
            pairs += readable.sum((1, 2))
        ctx.save_for_backward(
            query, key, value, strength, recency, index, valid, row_time, written, expires, time, out, total
        )
        ctx.mark_non_differentiable(mass, pairs)
        return out.transpose(1, 2), mass, pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _mass: Tensor, _pairs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, strength, recency, index, valid, row_time, *when, out, total = ctx.saved_tensors
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
            scores = _scores(q[:, :, tile], k[:, :, :end], strength[:, :end], recency, readable, age)
            weights = scores.sub_(total[:, :, tile]).exp_()
            tile_g = g[:, :, tile]
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
    latest = [part.max() for part in torch.split(index.masked_fill(~valid, -1), size, dim=1)]
    seen = (written < torch.stack(latest).view(-1, 1, 1)).sum(2).amax(1).clamp_min(1).tolist()
    return [(slice(n * size, min((n + 1) * size, index.shape[1])), end) for n, end in enumerate(seen)]


def _view(
    index: Tensor, valid: Tensor, row_time: Tensor, events: Events, tile: slice, end: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Which events the rows of a tile may read [B, r, e], and log(1 + age) of those (0 elsewhere)."""
    t = index[:, tile, None]
    readable = (events.written[:, None, :end] < t) & (t <= events.expires[:, None, :end])
    readable &= valid[:, tile, None]
    age = (row_time[:, tile, None] - events.time[:, None, :end]).to(dtype)
    return readable, age.masked_fill_(~readable, 0).log1p_()


def _scores(q: Tensor, k: Tensor, strength: Tensor, recency: Tensor, readable: Tensor, age: Tensor) -> Tensor:
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(2, 3)
    scores += strength[:, None, None]
    torch.addcmul(scores, recency.view(-1, 1, 1), age.unsqueeze(1), out=scores)
    return scores.masked_fill_(~readable.unsqueeze(1), -torch.inf)
