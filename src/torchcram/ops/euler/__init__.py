"""K Euler steps of the continuous-time expert (eq. 2)."""

import torch
from torch import Tensor

from torchcram.ops.dispatch import choose
from torchcram.ops.euler import fast, reference

_FORMS = {"reference": reference.euler_steps, "fast": fast.euler_steps}


def euler_steps(h: Tensor, drive: Tensor, gate: Tensor, weight: Tensor, steps: int) -> Tensor:
    """h ← h + gate ⊙ tanh(weight · h + drive) / K, K times.

    h, drive, gate [..., D]; weight [D, D], applied as in `torch.nn.functional.linear`. Returns h^(K) [..., D].
    """
    if torch.compiler.is_compiling():  # the compiler saves and recomputes by itself
        return reference.euler_steps(h, drive, gate, weight, steps)
    return choose(_FORMS)(h, drive, gate, weight, steps)
