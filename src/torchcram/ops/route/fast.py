"""The choice for all tokens at once; the weights stay exactly one-hot, which x + (p - p) alone does not promise."""

from typing import Any

import torch
from torch import Tensor


def route(logits: Tensor, noise: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    scores = logits + noise
    actions = scores.argmax(-1)
    # Not `one_hot`: compiled, that looks whether there are such actions.
    hard = (actions.unsqueeze(-1) == torch.arange(logits.shape[-1], device=logits.device)).to(logits.dtype)
    weights: Tensor = _StraightThrough.apply(hard, torch.softmax(scores / temperature, dim=-1))  # type: ignore[no-untyped-call]
    return actions, weights


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hard: Tensor, soft: Tensor) -> Tensor:
        return hard

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad
