"""A layer's buffer while sequences go on by one position at a time: read, then written in place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcram.memory.contradiction import Guidance, Pointer
from torchcram.memory.episodic import KNOWN, EpisodicMemory, Listed, Reading
from torchcram.memory.joint import joint
from torchcram.memory.state import EpisodicState
from torchcram.memory.timeline import Timeline
from torchcram.ops import BONUS, Events, Rows


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The M slots of a buffer, none of which moves, and what the position at hand would write."""

    memory: EpisodicMemory
    seen: Tensor
    """[B, 1, D]"""
    h: Tensor
    """[B, 1, D]"""
    timeline: Timeline
    state: EpisodicState
    """With all M slots; it is changed."""
    priority: Tensor
    """[B, 1]: of the new event."""
    known: Tensor
    """[B, 1] bool: an index found nothing new in it."""
    slot: Tensor
    """[B, 1]: where it goes, if it is admitted."""
    admitted: Tensor
    """[B, 1] bool"""

    @classmethod
    def open(
        cls,
        memory: EpisodicMemory,
        seen: Tensor,
        h: Tensor,
        timeline: Timeline,
        state: EpisodicState,
        guidance: Guidance | None,
    ) -> Slots:
        """Find a place for the new event: a free one, or that of the worst, of which the newest is the first to go."""
        priority = joint(memory.priority, seen, h).squeeze(-1)
        known = torch.zeros_like(timeline.mask)
        if guidance is not None and guidance.consulted is not None:
            known = guidance.consulted.known
        least = torch.finfo(priority.dtype).min
        worth = (priority - KNOWN * known).nan_to_num(nan=least)
        free = state.position < 0
        held = (state.priority - KNOWN * state.known).nan_to_num(nan=least).masked_fill(free, -torch.inf)
        worst = held.amin(1, keepdim=True)
        slot = torch.where(held == worst, state.position, -2).argmax(1, keepdim=True)
        return cls(
            memory=memory,
            seen=seen,
            h=h,
            timeline=timeline,
            state=state,
            priority=priority,
            known=known,
            slot=slot,
            admitted=timeline.mask & (worth > worst),
        )

    def read(self, chosen: Tensor, pointer: Pointer | None, *_: object, **__: object) -> Reading:
        """What the positions read where `chosen` [B, 1] is True: of all slots that hold something."""
        state, memory = self.state, self.memory
        rows = Rows(torch.zeros_like(self.slot), chosen)
        query = memory.query_of(self.seen, self.h, rows, self.timeline).squeeze(1)  # [B, H, d]
        readable = (state.position >= 0) & chosen
        strength = nn.functional.logsigmoid(state.priority)
        if pointer is not None:
            strength = strength + BONUS * ((state.position == pointer.position) & (pointer.position >= 0))
        age = torch.log1p((self.timeline.time - state.time).clamp_min(0)).to(strength.dtype)
        scores = torch.einsum("bhd,bshd->bhs", query, state.key.to(query.dtype)) / math.sqrt(query.shape[-1])
        scores = scores + strength.unsqueeze(1) + memory.recency.view(-1, 1) * age.unsqueeze(1)
        hidden = torch.finfo(scores.dtype).min
        weights = torch.softmax(scores.masked_fill(~readable.unsqueeze(1), hidden), dim=-1)
        weights = weights * readable.any(1)[:, None, None]
        found = torch.einsum("bhs,bshd->bhd", weights, state.value.to(weights.dtype))
        value = memory.outward(found.flatten(1).to(self.seen.dtype)).unsqueeze(1)
        nothing = torch.zeros((), dtype=torch.int64, device=value.device)
        own = torch.arange(state.slots, device=value.device).expand_as(state.position)
        expires = torch.where(state.position >= 0, 0, -1)
        events = Events(torch.full_like(expires, -1), expires, state.time)
        listed = Listed(own, state.position >= 0, state.key, state.value, strength, events, nothing)
        return Reading(rows, listed, value, weights.mean(1), readable.sum(1))

    def evidence(self, *_: object) -> None:
        """Nothing is learned from single positions."""

    def keep(self, reading: Reading) -> EpisodicState:
        """Write the new event, and what the others received."""
        state, memory = self.state, self.memory
        key, value = memory.pair_of(self.seen, self.h)
        state.mass.add_(reading.mass.to(state.mass.dtype))
        new = {
            "key": key,
            "value": value,
            "priority": self.priority,
            "known": self.known,
            "time": self.timeline.time,
            "position": self.timeline.position[:, :1],
            "mass": torch.zeros_like(self.priority),
        }
        for name, x in new.items():
            held: Tensor = getattr(state, name)
            at = self.slot.view(*self.slot.shape, *(1,) * (held.dim() - 2)).expand(-1, -1, *held.shape[2:])
            admitted = self.admitted.view(*self.admitted.shape, *(1,) * (held.dim() - 2))
            held.scatter_(1, at, torch.where(admitted, x.to(held.dtype), held.gather(1, at)))
        return state
