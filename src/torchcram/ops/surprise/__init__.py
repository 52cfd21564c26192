"""How badly each input was foretold at the position before it."""

import torch
from torch import Tensor

from torchcram.ops.dispatch import NARROW, choose

_DEEPEST = 256  # R of the kernel, which has all of it on the chip


def surprise(u: Tensor, told: Tensor, carried: Tensor, up: Tensor) -> Tensor:
    """|u_t - W told_{t-1}|² / D of every position [B, N], in float32 at least.

    u [B, N, D], told [B, N, R], carried [B, 1, R] what was told before the first, up W [D, R].
    """
    return choose(_FORMS, u)(u, told, carried, up)


def _composed(u: Tensor, told: Tensor, carried: Tensor, up: Tensor) -> Tensor:
    """The specification, too."""
    before = torch.cat([carried.to(told.dtype), told[:, :-1]], dim=1)
    missed = u - torch.nn.functional.linear(before, up)
    return missed.to(torch.promote_types(u.dtype, torch.float32)).square().mean(-1)


def _triton(u: Tensor, told: Tensor, carried: Tensor, up: Tensor) -> Tensor:
    """The kernel, loaded when first needed; it knows no gradients, and pays for narrow numbers alone."""
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (u, told, carried, up))
    if learns or up.shape[1] > _DEEPEST or (u.is_cuda and u.dtype not in NARROW):
        return _composed(u, told, carried, up)
    from torchcram.ops.surprise import triton

    found: Tensor = triton.surprise(u, told.to(u.dtype), carried.to(u.dtype), up.to(u.dtype))
    return found


_FORMS = {"reference": _composed, "fast": _composed, "triton": _triton}
