"""The hard choice among actions with a soft gradient (straight-through Gumbel-softmax)."""

import torch
from torch import Tensor

from torchcram.ops.dispatch import choose
from torchcram.ops.route import fast, reference

_FORMS = {"reference": reference.route, "fast": fast.route}


def route(logits: Tensor, noise: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    """Choose the action with the largest logit + noise; ties go to the first.

    logits and noise [B, N, A]. Returns the actions [B, N] (int64) and their weights [B, N, A]: exactly one-hot in
    the forward pass, with the gradient of softmax((logits + noise) / temperature) in the backward.
    """
    return choose(_FORMS)(logits, noise, temperature)


def gumbel(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Gumbel noise of the shape of `logits`: -log of an exponential sample, finite by construction."""
    sample = torch.empty_like(logits).exponential_(generator=generator)
    return -sample.clamp_min(torch.finfo(logits.dtype).tiny).log()
