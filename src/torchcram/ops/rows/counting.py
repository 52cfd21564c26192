"""How many were chosen so far, as an operator that compilers leave alone."""

import torch
from torch import Tensor

from torchcram.ops.dispatch import choose


def _fast(chosen: Tensor) -> Tensor:
    return chosen.cumsum(1)


def _triton(chosen: Tensor) -> Tensor:
    """The kernels, loaded when first needed."""
    from torchcram.ops.rows import triton

    return triton.running_count(chosen)


_FORMS = {"fast": _fast, "triton": _triton}


def running_count(chosen: Tensor) -> Tensor:
    """[B, N] int64: how many of chosen [B, N] bool there are up to each position, itself included."""
    return _running_count(chosen) if torch.compiler.is_compiling() else choose(_FORMS, chosen)(chosen)


# PyTorch 2.11 fails to make code for sums along several long rows once more is done to them in the same kernel.
@torch.library.custom_op("torchcram::running_count", mutates_args=())
def _running_count(chosen: Tensor) -> Tensor:
    return choose(_FORMS, chosen)(chosen.contiguous())


@_running_count.register_fake
def _(chosen: Tensor) -> Tensor:
    return chosen.new_empty(chosen.shape, dtype=torch.int64)
