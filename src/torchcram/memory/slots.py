"""A layer's buffer while sequences go on by one position at a time: read, then written in place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcram.memory.episodic import KNOWN, EpisodicMemory, Listed, Reading
from torchcram.memory.joint import joint
from torchcram.memory.moments import wide
from torchcram.memory.state import EpisodicState
from torchcram.memory.timeline import Timeline
from torchcram.ops import Events, Rows


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
    slot: Tensor
    """[B, 1]: where it goes, if it is admitted."""
    admitted: Tensor
    """[B, 1] bool"""

    @classmethod
    def open(cls, memory: EpisodicMemory, seen: Tensor, h: Tensor, timeline: Timeline, state: EpisodicState) -> Slots:
        """Find a place for the new event: a free one, or that of the worst, of which the newest is the first to go."""
        priority = joint(memory.priority, seen, h).squeeze(-1)
        least = torch.finfo(priority.dtype).min
        free = state.position < 0
        held = (state.priority - KNOWN * state.known).nan_to_num(nan=least).masked_fill(free, -torch.inf)
        worst = held.amin(1, keepdim=True)
        slot = torch.where(held == worst, state.position, -2).argmax(1, keepdim=True)
        admitted = timeline.mask & (priority.nan_to_num(nan=least) > worst)
        return cls(
            memory=memory,
            seen=seen,
            h=h,
            timeline=timeline,
            state=state,
            priority=priority,
            slot=slot,
            admitted=admitted,
        )

    def read(self, chosen: Tensor, *_: object, **__: object) -> Reading:
        """What the positions read where `chosen` [B, 1] is True: of all slots that hold something.

        On a GPU, where a step is recorded, the slots of all rows are scored, and what was not chosen is dropped.
        """
        state = self.state
        rows = Rows(torch.zeros_like(self.slot), chosen)
        if chosen.is_cuda or torch.compiler.is_compiling():
            value, mass = self._look(slice(None))
            value, mass = value * chosen.unsqueeze(-1), mass * chosen
        else:
            value, mass = torch.zeros_like(self.seen), torch.zeros_like(state.mass)
            some = chosen.squeeze(1).nonzero().squeeze(1)
            if len(some):
                found, received = self._look(some)
                value[some], mass[some] = found.to(value.dtype), received.to(mass.dtype)
        held = state.position >= 0
        nothing = torch.zeros((), dtype=torch.int64, device=value.device)
        own = torch.arange(state.slots, device=value.device).expand_as(state.position)
        events = Events(torch.full_like(own, -1), torch.where(held, 0, -1), state.time)
        listed = Listed(own, held, state.key, state.value, state.priority, events, nothing)
        return Reading(rows, listed, value, mass, (held & chosen).sum(1))

    def _look(self, some: Tensor | slice) -> tuple[Tensor, Tensor]:
        """What some of the sequences find [b, 1, D], and the attention that each slot receives [b, M]."""
        state, memory = self.state, self.memory
        everyone = Rows(torch.zeros_like(self.slot), torch.ones_like(self.admitted))
        query = memory.query_of(self.seen, self.h, everyone, self.timeline)[some].squeeze(1)  # [b, H, d]
        readable = state.position[some] >= 0
        # Narrow numbers are widened: sums of weights and logarithms of ages need it.
        strength = nn.functional.logsigmoid(wide(state.priority[some]))
        age = torch.log1p((self.timeline.time[some] - state.time[some]).clamp_min(0)).to(strength.dtype)
        key, value = state.key[some], state.value[some]
        scores = wide(torch.einsum("bhd,bshd->bhs", query.to(key.dtype), key)) / math.sqrt(query.shape[-1])
        scores = scores + strength.unsqueeze(1) + memory.recency.view(-1, 1) * age.unsqueeze(1)
        hidden = torch.finfo(scores.dtype).min
        weights = torch.softmax(scores.masked_fill(~readable.unsqueeze(1), hidden), dim=-1)
        weights = weights * readable.any(1)[:, None, None]
        found = torch.einsum("bhs,bshd->bhd", weights.to(value.dtype), value)
        return memory.outward(found.flatten(1).to(self.seen.dtype)).unsqueeze(1), weights.mean(1)

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
            "known": torch.zeros_like(self.admitted),
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
