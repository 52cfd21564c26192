"""Compaction: work on the chosen positions only, then put the results back in place."""

from torch import Tensor

from torchcram.ops.dispatch import choose
from torchcram.ops.records import Rows
from torchcram.ops.rows import fast, reference
from torchcram.ops.rows.lengths import Call, Lengths, compact_within, fixed, kept, longest
from torchcram.ops.rows.listing import following

__all__ = [
    "Call",
    "Lengths",
    "add_rows",
    "compact",
    "fixed",
    "following",
    "gather_rows",
    "kept",
    "longest",
    "scatter_rows",
]

_COMPACT = {"reference": reference.compact, "fast": fast.compact}
_GATHER = {"reference": reference.gather_rows, "fast": fast.gather_rows}
_ADD = {"reference": reference.add_rows, "fast": fast.add_rows}
_SCATTER = {"reference": reference.scatter_rows, "fast": fast.scatter_rows}


def compact(chosen: Tensor, room: int | None = None) -> Rows:
    """List the positions where `chosen` [B, N] is True; R is the longest list and may be 0.

    With `room`, R is that instead, and of longer lists the beginning; so it is while `Lengths` are kept.
    """
    return compact_within(choose(_COMPACT), chosen, room)


def gather_rows(x: Tensor, rows: Rows) -> Tensor:
    """The chosen rows of x [B, N, ...] as [B, R, ...]; padded rows are zero."""
    return choose(_GATHER)(x, rows)


def scatter_rows(values: Tensor, rows: Rows, length: int) -> Tensor:
    """Put values [B, R, ...] at their positions in zeros [B, N, ...]; padded rows are dropped."""
    return choose(_SCATTER)(values, rows, length)


def add_rows(x: Tensor, values: Tensor, rows: Rows) -> Tensor:
    """x [B, N, ...] with values [B, R, ...] added at their positions; padded rows are dropped."""
    return choose(_ADD)(x, values, rows)
