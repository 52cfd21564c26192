"""The continuous-time expert (eq. 2): a decaying state, and K Euler steps from each of its values."""

import torch
from torch import Tensor

from torchcram.ops.decay import decay_scan
from torchcram.ops.dispatch import choose
from torchcram.ops.euler import euler_steps

_NARROW = (torch.bfloat16, torch.float16)
_ALIGNED = 16  # tiles are copied by hardware that wants widths to be multiples of a few bytes


def expert(
    into: Tensor,
    rate: Tensor,
    gap: Tensor,
    reset: Tensor,
    initial: Tensor,
    log_gap: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    weight: Tensor,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """h^(K) [B, N, D], and in float32 at least the last state [B, D].

    into [B, N, 2D]: what enters the state, then what drives the steps. rate [D], gap and reset [B, N], initial [B, D]:
    see `decay_scan`. log_gap [B, N], gate_weight and gate_bias [D]: a step's size is σ(bias + weight · log_gap) / K.
    weight [D, D], steps: see `euler_steps`.
    """
    return choose(_FORMS, into)(
        into, rate, gap, reset, initial, log_gap, gate_weight, gate_bias, weight.to(into.dtype), steps
    )


def _composed(
    into: Tensor,
    rate: Tensor,
    gap: Tensor,
    reset: Tensor,
    initial: Tensor,
    log_gap: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    weight: Tensor,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """One operation after the other; the specification too, if these are."""
    entering, drive = into.chunk(2, dim=-1)
    start, last = decay_scan(entering, rate, gap, reset, initial)
    gate = torch.sigmoid(torch.addcmul(gate_bias, gate_weight, log_gap.to(gate_bias.dtype).unsqueeze(-1)))
    return euler_steps(start, drive, gate, weight, steps), last


def _triton(
    into: Tensor,
    rate: Tensor,
    gap: Tensor,
    reset: Tensor,
    initial: Tensor,
    log_gap: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    weight: Tensor,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """The kernels, loaded when first needed; they know no gradient of the gaps, and pay for narrow numbers alone."""
    inputs = (into, rate, gap, reset, initial, log_gap, gate_weight, gate_bias, weight, steps)
    unfit = len(rate) % _ALIGNED or (into.is_cuda and into.dtype not in _NARROW)
    if unfit or gap.requires_grad or log_gap.requires_grad:
        return _composed(*inputs)
    from torchcram.ops.expert import triton

    return triton.expert(*inputs)


_FORMS = {"reference": _composed, "fast": _composed, "triton": _triton}
