"""The continuous-time expert (eq. 2): a decaying state, and K Euler steps from each of its values."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcram.ops.decay import decay_scan
from torchcram.ops.dispatch import NARROW, choose
from torchcram.ops.euler import euler_steps

_ALIGNED = 16  # tiles are copied by hardware that wants widths to be multiples of a few bytes


class Given(NamedTuple):
    """What an expert starts from."""

    into: Tensor
    """[B, N, 2D]: what enters the state, then what drives the steps."""
    rate: Tensor
    """[D], and gap, reset [B, N], initial [B, D]: see `decay_scan`."""
    gap: Tensor
    reset: Tensor
    initial: Tensor
    log_gap: Tensor
    """[B, N]: a step's size is σ(gate_bias + gate_weight · log_gap) / K."""
    gate_weight: Tensor
    """[D]"""
    gate_bias: Tensor
    """[D]"""
    weight: Tensor
    """[D, D]: see `euler_steps`."""
    bias: Tensor | None = None
    """[2D]: is in `into` already; its gradient is found here, where what it is a sum of goes by."""


def expert(given: Given, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """h^(K) [B, N, D]; and in float32 at least the last state [B, D], and |h^(K)|²/D [B, N], without a gradient."""
    return choose(_FORMS, given.into)(given._replace(weight=given.weight.to(given.into.dtype)), steps)


def _composed(given: Given, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """One operation after the other; the specification too, if these are."""
    into = given.into if given.bias is None else _Held.apply(given.into, given.bias)  # type: ignore[no-untyped-call]
    entering, drive = into.chunk(2, dim=-1)
    start, last = decay_scan(entering, given.rate, given.gap, given.reset, given.initial)
    log_gap = given.log_gap.to(given.gate_bias.dtype).unsqueeze(-1)
    gate = torch.sigmoid(torch.addcmul(given.gate_bias, given.gate_weight, log_gap))
    h = euler_steps(start, drive, gate, given.weight, steps)
    return h, last, h.detach().to(last.dtype).square().mean(-1)


class _Held(torch.autograd.Function):
    """Going back, a bias that is in x already gets its gradient too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.dtype = bias.dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad.sum((0, 1)).to(ctx.dtype)


def _triton(given: Given, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The kernels, loaded when first needed; they know no gradient of the gaps, and pay for narrow numbers alone."""
    unfit = len(given.rate) % _ALIGNED or (given.into.is_cuda and given.into.dtype not in NARROW)
    if unfit or given.gap.requires_grad or given.log_gap.requires_grad:
        return _composed(given, steps)
    from torchcram.ops.expert import triton

    return triton.expert(given, steps)


_FORMS = {"reference": _composed, "fast": _composed, "triton": _triton}
