"""What a read would have been worth, from the gradient of one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchcram.ops import Rows


def learn_worth(
    x: Tensor, logit: Tensor, rows: Rows, change: Tensor, weight: Tensor, least: Tensor
) -> tuple[Tensor, Tensor]:
    """Teach logits [B, Q] whether some rows of x [B, N, D] can do without a read.

    change [B, Q, D] is the difference that the read makes to x there; weight [B, Q] how much each row counts. A read is
    worth -⟨∂L/∂x, change⟩: to first order where x is without it, to second order where x has half of it. That is known
    once the loss L has been differentiated, and only then it is seen whether it is less than `least`, the label.

    Returns x, and 0 to be added to the loss (times a factor, if wanted): its gradient is that of the weighted
    cross-entropy of the logits against these labels.
    """
    return _apply(x, logit, rows.at, change.detach(), weight * rows.valid, least)


class _Worth(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, logit: Tensor, at: Tensor, change: Tensor, weight: Tensor, least: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(logit, at, change, weight, least)
        return x.view_as(x), logit.new_zeros(())

    @staticmethod
    def backward(ctx: Any, into_x: Tensor, into_loss: Tensor) -> tuple[Tensor | None, ...]:
        logit, at, change, weight, least = ctx.saved_tensors
        here = into_x.gather(1, at.unsqueeze(-1).expand_as(change))
        worth = -(here.to(change.dtype) * change).sum(-1)
        label = (worth < least).to(logit.dtype)
        return into_x, into_loss * weight * (torch.sigmoid(logit) - label), None, None, None, None


_apply: Callable[..., tuple[Tensor, Tensor]] = _Worth.apply
