"""Random integers by counting: a hash of a key, a row number and a column number."""

from torch import Tensor

from torchcram.ops.dispatch import choose
from torchcram.ops.hashed import fast, reference


def _triton(key: int | Tensor, rows: Tensor, columns: int) -> Tensor:
    """The kernel, loaded when first needed."""
    from torchcram.ops.hashed import triton

    return triton.hashed(key, rows, columns)


_FORMS = {"reference": reference.hashed, "fast": fast.hashed, "triton": _triton}


def hashed(key: int | Tensor, rows: Tensor, columns: int) -> Tensor:
    """[B, columns] int64, uniform in 0..2³²-1, from a 32-bit key and row numbers [B] int64; the same on every device.

    With h a bijection that spreads every bit (`mix`) and r = h(key + row · c): h(h(r ⊕ h(column)) ⊕ r). A key that is a
    tensor is [] int64, on their device.
    """
    return choose(_FORMS, rows)(key, rows, columns)
