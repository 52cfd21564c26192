"""What a layer learns from its own reads, besides the task."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.memory.episodic import Reading, Written
from torchcram.memory.quality import QualityEstimator
from torchcram.memory.router import EPISODIC, SEMANTIC, Decision
from torchcram.ops import scatter_rows


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
        events = _admitted(written).sum() if written is not None else torch.zeros_like(tokens)
        return cls(*map(processes.per_process, processes.totals(tokens, reads, events)))


def routing_losses(decision: Decision, quality: Tensor, mask: Tensor, counts: Counts) -> dict[str, Tensor]:
    """Mean per token of π² (`reads`) and of -π³·q (`recall`), the routing terms of eq. 8; to be made small.

    quality [B, N] is the best q known for each token, without gradient; mask [B, N].
    """
    probabilities = decision.probabilities.masked_fill(~mask.unsqueeze(-1), 0)
    both = torch.stack([probabilities[..., EPISODIC], -probabilities[..., SEMANTIC] * quality])
    reads, recall = both.flatten(1).sum(1) / counts.tokens
    return {"reads": reads, "recall": recall}


def consolidation_losses(
    recalled: Tensor,
    reading: Reading,
    exact: Tensor,
    estimate: Tensor | None,
    estimator: QualityEstimator,
    counts: Counts,
) -> dict[str, Tensor]:
    """`consolidation`, |r^S - sg(r^E)|² in units of the reads' mean square (eq. 5), and `quality`, q̂ against q.

    recalled [B, R, D] is r^S, exact and estimate [B, R] the q of the rows read and the logit of q̂. Means over all
    reads computed, audits included, so that the lesson goes on after a pattern's reads have stopped.
    """
    rows = reading.rows
    weight = rows.valid / counts.reads
    distance = (recalled - reading.value.detach()).square().sum(-1)
    # A copy: the running mean moves on before the backward pass, and is 0 until a read has found something.
    unit = estimator.reads.mean_square.clone().clamp_min(torch.finfo(torch.float32).tiny)
    losses = {"consolidation": (weight * distance).sum() / unit}
    if estimate is not None:
        error = nn.functional.binary_cross_entropy_with_logits(estimate, exact, reduction="none")
        losses["quality"] = (weight * error).sum()
    return losses


def priority_loss(written: Written, reading: Reading, counts: Counts) -> Tensor:
    """σ(w) of each new event against the attention it received in this call, at most 1; events kept out have none.

    Nor have those that say nothing new: that they are not read says nothing about whether they would be, were they new.
    """
    admitted = _admitted(written)
    length = admitted.shape[1]
    target = reading.mass[:, -length:].clamp_max(1)
    error = nn.functional.binary_cross_entropy_with_logits(written.priority[:, -length:], target, reduction="none")
    return (error * admitted).sum() / counts.events


def best_quality(quality: Tensor, exact: Tensor, reading: Reading) -> Tensor:
    """q for every token [B, N]: exact where the read was computed, the estimate elsewhere."""
    length = quality.shape[1]
    known = scatter_rows(reading.rows.valid.to(exact.dtype), reading.rows, length) > 0
    return torch.where(known, scatter_rows(exact, reading.rows, length), quality)


def _admitted(written: Written) -> Tensor:
    """[B, N]: the new events that found a place and say something new."""
    admitted = written.admitted
    return admitted & ~written.known[:, -admitted.shape[1] :]
