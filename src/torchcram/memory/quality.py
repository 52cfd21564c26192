"""Consolidation quality q: can semantic memory stand in for the episodic read?"""

import torch
from torch import Tensor, nn

from torchcram.config import RouterConfig


class QualityEstimator(nn.Module):
    """q = exp(-|r^S - r^E|² / σ²) where r^E is known (eq. 6), and an estimate q̂ from what is known before it.

    σ² is `scale` times the running variance of r^E *around its mean*, so that recalling a constant direction, which
    every read may share, earns nothing.
    """

    mean: Tensor
    variance: Tensor
    seen: Tensor

    def __init__(self, width: int, hidden: int, config: RouterConfig, momentum: float = 0.01) -> None:
        super().__init__()
        self.scale = config.scale
        self.momentum = momentum
        self.hidden = nn.Linear(2 * width, hidden)
        self.score = nn.Linear(hidden, 1)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def exact(self, recalled: Tensor, read: Tensor) -> Tensor:
        """q [...] from r^S and r^E [..., D]; no gradient flows, so neither can be bent to look alike."""
        distance = _wide(recalled.detach() - read.detach()).square().sum(-1)
        return torch.exp(-distance / (self.scale * _wide(self.variance))).to(recalled.dtype)

    def logit(self, u: Tensor, recalled: Tensor) -> Tensor:
        """The estimate before its sigmoid, [...], from u and r^S [..., D], which it sees but does not shape."""
        hidden = nn.functional.relu(self.hidden(torch.cat([u, recalled], dim=-1).detach()))
        estimate: Tensor = self.score(hidden)
        return estimate.squeeze(-1)

    @property
    def mean_square(self) -> Tensor:
        """Running mean of |r^E|²."""
        return self.variance + self.mean.square().sum()

    @torch.no_grad()
    def observe(self, read: Tensor, weight: Tensor) -> None:
        """Let reads [B, R, D] with weights [B, R] move the running mean and variance."""
        read, weight = _wide(read), weight.to(_wide(read).dtype)
        total = weight.sum()
        share = weight / total.clamp_min(torch.finfo(total.dtype).tiny)
        mean = torch.einsum("br,brd->d", share, read)
        variance = torch.einsum("br,brd->", share, (read - mean).square())
        # Averages over few observations lean on what there is; later ones on the momentum.
        step = torch.clamp(1 / (self.seen + 1), min=self.momentum) * (total > 0)
        self.mean.copy_(torch.lerp(_wide(self.mean), mean, step.to(mean.dtype)))
        least = torch.finfo(torch.float32).tiny
        self.variance.copy_(torch.lerp(_wide(self.variance), variance, step.to(mean.dtype)).clamp_min(least))
        self.seen += total > 0


def _wide(x: Tensor) -> Tensor:
    """At least float32: sums of squares need it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
