"""The router's logits: what it makes of a token, and of four numbers about it."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchcram.ops.dispatch import choose


class About(NamedTuple):
    """What is known of each token [B, N] before it reads. It is only looked at: no gradient reaches it."""

    log_gap: Tensor
    """log(1 + Δτ)"""
    square: Tensor
    """|h|²/D"""
    quality: Tensor
    surprise: Tensor


class Weights(NamedTuple):
    """Of two maps, H numbers in between; and how much quality leads."""

    first: Tensor
    """W [H, 4]"""
    shift: Tensor
    """c [H]"""
    out: Tensor
    """V [3, H]"""
    bias: Tensor
    """b [3]"""
    lead: Tensor
    """κ [1]"""


def choice(token: Tensor, about: About, weights: Weights, threshold: float) -> Tensor:
    """V SiLU(token + W [log gap, |h|, q, log(1 + surprise)] + c) + b + κ (q - q*) [0, -1, 1], in float32 at least.

    Of every token [B, N, 3]; token [B, N, H]: what the first map makes of the token itself; threshold q*.
    """
    about = About(*(x.detach() for x in about))
    return choose(_FORMS, token)(token, about, weights, threshold)


def _composed(token: Tensor, about: About, weights: Weights, threshold: float) -> Tensor:
    """The specification, too."""
    seen = about.log_gap, about.square.sqrt(), about.quality, about.surprise.log1p()
    numbers = torch.stack([x.to(token.dtype) for x in seen], dim=-1)
    hidden = torch.nn.functional.silu(token + torch.nn.functional.linear(numbers, weights.first, weights.shift))
    logits = torch.nn.functional.linear(hidden, weights.out, weights.bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    lead = weights.lead.to(logits.dtype) * (about.quality.to(logits.dtype) - threshold)
    return logits + torch.stack([torch.zeros_like(lead), -lead, lead], dim=-1)


def _triton(token: Tensor, about: About, weights: Weights, threshold: float) -> Tensor:
    """The kernels, loaded when first needed; they know nothing wider than float32."""
    if token.dtype == torch.float64:
        return _composed(token, about, weights, threshold)
    from torchcram.ops.choice import triton

    found: Tensor = triton.choice(token, *about, *weights, threshold)
    return found


_FORMS = {"reference": _composed, "fast": _composed, "triton": _triton}
