"""The read in tiles of rows, each against the events some row of it can see, masked; backward recomputes."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchcram.ops.records import BONUS, Events, Rows
from torchcram.ops.rows.fast import compact, gather_rows

_TILE_SCORES = 1 << 22  # scores held at once, B·H·rows·events: 16 MiB in float32
_WORTH_PICKING = 0.75  # of the events before a tile: if no more are readable, they are picked out first


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
        tensors = (x.to(wide) for x in (query, key, value, strength, recency))
        run: Callable[..., tuple[Tensor, Tensor, Tensor]] = read if torch.compiler.is_compiling() else _Read.apply
        found, mass, pairs = run(*tensors, rows.at, rows.valid, row_time, target, *events)
    return found.to(query.dtype), mass.detach(), pairs


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    recency: Tensor,
    at: Tensor,
    valid: Tensor,
    row_time: Tensor,
    target: Tensor | None,
    written: Tensor,
    expires: Tensor,
    time: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What rows find [B, R, H, d], the mass of events [B, E], and how many pairs were scored [B]."""
    batch, heads = query.shape[0], query.shape[2]
    q = query.transpose(1, 2)  # [B, H, R, d]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    mass = query.new_zeros(key.shape[:2])
    pairs = torch.zeros(batch, dtype=torch.int64, device=query.device)
    events = Events(written, expires, time)
    for tile in _tiles(query, at.masked_fill(~valid, -1), events):
        k, v = (tile.take(x).transpose(1, 2) for x in (key, value))
        readable, age = _view(tile, at, valid, row_time, events, q.dtype)
        strong = _strengths(tile, strength, target)
        weights = _weights(q[:, :, tile.rows], k, strong, recency, readable, age)
        count = readable.sum(2)
        filled = (count > 0).to(q.dtype).unsqueeze(1)  # [B, 1, r]
        torch.mul(weights @ v, filled.unsqueeze(-1), out=out[:, :, tile.rows])
        each = (filled / heads).expand(-1, heads, -1).reshape(batch, 1, -1)
        tile.add(mass, (each @ weights.flatten(1, 2)).squeeze(1))
        pairs += count.sum(1)
    return out.transpose(1, 2), mass, pairs


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    recency: Tensor,
    at: Tensor,
    valid: Tensor,
    row_time: Tensor,
    target: Tensor | None,
    written: Tensor,
    expires: Tensor,
    time: Tensor,
    out: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, strengths and recency."""
    q, g = query.transpose(1, 2), grad.transpose(1, 2)
    events = Events(written, expires, time)
    scale = 1 / math.sqrt(q.shape[-1])
    grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
    grad_k, grad_v, grad_strength, grad_recency = (torch.zeros_like(x) for x in (key, value, strength, recency))
    inner = (g * out.transpose(1, 2)).sum(-1, keepdim=True)
    for tile in _tiles(query, at.masked_fill(~valid, -1), events):
        k, v = (tile.take(x).transpose(1, 2) for x in (key, value))
        readable, age = _view(tile, at, valid, row_time, events, q.dtype)
        tile_q = q[:, :, tile.rows]
        weights = _weights(tile_q, k, _strengths(tile, strength, target), recency, readable, age)
        tile_g = g[:, :, tile.rows] * readable.any(2)[:, None, :, None]
        tile.add(grad_v, (weights.transpose(2, 3) @ tile_g).transpose(1, 2))
        grad_s = (tile_g @ v.transpose(2, 3)).sub_(inner[:, :, tile.rows]).mul_(weights)
        grad_q[:, :, tile.rows] = (grad_s @ k).mul_(scale)
        tile.add(grad_k, (grad_s.transpose(2, 3) @ tile_q).mul_(scale).transpose(1, 2))
        tile.add(grad_strength, grad_s.sum((1, 2)))
        grad_recency += torch.einsum("bhre,bre->h", grad_s, age)
    return grad_q.transpose(1, 2), grad_k, grad_v, grad_strength, grad_recency


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        out, mass, pairs = _forward(*inputs)
        ctx.save_for_backward(*inputs, out)
        ctx.mark_non_differentiable(mass, pairs)
        return out, mass, pairs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _mass: Tensor, _pairs: Tensor) -> tuple[Tensor | None, ...]:
        return *_backward(grad, *ctx.saved_tensors), *(None,) * 7


# The same as operators, which torch.compile takes as they are: the sizes of tiles depend on what is in them.
read = torch.library.custom_op("torchcram::episodic_read_in_tiles", _forward, mutates_args=())
read_backward = torch.library.custom_op("torchcram::episodic_read_in_tiles_backward", _backward, mutates_args=())


@read.register_fake
def _(query: Tensor, key: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    counts = query.new_empty(query.shape[0], dtype=torch.int64)
    return _by_head(query), query.new_empty(key.shape[:2]), counts


@read_backward.register_fake
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, strength: Tensor, recency: Tensor, *rest: Tensor | None
) -> tuple[Tensor, ...]:
    return _by_head(query), *(torch.empty_like(x) for x in (key, value, strength, recency))


def _by_head(x: Tensor) -> Tensor:
    """Something like x [B, R, H, d], laid out head by head."""
    return torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _remember(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[0])


def _gradient(ctx: Any, grad: Tensor, _mass: Tensor, _pairs: Tensor) -> tuple[Tensor | None, ...]:
    return *read_backward(grad, *ctx.saved_tensors), *(None,) * 7


read.register_autograd(_gradient, setup_context=_remember)


class _Tile(NamedTuple):
    """Some rows, and the events that one of them may read."""

    rows: slice
    end: int
    """All events before this one are looked at ..."""
    picked: Rows | None
    """... or just these, if they are clearly fewer: a bounded buffer bounds the work."""

    def take(self, x: Tensor) -> Tensor:
        """The tile's events of x [B, E, ...]."""
        return x[:, : self.end] if self.picked is None else gather_rows(x, self.picked)

    def add(self, total: Tensor, part: Tensor) -> None:
        """Add what the tile's events got to the total [B, E, ...]; what padding got is 0."""
        if self.picked is None:
            total[:, : self.end] += part
        else:
            at = self.picked.at.view(*self.picked.at.shape, *(1,) * (part.dim() - 2))
            total.scatter_add_(1, at.expand_as(part), part)


