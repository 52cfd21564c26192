"""Compaction with gathers and scatters."""

from typing import Any

import torch
from torch import Tensor

from torchcram.ops.records import Rows
from torchcram.ops.rows.listing import listing


def compact(chosen: Tensor, room: int | None = None) -> Rows:
    longest = room if room is not None else int(chosen.sum(1).max()) if chosen.numel() else 0
    return Rows(*listing(chosen, longest))


def gather_rows(x: Tensor, rows: Rows) -> Tensor:
    return _Gathered.apply(x, *rows[:3]) if _fetches(x, rows) else _gather(x, rows.at, rows.valid)  # type: ignore


def scatter_rows(values: Tensor, rows: Rows, length: int) -> Tensor:
    if _fetches(values, rows):
        spread: Tensor = _Spread.apply(values, *rows[:3])  # type: ignore[no-untyped-call]
        return spread
    return add_rows(values.new_zeros(values.shape[0], length, *values.shape[2:]), values, rows)


def add_rows(x: Tensor, values: Tensor, rows: Rows) -> Tensor:
    values = values.to(x.dtype)
    if _fetches(values, rows):
        return x + scatter_rows(values, rows, x.shape[1])
    kept = values.masked_fill(~_like(rows.valid, values), 0)
    return x.scatter_add(1, _like(rows.at, values).expand_as(values), kept)


def _fetches(x: Tensor, rows: Rows) -> bool:
    """Whether positions fetch what belongs to them, rather than that it is sent there.

    Compiled, it becomes a part of whatever uses it; sums in memory, which it replaces, are slow there.
    """
    return torch.compiler.is_compiling() and rows.place is not None and rows.at.shape[1] > 0 and x.is_floating_point()


class _Gathered(torch.autograd.Function):
    """Rows of x [B, N, ...]; its gradients are those of `_Spread`, and the other way round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, at: Tensor, valid: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return _gather(x, at, valid)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (place,) = ctx.saved_tensors
        return _fetch(grad, place), None, None, None


class _Spread(torch.autograd.Function):
    """Values [B, R, ...] at their positions, zeros elsewhere [B, N, ...]."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, at: Tensor, valid: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(at, valid)
        return _fetch(values, place)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        at, valid = ctx.saved_tensors
        return _gather(grad, at, valid), None, None, None


def _gather(x: Tensor, at: Tensor, valid: Tensor) -> Tensor:
    picked = x.gather(1, _like(at, x).expand(-1, -1, *x.shape[2:]))
    return picked.masked_fill(~_like(valid, x), 0)


def _fetch(values: Tensor, place: Tensor) -> Tensor:
    """Of values [B, R, ...] those of each position's row, 0 without one."""
    count = values.shape[1]
    return _gather(values, place.clamp_max(count - 1), place < count)


def _like(flags: Tensor, x: Tensor) -> Tensor:
    """Add the trailing dimensions of x, so that [B, R] broadcasts against [B, R, ...]."""
    return flags.view(*flags.shape, *(1,) * (x.dim() - 2))
