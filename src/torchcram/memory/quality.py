"""Consolidation quality q: can semantic memory stand in for the episodic read?"""

import torch
from torch import Tensor, nn

from torchcram.config import RouterConfig
from torchcram.memory.joint import Map, joint
from torchcram.memory.moments import RunningMoments
from torchcram.memory.precision import wide


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
        distance = wide(recalled.detach() - read.detach()).square().sum(-1)
        return torch.exp(-distance / (self.scale * self.reads.variance)).to(recalled.dtype)

    def maps(self, up: nn.Linear) -> tuple[Map, Map]:
        """What the hidden layer makes of u, and of what `up` makes r^S of; `up` is not shaped."""
        own, other = torch.split(self.hidden.weight, up.weight.shape[0], dim=1)
        return Map(own, self.hidden.bias), Map(other @ up.weight.detach())

    def logit(self, u: Tensor, active: Tensor, up: nn.Linear) -> Tensor:
        """The estimate before its sigmoid, [...], from u [..., D] and r^S, which it sees but does not shape.

        r^S is what `up` makes of `active` [..., R].
        """
        u, active = u.detach(), active.detach()
        if active.numel() > up.weight.numel():
            # W r^S = W (W_up a) = (W W_up) a: of many positions, the narrow a is cheaper to look at.
            of_token, of_active = self.maps(up)
            hidden = of_token(u) + of_active(active)
        else:
            hidden = joint(self.hidden, u, nn.functional.linear(active, up.weight.detach()))
        estimate: Tensor = self.score(nn.functional.relu(hidden))
        return estimate.squeeze(-1)