def _tiles(query: Tensor, position: Tensor, events: Events) -> list[_Tile]:
    """Cut the rows (position [B, R], -1 = padding) so that a tile's scores fit; find the events each tile needs."""
    batch, count, heads, _ = query.shape
    total = events.written.shape[1]
    size = max(16, _TILE_SCORES // max(1, batch * heads * total))
    if count <= size:
        return [_Tile(slice(0, count), total, None)]
    tiles = []
    for begin in range(0, count, size):
        rows = slice(begin, min(begin + size, count))
        here = position[:, rows]
        latest = here.amax(1, keepdim=True)
        earliest = torch.where(here < 0, latest, here).amin(1, keepdim=True)
        seen = events.written < latest
        needed = seen & (events.expires >= earliest)
        end, most = torch.stack([seen.sum(1).amax(), needed.sum(1).amax()]).clamp_min(1).tolist()
        tiles.append(_Tile(rows, end, compact(needed) if most < _WORTH_PICKING * end else None))
    return tiles


def _view(
    tile: _Tile, at: Tensor, valid: Tensor, row_time: Tensor, events: Events, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Which events the rows of a tile may read [B, r, e], and log(1 + age) of those (whatever is finite elsewhere)."""
    t = at[:, tile.rows].masked_fill(~valid[:, tile.rows], -1).unsqueeze(2)
    written, expires, time = (tile.take(x).unsqueeze(1) for x in events)
    readable = (written < t) & (t <= expires)
    if tile.picked is not None:
        readable &= tile.picked.valid.unsqueeze(1)
    age = torch.empty(readable.shape, dtype=dtype, device=readable.device)
    torch.sub(row_time[:, tile.rows, None], time, out=age)  # in float64, kept in the model's dtype
    return readable, age.clamp_min_(0).log1p_()


def _strengths(tile: _Tile, strength: Tensor, target: Tensor | None) -> Tensor:
    """What is added to a tile's scores, [B, 1 or r, e]: strengths, and the bonus of what rows are thought to want."""
    strong = tile.take(strength).unsqueeze(1)
    if target is None:
        return strong
    number = tile.take(torch.arange(strength.shape[1], device=strength.device).expand(strength.shape))
    return strong + BONUS * (number.unsqueeze(1) == target[:, tile.rows, None])


def _weights(q: Tensor, k: Tensor, strength: Tensor, recency: Tensor, readable: Tensor, age: Tensor) -> Tensor:
    """Attention weights [B, H, r, e]: exactly 0 for what a row may not read.

    What is hidden scores very low, not -inf: a row with nothing to read then has even weights over everything instead
    of NaN, and the callers drop it.
    """
    batch, heads, rows, size = q.shape
    events = k.shape[2]
    shared = torch.where(readable, strength, torch.finfo(q.dtype).min / 2)
    scores = torch.addcmul(shared.unsqueeze(1), recency.view(-1, 1, 1), age.unsqueeze(1)).view(-1, rows, events)
    scores.baddbmm_(
        q.reshape(batch * heads, rows, size),
        k.reshape(batch * heads, events, size).transpose(1, 2),
        alpha=1 / math.sqrt(size),
    )
    return scores.softmax(-1).view(batch, heads, rows, events)
