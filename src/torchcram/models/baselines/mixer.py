"""What a mixer is: what a layer of a baseline does with a sequence."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from torchcram.memory import Timeline
from torchcram.models.baselines.state import MixerState


class Mixed(NamedTuple):
    """What a mixer returns."""

    value: Tensor
    """[B, N, D], to be added to the residual stream."""
    state: MixerState
    reads: Tensor
    """[B, N] bool: tokens that looked back."""
    writes: Tensor
    """[B, N] bool: tokens that others can look back at."""
    pairs: Tensor | None
    """[B]: query-key pairs scored; None in a layer that cannot look back."""
    losses: dict[str, Tensor]
    """In training; all but `priority`, which CRAM has as well, weighed already."""


class Mixer(Protocol):
    """What all mixers do."""

    def __call__(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        """u [B, N, D], normed."""

    def initial_state(self, batch: int) -> MixerState:
        """Before anything was seen."""


def by_head(x: Tensor, heads: int) -> Tensor:
    """[..., D] as [..., H, D / H]."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads)
