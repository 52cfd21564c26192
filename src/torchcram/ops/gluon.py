"""What kernels in Gluon share, and what Gluon calls otherwise from one release to the next."""

from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

try:
    from triton.experimental.gluon.language import barrier
except ImportError:  # before Triton 3.7
    from triton.experimental.gluon.language import thread_barrier as barrier

__all__ = ["REGISTERS", "barrier", "described"]

REGISTERS = 168
"""Of a thread, on average, if 12 warps are to have all of a processor's."""


def described(x: Tensor, block: list[int]) -> TensorDescriptor:
    """x [rows, columns] of 16 bits, of which tiles of that shape are copied to the chip and back."""
    return TensorDescriptor.from_tensor(x, block, NVMMASharedLayout.get_default_for(block, bfloat16))
