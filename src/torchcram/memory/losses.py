"""What a layer learns from its own reads, besides the task."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.memory.episodic import Reading, Written
from torchcram.memory.router import EPISODIC, SEMANTIC
from torchcram.ops import Rows, scatter_rows


class Counts(NamedTuple):
    """What sums over this process's part of a batch are divided by, to make up means over the whole of it."""

    tokens: Tensor
    """Real positions."""
    reads: Tensor
    """Reads computed, audits included."""
    events: Tensor
    """Events admitted to the buffer, but for those that say nothing new."""

    @classmethod
    def of(cls, mask: Tensor, reading: Reading | None, written: Written | None, *, padded: bool = True) -> Counts:
        """Count over all processes at once: mask [B, N], which is all True if nothing is `padded`."""
        tokens = mask.sum() if padded else torch.full((), mask.numel(), device=mask.device)
        reads = reading.rows.listed if reading is not None else torch.zeros_like(tokens)
        events = worth_telling(written).sum() if written is not None else torch.zeros_like(tokens)
        return cls(*map(processes.per_process, processes.totals(tokens, reads, events)))


def routing_losses(probabilities: Tensor, quality: Tensor, mask: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Mean of π² (`reads`) and of -π³·q (`recall`) over so many tokens, the routing terms of eq. 8; to be made small.

    probabilities [B, N, 3]; quality [B, N] is the best q known for each token, without gradient; mask [B, N].
    """
    probabilities = probabilities.masked_fill(~mask.unsqueeze(-1), 0)
    both = torch.stack([probabilities[..., EPISODIC], -probabilities[..., SEMANTIC] * quality])
    reads, recall = both.flatten(1).sum(1) / tokens
    return {"reads": reads, "recall": recall}


def consolidation_losses(
    recalled: Tensor, read: Tensor, valid: Tensor, exact: Tensor, estimate: Tensor | None, unit: Tensor, reads: Tensor
) -> dict[str, Tensor]:
    """`consolidation`, |r^S - sg(r^E)|² in units of the reads' mean square (eq. 5), and `quality`, q̂ against q.

    recalled and read [B, R, D] are r^S and r^E of the rows that are valid [B, R], exact and estimate [B, R] their q and
    the logit of q̂. Means over as many `reads` as were computed, audits included, so that the lesson goes on after a
    pattern's reads have stopped. unit and reads [], or [B, 1] where sequences are of several layers.
    """
    weight = valid / reads
    distance = (recalled - read.detach()).square().sum(-1)
    losses = {"consolidation": (weight * distance / unit).sum()}
    if estimate is not None:
        error = nn.functional.binary_cross_entropy_with_logits(estimate, exact, reduction="none")
        losses["quality"] = (weight * error).sum()
    return losses


def priority_loss(priority: Tensor, mass: Tensor, admitted: Tensor, events: Tensor) -> Tensor:
    """σ(w) of each new event [B, N] against the attention it received in this call [B, N], at most 1.

    Only of those `admitted` [B, N], see `worth_telling`; a mean over so many `events`, [] or [B, 1].
    """
    error = nn.functional.binary_cross_entropy_with_logits(priority, mass.clamp_max(1), reduction="none")
    return (error * (admitted / events)).sum()


def worth_telling(written: Written) -> Tensor:
    """[B, N]: the new events that found a place and say something new.

    That others are not read says nothing about whether they would be, were they new.
    """
    admitted = written.admitted
    return admitted & ~written.known[:, -admitted.shape[1] :]


def best_quality(quality: Tensor, exact: Tensor, rows: Rows) -> Tensor:
    """q for every token [B, N]: exact [B, R] where the read was computed, the estimate elsewhere."""
    length = quality.shape[1]
    known = scatter_rows(rows.valid.to(exact.dtype), rows, length) > 0
    return torch.where(known, scatter_rows(exact, rows, length), quality)
