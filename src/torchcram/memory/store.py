"""A layer's buffer during one call: of many positions at once, or of a single one, in place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.memory.contradiction import Guidance, Pointer
from torchcram.memory.episodic import EpisodicMemory, Reading, Written
from torchcram.memory.lessons import Evidence
from torchcram.memory.precision import wide
from torchcram.memory.state import EpisodicState
from torchcram.memory.timeline import Timeline
from torchcram.ops import KNOWN, Rows, compact


class Room(NamedTuple):
    """For how many entries lists of a layer have room, in each sequence."""

    rows: int
    """That read."""
    events: int
    """New ones, that are of any use."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """A buffer that all positions of a call are written to at once, then read by whoever may."""

    memory: EpisodicMemory
    seen: Tensor
    h: Tensor
    timeline: Timeline
    before: EpisodicState
    written: Written

    @classmethod
    def open(
        cls,
        memory: EpisodicMemory,
        seen: Tensor,
        h: Tensor,
        priority: Tensor,
        timeline: Timeline,
        state: EpisodicState,
        guidance: Guidance | None,
        *,
        keep_all: bool,
    ) -> Store:
        """Offer all positions to the buffer, with their priority [B, N]."""
        known = guidance.consulted.known if guidance is not None and guidance.consulted is not None else None
        written = memory.write(priority, timeline, state, known=known, keep_all=keep_all)
        return cls(memory=memory, seen=seen, h=h, timeline=timeline, before=state, written=written)

    @property
    def admitted(self) -> Tensor:
        """[B, N] bool: which positions entered the buffer."""
        return self.written.admitted

    def read(
        self, chosen: Tensor, readers: Tensor | None, pointer: Pointer | None, room: Room | None, *, keep: bool
    ) -> Reading:
        """The reads of the positions where `chosen` [B, N] is True; see `EpisodicMemory.look`.

        readers: whoever may ask what is there, and more; None: nearly all, so it does not pay to pick what they can
        read. keep: the buffer will be kept.
        """
        rows = compact(chosen, room.rows if room is not None else None)
        events = room.events if room is not None else None
        call = self.timeline, self.written, self.before
        return self.memory.look(self.seen, self.h, rows, *call, readers, pointer, keep=keep, room=events)

    def evidence(self, guidance: Guidance, reading: Reading | None, used: Tensor) -> Evidence | None:
        """What the reads of an index's witnesses rest on, of which some are `used` [B, N]; None if there are none."""
        if guidance.witnesses is None or reading is None or reading.listed is None:
            return None
        rows = guidance.witnesses
        return self.memory.evidence(self.seen, self.h, rows, self.timeline, self.written, reading.listed, used)

    def keep(self, reading: Reading) -> EpisodicState:
        """The buffer for the next call."""
        return self.memory.keep(self.written, reading, self.before)


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
    def open(
        cls,
        memory: EpisodicMemory,
        seen: Tensor,
        h: Tensor,
        priority: Tensor,
        timeline: Timeline,
        state: EpisodicState,
    ) -> Slots:
        """Find a place for the new event: a free one, or that of the worst, of which the newest is the first to go."""
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
        return Reading(rows, None, value, mass, ((state.position >= 0) & chosen).sum(1))

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
