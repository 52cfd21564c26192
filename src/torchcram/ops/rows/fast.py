"""Compaction with gathers and scatters."""

import torch
from torch import Tensor

from torchcram.ops.records import Rows


def compact(chosen: Tensor) -> Rows:
    batch, position = chosen.nonzero(as_tuple=True)
    rank = chosen.cumsum(1) - 1
    longest = int(rank[:, -1].max()) + 1 if chosen.numel() else 0
    index = torch.zeros(chosen.shape[0], longest, dtype=torch.int64, device=chosen.device)
    valid = torch.zeros(chosen.shape[0], longest, dtype=torch.bool, device=chosen.device)
    place = rank[batch, position]
    index[batch, place] = position
    valid[batch, place] = True
    return Rows(index, valid)


def gather_rows(x: Tensor, rows: Rows) -> Tensor:
    picked = x.gather(1, _like(rows.at, x).expand(-1, -1, *x.shape[2:]))
    return picked.masked_fill(~_like(rows.valid, x), 0)


def scatter_rows(values: Tensor, rows: Rows, length: int) -> Tensor:
    out = values.new_zeros(values.shape[0], length, *values.shape[2:])
    kept = values.masked_fill(~_like(rows.valid, values), 0)
    return out.scatter_add(1, _like(rows.at, values).expand_as(values), kept)


def _like(flags: Tensor, x: Tensor) -> Tensor:
    """Add the trailing dimensions of x, so that [B, R] broadcasts against [B, R, ...]."""
    return flags.view(*flags.shape, *(1,) * (x.dim() - 2))
