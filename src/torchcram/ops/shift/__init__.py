"""What the same sequence held some real positions ago, across padding, packing and chunks."""

from torch import Tensor

from torchcram.ops.dispatch import choose
from torchcram.ops.shift import fast, reference

_FORMS = {"reference": reference.previous, "fast": fast.previous}


def previous(x: Tensor, carried: Tensor, mask: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """The J real entries before each position, nearest first.

    x [B, N, D]; carried [B, J, D], the last entries before this call, nearest first; mask [B, N], True = real;
    position [B, N + 1], how many real positions of its own sequence precede each one, and precede the next call.
    Returns [B, N, J, D], zero where the sequence is not that old, and the entries [B, J, D] to carry on. Padding
    is skipped over.
    """
    return choose(_FORMS)(x, carried, mask, position)
