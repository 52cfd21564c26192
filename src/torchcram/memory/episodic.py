"""Episodic memory: attention over a bounded buffer of written events."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.config import EpisodicConfig
from torchcram.memory.contradiction import Pointer
from torchcram.memory.lessons import Evidence
from torchcram.memory.state import EpisodicState
from torchcram.memory.timeline import Timeline
from torchcram.ops import Events, Expiry, Rows, compact, episodic_read, expiry, gather_rows, scatter_rows


class Written(NamedTuple):
    """The events a call can read: the S held ones, then the N new ones."""

    key: Tensor
    """[B, S + N, H, d]"""
    value: Tensor
    """[B, S + N, H, d]"""
    priority: Tensor
    """[B, S + N], before the sigmoid."""
    known: Tensor
    """[B, S + N] bool: a contradiction index found nothing new in it."""
    position: Tensor
    """[B, S + N]: index in the sequence; -1 = none."""
    events: Events
    admitted: Tensor
    """[B, N] bool: which of the new ones were put into the buffer."""


class Reading(NamedTuple):
    """What the chosen rows of a call read."""

    rows: Rows
    value: Tensor
    """[B, R, D]: r^E."""
    mass: Tensor
    """[B, S + N]: attention each event received in this call."""
    pairs: Tensor
    """[B]: query-event pairs scored."""


_KNOWN = 8.0  # taken off the priority of what says nothing new, where it is about who stays


class EpisodicMemory(nn.Module):
    """Queries, keys and values from the token u and the working memory h; the M best events can be read (eq. 3).

    Each of the three sees u + γ ⊙ h with a γ of its own. A write's priority w is fixed at write; it enters the scores
    as log σ(w), which is how it is learned. Read, then write: a position never reads itself.
    """

    def __init__(self, width: int, config: EpisodicConfig) -> None:
        super().__init__()
        self.config = config
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.mix = nn.Parameter(torch.zeros(3, width))
        self.priority = nn.Linear(2 * width, 1)
        self.recency = nn.Parameter(torch.zeros(config.heads), requires_grad=config.recency)
        self.outward = nn.Linear(width, width, bias=False)
        # A query and a key of the same content match from the start: retrieval emerges sooner.
        self.key.weight.data.copy_(self.query.weight.data)
        self.taps = first_taps(width, config.convolution)

    def write(
        self,
        u: Tensor,
        h: Tensor,
        timeline: Timeline,
        state: EpisodicState,
        *,
        known: Tensor | None = None,
        keep_all: bool = False,
    ) -> Written:
        """Offer every real position of a call to the buffer, or to one without bounds.

        u, h [B, N, D]; known [B, N] bool: a contradiction index found nothing new there, so it is the first to go.
        """
        batch, length = timeline.mask.shape
        key = self._heads(self.key(u + self.mix[1] * h))
        value = self._heads(self.value(u + self.mix[2] * h))
        priority = self.priority(torch.cat([u, h], dim=-1)).squeeze(-1)
        known = torch.zeros_like(timeline.mask) if known is None else known
        position = timeline.position[:, :-1]
        fate = self.evictions(priority - _KNOWN * known, timeline, state, None if keep_all else self.config.slots)
        here = torch.arange(length, device=u.device).expand(batch, length)
        events = Events(
            written=torch.cat([torch.full_like(state.position, -1), here], dim=1),
            expires=fate.expires,
            time=torch.cat([state.time, timeline.time], dim=1),
        )
        return Written(
            key=_append(state.key, key),
            value=_append(state.value, value),
            priority=torch.cat([state.priority.to(priority.dtype), priority], dim=1),
            known=torch.cat([state.known, known], dim=1),
            position=torch.cat([state.position, position], dim=1),
            events=events,
            admitted=fate.admitted,
        )

    def evictions(self, priority: Tensor, timeline: Timeline, state: EpisodicState, slots: int | None) -> Expiry:
        """What becomes of the events held and of those offered, priority [B, N]."""
        position, held = timeline.position[:, :-1], state.priority - _KNOWN * state.known
        return expiry(priority.detach(), timeline.mask, timeline.start, position, held, state.position, slots)

    def read(
        self,
        u: Tensor,
        h: Tensor,
        rows: Rows,
        timeline: Timeline,
        written: Written,
        pointer: Pointer | None = None,
    ) -> Reading:
        """Look up the given rows, and no others; `pointer`: which event each token [B, N] is thought to ask for."""
        found = episodic_read(
            self._query(u, h, rows, timeline),
            written.key,
            written.value,
            nn.functional.logsigmoid(written.priority),
            self.recency,
            rows,
            gather_rows(timeline.time, rows),
            written.events,
            None
            if pointer is None
            else _pointed_at(pointer, rows, written, held=written.position.shape[1] - u.shape[1]),
        )
        return Reading(rows, self.outward(found.value.flatten(2)), found.mass, found.pairs)

    @torch.no_grad()
    def evidence(
        self, u: Tensor, h: Tensor, rows: Rows, timeline: Timeline, written: Written, used: Tensor
    ) -> Evidence:
        """What the reads of a few rows rest on; used [B, N] bool: who uses a read."""
        held = written.position.shape[1] - u.shape[1]
        query = self._query(u, h, rows, timeline)
        scores = torch.einsum("brhd,behd->bhre", query, written.key) / math.sqrt(query.shape[-1])
        age = torch.log1p(gather_rows(timeline.time, rows).unsqueeze(2) - written.events.time.unsqueeze(1))
        scores = scores + self.recency.view(-1, 1, 1) * age.clamp_min(0).unsqueeze(1).to(scores.dtype)
        scores = scores + nn.functional.logsigmoid(written.priority)[:, None, None]
        unread = ~written.events.readable(rows)
        weights = scores.masked_fill(unread.unsqueeze(1), -torch.inf).softmax(-1).nan_to_num()
        # Heads count by how much they add to the read: one may retrieve while the others idle.
        found = torch.einsum("bhre,behd->brhd", weights, written.value.to(weights.dtype))
        loud = torch.einsum("brhd,ohd->brho", found, self._heads(self.outward.weight).to(found.dtype)).norm(dim=-1)
        loud = loud / loud.sum(-1, keepdim=True).clamp_min(1e-9)
        share, event = torch.einsum("bhre,brh->bre", weights, loud)[..., held:].max(-1)
        value = gather_rows(written.value, Rows(held + event, rows.valid))
        says, using = self.outward(value.flatten(2)), gather_rows(used, rows) & rows.valid
        return Evidence(share, event, says, using, (~unread).sum((1, 2)))

    def keep(self, written: Written, reading: Reading, state: EpisodicState) -> EpisodicState:
        """The buffer after a call: the survivors in the order they have been in, then empty slots."""
        held, length = state.slots, written.admitted.shape[1]
        slots = held + length if self.config.slots is None else max(held, min(self.config.slots, held + length))
        rows = compact(written.events.expires >= length, slots)
        position = gather_rows(written.position, rows).masked_fill(~rows.valid, -1)
        return EpisodicState(
            key=gather_rows(written.key, rows).to(state.key.dtype),  # under autocast they are narrower
            value=gather_rows(written.value, rows).to(state.value.dtype),
            priority=gather_rows(written.priority, rows).to(state.priority.dtype),
            known=gather_rows(written.known, rows),
            time=gather_rows(written.events.time, rows),
            position=position,
            mass=gather_rows(reading.mass + nn.functional.pad(state.mass, (0, length)), rows),
        )

    def empty(self, batch: int) -> EpisodicState:
        """A buffer with no slots yet."""
        like, heads = self.query.weight, self.config.heads

        def none(*shape: int, dtype: torch.dtype) -> Tensor:
            # Not `like.new_zeros`: of a weight that is sharded over processes that would be sharded too.
            return torch.zeros(batch, 0, *shape, dtype=dtype, device=like.device)

        return EpisodicState(
            key=none(heads, like.shape[0] // heads, dtype=like.dtype),
            value=none(heads, like.shape[0] // heads, dtype=like.dtype),
            priority=none(dtype=like.dtype),
            known=none(dtype=torch.bool),
            time=none(dtype=torch.float64),
            position=none(dtype=torch.int64),
            mass=none(dtype=torch.promote_types(like.dtype, torch.float32)),  # it is a long sum
        )

    def _query(self, u: Tensor, h: Tensor, rows: Rows, timeline: Timeline) -> Tensor:
        query = self._heads(self.query(gather_rows(u, rows) + self.mix[0] * gather_rows(h, rows)))
        if self.config.trained_length is not None and not self.training:
            position = gather_rows(timeline.position[:, :-1], rows)
            query = query * _sharpness(position, self.config.trained_length).to(query.dtype)[..., None, None]
        return query

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.config.heads, x.shape[-1] // self.config.heads)


def first_taps(width: int, taps: int) -> nn.Parameter | None:
    """The weights [W, D] that a short convolution begins with; None for one of a single tap, which is none."""
    # What came just before counts half from the start: taps that begin at 0 are found far more slowly.
    weights = torch.full((taps, width), 0.5)
    weights[0] = 1.0
    return nn.Parameter(weights) if taps > 1 else None


def nothing_before(batch: int, taps: Tensor | None) -> Tensor | None:
    """What a convolution of these taps [W, C] has seen before a sequence begins [B, W - 1, C]; None without one."""
    if taps is None or len(taps) == 1:
        return None
    # Not `taps.new_zeros`: of a weight that is sharded over processes that would be sharded too.
    return torch.zeros(batch, len(taps) - 1, taps.shape[1], dtype=taps.dtype, device=taps.device)


def smooth(u: Tensor, before: Tensor, taps: Tensor) -> Tensor:
    """A short causal convolution, a weight per channel and tap: u [B, N, D], before [B, N, W - 1, D], taps [W, D]."""
    return taps[0] * u + torch.einsum("bnwd,wd->bnd", before, taps[1:])


def _pointed_at(pointer: Pointer, rows: Rows, written: Written, held: int) -> Tensor:
    """The number of the event [B, R] that each row is pointed at, -1: none. It may be one that the row cannot read."""
    here = gather_rows(pointer.here, rows)
    if held == 0:
        return here
    position, event = gather_rows(pointer.position, rows), torch.where(here >= 0, held + here, -1)
    before = compact((position >= 0) & (here < 0) & rows.valid)
    found = written.position[:, None, :held] == gather_rows(position, before).unsqueeze(2)
    among_held = torch.where(found.any(2), found.long().argmax(2), -1)
    return torch.maximum(event, scatter_rows(among_held + 1, before, rows.at.shape[1]) - 1)


def _sharpness(position: Tensor, trained_length: int) -> Tensor:
    """What queries are multiplied by: 1 up to the length of training, then the growth of log(position), squared.

    As n keys compete, they share the mass a softmax leaves them, and the closest wrong one comes nearer: scores must
    grow faster than log n. The square is what worked (docs/decisions/009-sharper-reads-further-on.md).
    """
    beyond = position.clamp_min(trained_length).double().log() / math.log(trained_length)
    return beyond.square()


def _append(held: Tensor, new: Tensor) -> Tensor:
    """Held and new events [B, ., H, d], laid out in memory head by head, which is how a read walks through them."""
    return torch.cat([held.to(new.dtype).transpose(1, 2), new.transpose(1, 2)], dim=2).transpose(1, 2)
