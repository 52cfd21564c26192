"""One number a token, from two things that a hidden layer sees."""

import torch
from torch import Tensor

from torchcram.ops.dispatch import NARROW, choose

_DEEPEST = 256  # R of the kernel, which has all of it on the chip


def estimate(own: Tensor, thought: Tensor, weight: Tensor, shift: Tensor, score: Tensor, bias: Tensor) -> Tensor:
    """s · ReLU(own + W ReLU(thought) + c) + b of every token [B, N], in float32 at least.

    own [B, N, H], thought [B, N, R], weight W [H, R], shift c and score s [H], bias b [1].
    """
    return choose(_FORMS, own)(own, thought, weight, shift, score, bias)


def _composed(own: Tensor, thought: Tensor, weight: Tensor, shift: Tensor, score: Tensor, bias: Tensor) -> Tensor:
    """The specification, too."""
    hidden = torch.relu(own + torch.nn.functional.linear(torch.relu(thought), weight, shift))
    found = torch.nn.functional.linear(hidden, score.unsqueeze(0), bias).squeeze(-1)
    return found.to(torch.promote_types(found.dtype, torch.float32))


def _triton(own: Tensor, thought: Tensor, weight: Tensor, shift: Tensor, score: Tensor, bias: Tensor) -> Tensor:
    """The kernel, loaded when first needed; it knows no gradients, and pays for narrow numbers alone."""
    given = own, thought, weight, shift, score, bias
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    if learns or weight.shape[1] > _DEEPEST or (own.is_cuda and own.dtype not in NARROW):
        return _composed(*given)
    from torchcram.ops.estimate import triton

    found: Tensor = triton.estimate(own, thought.to(own.dtype), weight.to(own.dtype), shift, score, bias)
    return found


_FORMS = {"reference": _composed, "fast": _composed, "triton": _triton}
