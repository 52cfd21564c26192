"""How long each event stays in a bounded priority buffer."""

import torch
from torch import Tensor

from torchcram.ops.dispatch import choose
from torchcram.ops.expiry import fast, reference
from torchcram.ops.records import Expiry


def _triton(
    priority: Tensor,
    mask: Tensor,
    reset: Tensor | None,
    position: Tensor,
    held_priority: Tensor,
    held_position: Tensor,
    slots: int | None,
) -> Expiry:
    """The kernels, loaded when first needed; made for rows of one sequence, many positions, and 32 bits or fewer."""
    length, held = priority.shape[1], held_position.shape[1]
    unfit = reset is not None or slots is None or held + length <= slots or length <= fast.FEW
    if unfit or priority.dtype == torch.float64:
        return fast.expiry(priority, mask, reset, position, held_priority, held_position, slots)
    from torchcram.ops.expiry import triton

    return Expiry(*triton.expire(priority, mask, held_priority, held_position, slots))


_FORMS = {"reference": reference.expiry, "fast": fast.expiry, "triton": _triton}


def expiry(
    priority: Tensor,
    mask: Tensor,
    reset: Tensor | None,
    position: Tensor,
    held_priority: Tensor,
    held_position: Tensor,
    slots: int | None,
) -> Expiry:
    """Run a buffer that keeps the `slots` events of highest priority, for a whole call at once.

    priority [B, N]; mask [B, N], True = real (padding is never written); reset [B, N], True empties the buffer
    first (None: it never is); position [B, N], index of each position in its own sequence; held_priority and
    held_position [B, S], what is in the slots already, held_position = -1 where a slot is empty. `slots=None` never
    evicts.

    A position reads before it writes. Among equal priorities the newer event loses. Not differentiable. A NaN, which
    only a diverged model has, ranks last.
    """
    least = torch.finfo(priority.dtype).min
    priority, held_priority = (x.detach().nan_to_num(nan=least) for x in (priority, held_priority))
    return choose(_FORMS, priority)(priority, mask, reset, position, held_priority, held_position, slots)
