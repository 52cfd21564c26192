"""What baselines remember of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchcram.memory.state import EpisodicState, SequenceState, Slotted, TensorTree


@dataclass(frozen=True, kw_only=True)
class CacheState(Slotted):
    """Keys and values of earlier tokens, in the order of writing, as narrow as products were when they were written."""

    any_float = True

    key: Tensor
    """[B, S, H, d], rotated."""
    value: Tensor
    """[B, S, H, d]"""


@dataclass(frozen=True, kw_only=True)
class MixerState(TensorTree):
    """What one layer remembers: the parts that its mixer has."""

    cache: CacheState | None = None
    episodic: EpisodicState | None = None
    """A cache that keeps the events of highest priority."""
    space: Tensor | None = None
    """[B, H, p, s]: of a state space."""
    recent: Tensor | None = None
    """[B, W - 1, C]: last inputs of a causal convolution, nearest first."""
    average: Tensor | None = None
    """[B, D]: a moving average of the tokens."""


@dataclass(frozen=True, kw_only=True)
class BaselineState(SequenceState):
    """What a `Baseline` remembers of each sequence of a batch."""

    layers: tuple[MixerState, ...]
