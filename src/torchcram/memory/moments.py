"""Running mean and variance of rows, over all processes."""

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.memory.precision import wide


def variance_of(mean: Tensor, mean_square: Tensor) -> Tensor:
    """Mean squared distance from the mean [D] of rows whose squares are that on average []; above 0."""
    variance = wide(mean_square) - wide(mean).square().sum()
    return variance.clamp_min(torch.finfo(torch.float32).tiny)


class RunningMoments(nn.Module):
    """Mean [D] and mean square of rows x [D], each call's moved in by the momentum; 0 and 1 before the first."""

    mean: Tensor
    mean_square: Tensor
    seen: Tensor

    def __init__(self, width: int, momentum: float = 0.01) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("mean_square", torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    @property
    def variance(self) -> Tensor:
        """Mean squared distance from the running mean; single rows have one too, though no spread of their own."""
        return variance_of(self.mean, self.mean_square)

    @torch.no_grad()
    def observe(self, x: Tensor, valid: Tensor, count: Tensor | None = None) -> None:
        """Let the rows x [B, R, D] that are valid [B, R] move the running means; count []: of them, if it is known."""
        x = wide(x).masked_fill(~valid.unsqueeze(-1), 0)
        count = valid.sum() if count is None else count
        # Both sums go down the columns, in one pass.
        count, mean, square = processes.totals(count, x.sum((0, 1)), x.square().sum((0, 1)).sum())
        mean, square = mean / count.clamp_min(1), square / count.clamp_min(1)
        # The first calls weigh alike, later ones by the momentum.
        # A call whose rows are not finite, or that has none, leaves no trace: NaN would never go away again.
        counts = (count > 0) & square.isfinite()
        step = torch.clamp(1 / (self.seen + 1), min=self.momentum).to(mean.dtype)
        self.mean.copy_(torch.where(counts, torch.lerp(wide(self.mean), mean, step), wide(self.mean)))
        self.mean_square.copy_(
            torch.where(counts, torch.lerp(wide(self.mean_square), square, step), wide(self.mean_square))
        )
        self.seen += counts
