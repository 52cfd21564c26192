"""The processes that share a batch: what is summed or averaged over a batch is summed over all of them.

Nothing here knows how processes talk: a training loop says so with `sharing`. Outside of it there is one process, and
every function returns what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """One process among several that each hold as many rows of the same batch."""

    rank: int
    size: int
    add_up: Callable[[Tensor], object]
    """Replaces a tensor's values by their sums over the processes."""


# Not a context variable: autograd's own threads, which may recompute parts of a forward pass, must see it too.
_sharing: Sharing | None = None


@contextmanager
def sharing(given: Sharing | None) -> Iterator[None]:
    """While open, this process holds its share of a batch; None: the whole."""
    global _sharing
    before, _sharing = _sharing, given
    try:
        yield
    finally:
        _sharing = before


def totals(*values: Tensor) -> tuple[Tensor, ...]:
    """Sums over the processes, of several tensors in one exchange, without gradient; the tensors themselves in one."""
    if _sharing is None:
        return values
    # float64 holds counts and float32 sums exactly enough to be exchanged together.
    joined = torch.cat([value.detach().double().flatten() for value in values])
    _sharing.add_up(joined)
    parts = torch.split(joined, [value.numel() for value in values])
    return tuple(part.view(value.shape).to(value.dtype) for part, value in zip(parts, values, strict=True))


def total(value: Tensor) -> Tensor:
    """The sum over the processes, without gradient; the tensor itself in one."""
    return totals(value)[0]


def per_process(count: Tensor) -> Tensor:
    """A count over all processes, at least 1, as the number to divide this process's sum by to get a mean.

    The average over the processes, which is what data-parallel training makes of losses and gradients, is then the
    mean over the whole batch, however unevenly what is counted falls on the processes.
    """
    count = count.clamp_min(1)
    return count if _sharing is None else count / _sharing.size


def several() -> bool:
    """Whether there are others."""
    return _sharing is not None


def overall(rows: int) -> int:
    """How many rows all processes hold, of whom this one holds so many."""
    return rows if _sharing is None else rows * _sharing.size


def share(rows: range) -> range:
    """The part of the rows that falls to this process."""
    if _sharing is None:
        return rows
    each, left = divmod(len(rows), _sharing.size)
    if left:
        raise ValueError(f"{len(rows)} rows cannot be shared evenly by {_sharing.size} processes")
    return rows[_sharing.rank * each : (_sharing.rank + 1) * each]


def part_of_mean(mean: Tensor, count: Tensor, overall: Tensor) -> Tensor:
    """A mean over the `count` things of this process as its part of the mean over `overall` things of all processes.

    As with `per_process`, averaging the parts gives the mean.
    """
    return mean if _sharing is None else mean * (count / per_process(overall))
