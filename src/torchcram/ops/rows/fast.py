"""Compaction with gathers and scatters."""

import torch
from torch import Tensor

from torchcram.ops.records import Rows


def compact(chosen: Tensor, room: int | None = None) -> Rows:
    batch, length = chosen.shape
    count = chosen.sum(1, keepdim=True)
    longest = room if room is not None else int(count.max()) if chosen.numel() else 0
    # The k-th chosen position goes to place k; a spare place takes those not chosen, or beyond the room there is.
    place = torch.where(chosen, chosen.cumsum(1) - 1, longest).clamp_max(longest)
    at = torch.zeros(batch, longest + 1, dtype=torch.int64, device=chosen.device)
    at.scatter_(1, place, torch.arange(length, device=chosen.device).expand(batch, length))
    valid = torch.arange(longest, device=chosen.device) < count
    return Rows(at[:, :longest] * valid, valid)


def gather_rows(x: Tensor, rows: Rows) -> Tensor:
    picked = x.gather(1, _like(rows.at, x).expand(-1, -1, *x.shape[2:]))
    return picked.masked_fill(~_like(rows.valid, x), 0)


def scatter_rows(values: Tensor, rows: Rows, length: int) -> Tensor:
    return add_rows(values.new_zeros(values.shape[0], length, *values.shape[2:]), values, rows)


def add_rows(x: Tensor, values: Tensor, rows: Rows) -> Tensor:
    kept = values.to(x.dtype).masked_fill(~_like(rows.valid, values), 0)
    return x.scatter_add(1, _like(rows.at, values).expand_as(values), kept)


def _like(flags: Tensor, x: Tensor) -> Tensor:
    """Add the trailing dimensions of x, so that [B, R] broadcasts against [B, R, ...]."""
    return flags.view(*flags.shape, *(1,) * (x.dim() - 2))
