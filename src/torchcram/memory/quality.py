"""Consolidation quality q: can semantic memory stand in for the episodic read?"""

import torch
from torch import Tensor, nn

from torchcram.config import RouterConfig
from torchcram.memory.joint import Map, joint
from torchcram.memory.moments import RunningMoments
from torchcram.memory.precision import wide
from torchcram.ops import estimate


def quality_of(recalled: Tensor, read: Tensor, spread: Tensor) -> Tensor:
    """q [...] from r^S and r^E [..., D], and σ²; no gradient flows."""
    distance = wide(recalled.detach() - read.detach()).square().sum(-1)
    return torch.exp(-distance / spread).to(recalled.dtype)


def unit_of(mean_square: Tensor) -> Tensor:
    """Above 0, also before anything was read: a copy, since it moves on before a backward pass."""
    return mean_square.clone().clamp_min(torch.finfo(torch.float32).tiny)


class QualityEstimator(nn.Module):
    """q = exp(-|r^S - r^E|² / σ²) where r^E is known (eq. 6), and an estimate q̂ from what is known before it.

    σ² is `scale` times the running variance of r^E *around its mean*, so that recalling a constant direction, which
    every read may share, earns nothing.
    """

    def __init__(self, width: int, hidden: int, config: RouterConfig) -> None:
        super().__init__()
        self.scale = config.scale
        self.hidden = nn.Linear(2 * width, hidden)
        self.score = nn.Linear(hidden, 1)
        self.reads = RunningMoments(width)

    def exact(self, recalled: Tensor, read: Tensor) -> Tensor:
        """q [...] from r^S and r^E [..., D]; no gradient flows, so neither can be bent to look alike."""
        return quality_of(recalled, read, self.scale * self.reads.variance)

    @property
    def unit(self) -> Tensor:
        """Mean square of reads; see `unit_of`."""
        return unit_of(self.reads.mean_square)

    @property
    def of_token(self) -> Map:
        """What the hidden layer makes of u, without its bias."""
        return Map(self.hidden.weight[:, : self.hidden.weight.shape[1] // 2])

    def of_active(self, up: nn.Linear) -> Map:
        """What the hidden layer makes of what `up` makes r^S of; `up` is not shaped."""
        return Map(self.hidden.weight[:, self.hidden.weight.shape[1] // 2 :] @ up.weight.detach())

    def logit(self, u: Tensor, thought: Tensor, up: nn.Linear, own: Tensor | None = None) -> Tensor:
        """The estimate before its sigmoid, [B, N], from u [B, N, D] and r^S, which it sees but does not shape.

        r^S is what `up` makes of ReLU(thought) [B, N, R]; own: what `of_token` makes of u, if it is known.
        """
        u, thought = u.detach(), thought.detach()
        if own is not None or thought.numel() > up.weight.numel():
            # W r^S = W (W_up a) = (W W_up) a: of many positions, the narrow a is cheaper to look at.
            own = self.of_token(u) if own is None else own
            score = self.score.weight[0], self.score.bias
            return estimate(own, thought, self.of_active(up).weight, self.hidden.bias, *score)
        recalled = nn.functional.linear(nn.functional.relu(thought), up.weight.detach())
        hidden = joint(self.hidden, u, recalled)
        found: Tensor = self.score(nn.functional.relu(hidden))
        return found.squeeze(-1)
