"""The episodic read: attention of the chosen rows alone over the events each of them may read (eq. 3)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcram.ops.dispatch import choose
from torchcram.ops.read import fast, reference
from torchcram.ops.records import BONUS, Events, Rows

__all__ = ["BONUS", "Read", "episodic_read"]


class Read(NamedTuple):
    """What the rows found."""

    value: Tensor
    """[B, R, H, d]: the weighted values; 0 for a row with nothing to read."""
    mass: Tensor
    """[B, E]: attention each event received, summed over rows and averaged over heads; no gradient."""
    pairs: Tensor
    """[B]: query-event pairs that were readable, heads not counted."""


def _triton(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The kernels, loaded when first needed; they are made for 32 bits or fewer, and for heads that fit on the chip."""
    from torchcram.ops.read import triton

    if query.dtype == torch.float64 or query.shape[-1] > triton.LARGEST:
        return fast.episodic_read(query, *rest)
    return triton.episodic_read(query, *rest)


_FORMS = {"reference": reference.episodic_read, "fast": fast.episodic_read, "triton": _triton}


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
) -> Read:
    """softmax over readable events of q·k/√d + strength + recency · log(1 + age), times the values.

    query [B, R, H, d] of the given rows; key, value [B, E, H, d]; strength [B, E], log of the write priority's
    sigmoid; recency [H]; row_time [B, R] and events.time in units of τ₀, float64. Event i is readable at row t iff
    written_i < t ≤ expires_i; events come in the order of writing. target [B, R]: number of the event that a row is
    thought to ask for, whose score is `BONUS` higher; -1: none. Differentiable in query, key, value, strength and
    recency.
    """
    return Read(*choose(_FORMS, query)(query, key, value, strength, recency, rows, row_time, events, target))
