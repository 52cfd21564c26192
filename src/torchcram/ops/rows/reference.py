"""Compaction with plain lists: the specification."""

import torch
from torch import Tensor

from torchcram.ops.records import Rows


def compact(chosen: Tensor, room: int | None = None) -> Rows:
    every = [[t for t, wanted in enumerate(row) if wanted] for row in chosen.tolist()]
    lists = [row[:room] for row in every]
    longest = max((len(row) for row in lists), default=0) if room is None else room
    index = [row + [0] * (longest - len(row)) for row in lists]
    valid = [[True] * len(row) + [False] * (longest - len(row)) for row in lists]
    shape = (chosen.shape[0], longest)
    return Rows(
        torch.tensor(index, dtype=torch.int64, device=chosen.device).view(shape),
        torch.tensor(valid, dtype=torch.bool, device=chosen.device).view(shape),
        chosen=torch.tensor([len(row) for row in every], dtype=torch.int64, device=chosen.device),
    )


def gather_rows(x: Tensor, rows: Rows) -> Tensor:
    out = x.new_zeros(*rows.at.shape, *x.shape[2:])
    for b, r in rows.valid.nonzero().tolist():
        out[b, r] = x[b, int(rows.at[b, r])]
    return out


def scatter_rows(values: Tensor, rows: Rows, length: int) -> Tensor:
    out = values.new_zeros(values.shape[0], length, *values.shape[2:])
    for b, r in rows.valid.nonzero().tolist():
        out[b, int(rows.at[b, r])] = values[b, r]
    return out


def add_rows(x: Tensor, values: Tensor, rows: Rows) -> Tensor:
    return x + scatter_rows(values, rows, x.shape[1]).to(x.dtype)
