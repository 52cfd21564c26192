"""Where the chosen positions are, as operators that compilers leave alone.

PyTorch 2.11 fails to make code for counts along several long rows once more is done to them in the same kernel.
"""

import torch
from torch import Tensor

from torchcram.ops.dispatch import choose

Listing = tuple[Tensor, Tensor, Tensor, Tensor]


def listing(chosen: Tensor, room: int) -> Listing:
    """The fields of `Rows` for chosen [B, N] bool, with room for so many of each sequence."""
    return _listing(chosen, room) if torch.compiler.is_compiling() else choose(_LISTING, chosen)(chosen, room)


def following(chosen: Tensor) -> Tensor:
    """[B, N] int64: the next position after each that is chosen [B, N] bool; N where none is."""
    return _following(chosen) if torch.compiler.is_compiling() else choose(_FOLLOWING, chosen)(chosen)


def _fast_listing(chosen: Tensor, room: int) -> Listing:
    batch, length = chosen.shape
    running = chosen.cumsum(1)
    count = running[:, -1] if length else running.new_zeros(batch)
    # The k-th chosen position goes to place k; a spare place takes those not chosen, or beyond the room there is.
    place = torch.where(chosen, running - 1, room).clamp_max(room)
    at = torch.zeros(batch, room + 1, dtype=torch.int64, device=chosen.device)
    at.scatter_(1, place, torch.arange(length, device=chosen.device).expand(batch, length))
    valid = torch.arange(room, device=chosen.device) < count.unsqueeze(1)
    return at[:, :room] * valid, valid, place, count.clone()


def _fast_following(chosen: Tensor) -> Tensor:
    batch, length = chosen.shape
    # The k-th is at place k, and where there is none, the end of the call; the last place takes all others.
    count = chosen.cumsum(1)
    here = torch.arange(length, device=chosen.device).expand(batch, length)
    listed = torch.full((batch, length + 2), length, dtype=torch.int64, device=chosen.device)
    return listed.scatter_(1, torch.where(chosen, count - 1, length + 1), here).gather(1, count)


def _triton_listing(chosen: Tensor, room: int) -> Listing:
    """The kernels, loaded when first needed."""
    from torchcram.ops.rows import triton

    return triton.listing(chosen, room)


def _triton_following(chosen: Tensor) -> Tensor:
    """The kernel, loaded when first needed."""
    from torchcram.ops.rows import triton

    return triton.following(chosen)


_LISTING = {"fast": _fast_listing, "triton": _triton_listing}
_FOLLOWING = {"fast": _fast_following, "triton": _triton_following}


@torch.library.custom_op("torchcram::listing", mutates_args=())
def _listing(chosen: Tensor, room: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return choose(_LISTING, chosen)(chosen, room)


@_listing.register_fake
def _(chosen: Tensor, room: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length = chosen.shape
    return (
        chosen.new_empty(batch, room, dtype=torch.int64),
        chosen.new_empty(batch, room),
        chosen.new_empty(batch, length, dtype=torch.int64),
        chosen.new_empty(batch, dtype=torch.int64),
    )


@torch.library.custom_op("torchcram::following", mutates_args=())
def _following(chosen: Tensor) -> Tensor:
    return choose(_FOLLOWING, chosen)(chosen)


@_following.register_fake
def _(chosen: Tensor) -> Tensor:
    return chosen.new_empty(chosen.shape, dtype=torch.int64)
