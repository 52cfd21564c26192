"""Pairs of numbers turned by angles, which have no gradient: rotary positions."""

from typing import Any

import torch
from torch import Tensor

from torchcram.ops.dispatch import NARROW, choose


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """x [B, N, H, d], of which number i and number i + d/2 are a pair; angles [2, B, N, d/2]: sines and cosines."""
    turned: Tensor = _Turned.apply(x, *angles.unsqueeze(3).to(x.dtype))  # type: ignore[no-untyped-call]
    return turned


def turn_apart(joint: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, both turned, and values, each [B, N, H, d], from where they stand side by side [B, N, 3 H d].

    Going back, what is side by side again is written once.
    """
    return choose(_FORMS, joint)(joint, angles, heads)


def _composed(joint: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The specification, too."""
    query, key, value = joint.view(*joint.shape[:2], 3, heads, -1).unbind(2)
    return turn(query, angles), turn(key, angles), value


def _triton(joint: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel, loaded when first needed."""
    if joint.is_cuda and joint.dtype not in NARROW:
        return _composed(joint, angles, heads)
    from torchcram.ops.turn import triton

    return triton.turn_apart(joint, angles, heads)


class _Turned(torch.autograd.Function):
    """Going back, gradients are turned the other way round. Said like that, a compiler makes the same kernel twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
        ctx.save_for_backward(sine, cosine)
        return _turned(x, sine, cosine)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        sine, cosine = ctx.saved_tensors
        return _turned(grad, -sine, cosine), None, None


def _turned(x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    """Only the angles are put together: compiled, halves of x that are slow a kernel down several times."""
    halves = x.reshape(*x.shape[:-1], 2, x.shape[-1] // 2)
    other = halves.flip(-2)
    sines, cosines = torch.stack([-sine, sine], dim=-2), cosine.unsqueeze(-2)
    return (halves * cosines + other * sines).flatten(-2)


_FORMS = {"reference": _composed, "fast": _composed, "triton": _triton}
