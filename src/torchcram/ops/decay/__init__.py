"""The time-decay recurrence s_t = a_t ⊙ s_{t-1} + x_t, with a_t = exp(-rate · gap_t)."""

from torch import Tensor

from torchcram.ops.decay import fast, reference
from torchcram.ops.dispatch import choose


def _triton(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """The kernels, loaded when first needed; they know no gradient of the gaps."""
    if gap.requires_grad:
        return fast.decay_scan(x, rate, gap, reset, initial)
    from torchcram.ops.decay import triton

    return triton.decay_scan(x, rate, gap, reset, initial)


_FORMS = {"reference": reference.decay_scan, "fast": fast.decay_scan, "triton": _triton}


def decay_scan(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """Every state of a diagonal linear recurrence whose decay is exact in the time gap.

    x [B, N, D], rate [D] ≥ 0, gap [B, N] ≥ 0, reset [B, N] bool (True forgets what came before), initial [B, D].
    Returns the states [B, N, D] and, in float32 at least, the last of them [B, D]; differentiable in all but `reset`.
    N ≥ 1.
    """
    return choose(_FORMS, x)(x, rate, gap, reset, initial)
