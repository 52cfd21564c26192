"""What a read is worth, in nats: an estimate for every token, and the truth for a few, from one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.config import RouterConfig
from torchcram.memory.joint import joint
from torchcram.memory.precision import wide
from torchcram.ops import Rows

STEEP = 10.0
"""What single numbers that stand for many tokens are multiplied by: an optimizer moves each weight as slowly."""
MOST = 5.0
"""Nats: labels are cut off there, so that one token cannot upset the estimate of all."""
_LEAST = -9.0  # log of nats: reads that do harm are worth no less


class Trial(NamedTuple):
    """Reads of which a random part was used, so that a backward pass tells what the whole would be worth."""

    rows: Rows
    """[B, R]"""
    tried: Tensor
    """[B, R] bool: these are on trial."""
    estimate: Tensor
    """[B, R]: û, what was thought that they would be worth."""
    worth: Tensor
    """[B, R]: what they turned out to be worth, in nats; filled in by the backward pass."""
    probe: Tensor
    """A leaf of the graph: a gradient asked for it, which is 0, fills in `worth`, and nothing else is touched."""


class WorthEstimator(nn.Module):
    """û ≈ loss(skip) - loss(read), in nats, from what is known before the read.

    Labels come from reads of which a part α, drawn evenly from 0 to 1, was used: along the way from skipping to reading
    the loss falls by -∫ ⟨∂L/∂x, r^E - what is used instead⟩ dα, and the gradient at a random α is an unbiased sample
    of that. A regression on such labels finds their mean: of the logarithm of û, with the gradient û - label of a
    Poisson likelihood, so that differences between a hundredth and a tenth of a nat are not lost among those of several
    nats that other tokens show.
    """

    def __init__(self, width: int, config: RouterConfig) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 + width, config.hidden)
        self.out = nn.Linear(config.hidden, 1)
        # Of all tokens alike that a contradiction index makes read: what became of one key says nothing of another.
        self.on_hit = nn.Parameter(torch.zeros(1))

    def forward(self, u: Tensor, log_gap: Tensor, quality: Tensor, surprise: Tensor, hits: Tensor | None) -> Tensor:
        """û [B, N] from u [B, N, D] and the rest [B, N]; it sees them but does not shape them."""
        scalars = torch.stack([log_gap, wide(quality).logit(1e-4), surprise.log1p()], dim=-1).to(u.dtype)
        hidden = joint(self.hidden, scalars.detach(), u.detach())
        log: Tensor = self.out(nn.functional.silu(hidden)).squeeze(-1)
        log = log if hits is None else torch.where(hits, STEEP * self.on_hit.to(log.dtype), log)
        log = wide(log)
        return (_LEAST + nn.functional.softplus(log - _LEAST)).exp()


def try_reads(
    x: Tensor,
    estimate: Tensor,
    rows: Rows,
    change: Tensor,
    tried: Tensor,
    audited: Tensor,
    scored: Tensor | float,
    most: float = MOST,
) -> tuple[Tensor, Trial, Tensor]:
    """Let the gradient at x [B, N, D] tell what the reads on trial are worth.

    change [B, R, D] is the difference that a whole read makes to x at each row; `tried` and `audited` [B, R] bool; the
    loss is a mean over `scored` positions. Labels are cut off at `most`.

    Returns x, the trial, and 0 to be added to the loss: its gradient is that of û - label · log û, mean over the reads
    that are used plus mean over those that are not.
    """
    tried = tried & rows.valid
    kinds = [tried & ~audited, tried & audited]
    sizes = processes.totals(*(those.sum() for those in kinds))
    weight = sum(those / processes.per_process(size) for those, size in zip(kinds, sizes, strict=True))
    worth = torch.full_like(wide(estimate), torch.nan)
    scale = torch.as_tensor(scored, device=x.device)
    probe = torch.zeros((), device=x.device, requires_grad=torch.is_grad_enabled())
    passed, nothing = _apply(x, probe, estimate, rows.at, change.detach(), weight, scale, worth, most)
    return passed, Trial(rows, tried, estimate.detach(), worth, probe), nothing


class _Worth(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        probe: Tensor,
        estimate: Tensor,
        at: Tensor,
        change: Tensor,
        weight: Tensor,
        scale: Tensor,
        worth: Tensor,
        most: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(estimate, at, change, weight, scale)
        ctx.worth, ctx.most = worth, most
        return x.view_as(x), estimate.new_zeros(())

    @staticmethod
    def backward(ctx: Any, into_x: Tensor, into_loss: Tensor) -> tuple[Tensor | None, ...]:
        estimate, at, change, weight, scale = ctx.saved_tensors
        here = into_x.gather(1, at.unsqueeze(-1).expand_as(change))
        worth = -(wide(here) * wide(change)).sum(-1) * scale
        ctx.worth.copy_(worth)
        slope = 1 - worth.clamp(-ctx.most, ctx.most).to(estimate.dtype) / torch.where(weight > 0, estimate, 1)
        return into_x, here.new_zeros(()), into_loss * weight * slope, None, None, None, None, None, None


_apply: Callable[..., tuple[Tensor, Tensor]] = _Worth.apply
