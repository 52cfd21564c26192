"""The small records that operations pass to each other."""

from typing import NamedTuple

from torch import Tensor

BONUS = 4.0
"""Added to the score of the event that a row of a read is thought to ask for: enough to settle it where attention is
torn between several, and too little to make up for a key that is not the one."""
KNOWN = 8.0
"""Taken off the priority of what says nothing new, where it is about who stays."""


class Rows(NamedTuple):
    """Chosen positions of each sequence, in order, padded to the longest list."""

    at: Tensor
    """[B, R]: position of each row; 0 where `valid` is False."""
    valid: Tensor
    """[B, R]"""
    place: Tensor | None = None
    """[B, N]: the row of each position, R for those that are not chosen; None if nobody has told."""
    chosen: Tensor | None = None
    """[B]: positions chosen, also those for which there was no room; None if nobody has told."""

    @property
    def listed(self) -> Tensor:
        """[]: rows that are not padding, of all sequences."""
        return self.valid.sum() if self.chosen is None else self.chosen.clamp_max(self.at.shape[1]).sum()


class Events(NamedTuple):
    """When each event can be read: at positions t with written < t ≤ expires. All [B, E]."""

    written: Tensor
    """Position of the write in this call; -1 for events held from before."""
    expires: Tensor
    """Last position that may read the event."""
    time: Tensor
    """Time of the event in units of τ₀, float64."""

    def readable(self, rows: Rows) -> Tensor:
        """[B, R, E] bool: which events each of a few rows can read."""
        at = rows.at.unsqueeze(2)
        return (self.written.unsqueeze(1) < at) & (at <= self.expires.unsqueeze(1)) & rows.valid.unsqueeze(2)


class Expiry(NamedTuple):
    """What a bounded priority buffer does with the events of a call."""

    expires: Tensor
    """[B, S + N]: last position that may read each held event, then each new one; N if it outlives the call."""
    admitted: Tensor
    """[B, N] bool: a new event was among the best when it was written, if only for that moment."""
