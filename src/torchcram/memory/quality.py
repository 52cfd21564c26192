"""Consolidation quality q: can semantic memory stand in for the episodic read?"""

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.config import RouterConfig


class QualityEstimator(nn.Module):
    """q = exp(-|r^S - r^E|² / σ²) where r^E is known (eq. 6), and an estimate q̂ from what is known before it.

    σ² is `scale` times the running variance of r^E *around its mean*, so that recalling a constant direction, which
    every read may share, earns nothing.
    """

    mean: Tensor
    mean_square: Tensor
    seen: Tensor

    def __init__(self, width: int, hidden: int, config: RouterConfig, momentum: float = 0.01) -> None:
        super().__init__()
        self.scale = config.scale
        self.momentum = momentum
        self.hidden = nn.Linear(2 * width, hidden)
        self.score = nn.Linear(hidden, 1)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("mean_square", torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    @property
    def variance(self) -> Tensor:
        """Of r^E around its running mean: defined for single reads too, which have no spread of their own."""
        variance = _wide(self.mean_square) - _wide(self.mean).square().sum()
        return variance.clamp_min(torch.finfo(torch.float32).tiny)

    def exact(self, recalled: Tensor, read: Tensor) -> Tensor:
        """q [...] from r^S and r^E [..., D]; no gradient flows, so neither can be bent to look alike."""
        distance = _wide(recalled.detach() - read.detach()).square().sum(-1)
        return torch.exp(-distance / (self.scale * self.variance)).to(recalled.dtype)

    def logit(self, u: Tensor, recalled: Tensor) -> Tensor:
        """The estimate before its sigmoid, [...], from u and r^S [..., D], which it sees but does not shape."""
        hidden = nn.functional.relu(self.hidden(torch.cat([u, recalled], dim=-1).detach()))
        estimate: Tensor = self.score(hidden)
        return estimate.squeeze(-1)

    @torch.no_grad()
    def observe(self, read: Tensor, valid: Tensor) -> None:
        """Let the reads [B, R, D] that are valid [B, R] move the running means."""
        read = _wide(read).masked_fill(~valid.unsqueeze(-1), 0)
        count, mean, square = processes.totals(valid.sum(), read.sum((0, 1)), read.square().sum())
        mean, square = mean / count.clamp_min(1), square / count.clamp_min(1)
        # The first calls weigh alike, later ones by the momentum.
        # A call whose reads are not finite, or that has none, leaves no trace: NaN would never go away again.
        counts = (count > 0) & square.isfinite()
        step = torch.clamp(1 / (self.seen + 1), min=self.momentum).to(mean.dtype)
        self.mean.copy_(torch.where(counts, torch.lerp(_wide(self.mean), mean, step), _wide(self.mean)))
        self.mean_square.copy_(
            torch.where(counts, torch.lerp(_wide(self.mean_square), square, step), _wide(self.mean_square))
        )
        self.seen += counts


def _wide(x: Tensor) -> Tensor:
    """At least float32: sums of squares need it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
