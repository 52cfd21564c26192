"""Episodic memory: attention over a bounded buffer of written events."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.config import ContradictionConfig, EpisodicConfig
from torchcram.memory.contradiction import LIKELY, ContradictionIndex, Marks
from torchcram.memory.state import EpisodicState, IndexState
from torchcram.memory.timeline import Timeline
from torchcram.ops import Events, Expiry, Rows, episodic_read, expiry, gather_rows


class Written(NamedTuple):
    """The events a call can read: the S held ones, then the N new ones."""

    key: Tensor
    """[B, S + N, H, d]"""
    value: Tensor
    """[B, S + N, H, d]"""
    priority: Tensor
    """[B, S + N]: who stays, before the sigmoid."""
    asked: Tensor
    """[B, S + N]: logit that an event will be asked for, if memory does not know it; without an index its priority."""
    position: Tensor
    """[B, S + N]: index in the sequence; -1 = none."""
    events: Events
    slot: Tensor
    """[B, N]: where each new event was put; -1 = nowhere."""
    stays: Tensor
    """[B, S + N] bool: the event has a slot after the call, read or not."""
    marks: Marks | None
    """Of the contradiction index, if there is one."""
    hits: Tensor | None
    """[B, N] bool: the position asks for an event that semantic memory does not know; None if none was looked for."""
    compared: Tensor | None
    """[B]: pairs of a position and a mark compared to find that out."""


class Reading(NamedTuple):
    """What the chosen rows of a call read."""

    rows: Rows
    value: Tensor
    """[B, R, D]: r^E."""
    mass: Tensor
    """[B, S + N]: attention each event received in this call."""
    pairs: Tensor
    """[B]: query-event pairs scored."""


class EpisodicMemory(nn.Module):
    """Queries, keys and values from the token u and the working memory h; the M best events can be read (eq. 3).

    Each of the three sees u + γ ⊙ h with a γ of its own. A write's priority w is fixed at write; it enters the scores
    as log σ(w), which is how it is learned. Read, then write: a position never reads itself. With a contradiction
    index, events that semantic memory knows are the first to go; scores are what they would be without it.
    """

    def __init__(self, width: int, config: EpisodicConfig, index: ContradictionConfig | None = None) -> None:
        super().__init__()
        self.config = config
        self.index = ContradictionIndex(width, index) if index is not None and index.rank else None
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.mix = nn.Parameter(torch.zeros(3, width))
        self.priority = nn.Linear(2 * width, 1)
        self.recency = nn.Parameter(torch.zeros(config.heads), requires_grad=config.recency)
        self.outward = nn.Linear(width, width, bias=False)
        # A query and a key of the same content match from the start: retrieval emerges sooner.
        self.key.weight.data.copy_(self.query.weight.data)
        if config.convolution > 1:
            # What came just before counts half from the start: taps that begin at 0 are found far more slowly.
            taps = torch.full((config.convolution, width), 0.5)
            taps[0] = 1.0
            self.taps = nn.Parameter(taps)

    def smooth(self, u: Tensor, before: Tensor) -> Tensor:
        """The short causal convolution, a weight per channel and tap: u [B, N, D], before [B, N, W - 1, D]."""
        return self.taps[0] * u + torch.einsum("bnwd,wd->bnd", before, self.taps[1:])

    def write(
        self, u: Tensor, h: Tensor, timeline: Timeline, state: EpisodicState, *, keep_all: bool = False
    ) -> Written:
        """Offer every real position of a call to the buffer, or to one without bounds. u, h [B, N, D]."""
        batch, length = timeline.mask.shape
        key = self._heads(self.key(u + self.mix[1] * h))
        value = self._heads(self.value(u + self.mix[2] * h))
        asked = self.priority(torch.cat([u, h], dim=-1)).squeeze(-1)
        priority, marks = asked, None
        if self.index is not None and state.index is not None:
            likely = (asked.detach() > LIKELY) & timeline.mask
            marks, known = self.index.look(u, value, likely, state.index.mark)
            # Worth its place: asked for, and not known. σ(w) is the product of the two chances.
            product = -torch.stack([-asked, known, known - asked]).logsumexp(0)
            priority = torch.where(likely, product, asked).detach()
        position = timeline.position[:, :-1]
        fate = self.evictions(priority, timeline, state, None if keep_all else self.config.slots)
        here = torch.arange(length, device=u.device).expand(batch, length)
        events = Events(
            written=torch.cat([torch.full_like(state.position, -1), here], dim=1),
            expires=fate.expires,
            time=torch.cat([state.time, timeline.time], dim=1),
        )
        priority = torch.cat([state.priority.to(priority.dtype), priority], dim=1)
        hits, compared = None, None
        if self.index is None or state.index is None:
            asked = priority
        else:
            asked = torch.cat([state.index.asked.to(asked.dtype), asked], dim=1)
            lost = nn.functional.pad(state.index.superseded, (0, length))
            events = events._replace(expires=events.expires.masked_fill(lost, -1))
        if self.index is not None and marks is not None and not keep_all:
            hits, lasts, compared = self.index.consult(u, timeline.mask, marks, events)
            events = events._replace(expires=torch.minimum(events.expires, lasts))
        return Written(
            key=_append(state.key, key),
            value=_append(state.value, value),
            priority=priority,
            asked=asked,
            position=torch.cat([state.position, position], dim=1),
            events=events,
            slot=fate.slot,
            stays=fate.expires >= length,
            marks=marks,
            hits=hits,
            compared=compared,
        )

    def evictions(self, priority: Tensor, timeline: Timeline, state: EpisodicState, slots: int | None) -> Expiry:
        """What becomes of the events held and of those offered, priority [B, N]."""
        position = timeline.position[:, :-1]
        return expiry(priority.detach(), timeline.mask, timeline.start, position, state.priority, state.position, slots)

    def read(self, u: Tensor, h: Tensor, rows: Rows, timeline: Timeline, written: Written) -> Reading:
        """Look up the given rows, and no others."""
        found = episodic_read(
            self._query(u, h, rows, timeline),
            written.key,
            written.value,
            nn.functional.logsigmoid(written.asked),
            self.recency,
            rows,
            gather_rows(timeline.time, rows),
            written.events,
        )
        return Reading(rows, self.outward(found.value.flatten(2)), found.mass, found.pairs)

    @torch.no_grad()
    def shares(self, u: Tensor, h: Tensor, rows: Rows, timeline: Timeline, written: Written) -> Tensor:
        """The attention [B, R, S + N] that a few rows pay to each event, mean over the heads."""
        query = self._query(u, h, rows, timeline)
        scores = torch.einsum("brhd,behd->bhre", query, written.key) / math.sqrt(query.shape[-1])
        age = torch.log1p(gather_rows(timeline.time, rows).unsqueeze(2) - written.events.time.unsqueeze(1))
        scores = scores + self.recency.view(-1, 1, 1) * age.clamp_min(0).unsqueeze(1).to(scores.dtype)
        scores = scores + nn.functional.logsigmoid(written.asked)[:, None, None]
        unread = ~written.events.readable(rows)
        return scores.masked_fill(unread.unsqueeze(1), -torch.inf).softmax(-1).nan_to_num().mean(1)

    def keep(self, written: Written, reading: Reading, state: EpisodicState) -> EpisodicState:
        """The buffer after a call: each survivor in its slot."""
        batch, length = written.slot.shape
        held = state.slots
        slots = held + length if self.config.slots is None else max(held, min(self.config.slots, held + length))
        # source[s]: the event that ends up in slot s; the spare column takes those that do not stay.
        source = torch.full((batch, slots + 1), -1, dtype=torch.int64, device=written.slot.device)
        own = torch.arange(held + length, device=written.slot.device).expand(batch, -1)
        slot = torch.cat([own[:, :held], written.slot], dim=1)
        source.scatter_(1, torch.where(written.stays, slot, slots), own)
        source = source[:, :slots]
        rows = Rows(source.clamp_min(0), source >= 0)
        index = None
        if written.marks is not None and state.index is not None:
            superseded = written.events.expires < length  # of those that stay
            mark = written.marks.mark.masked_fill(superseded.unsqueeze(-1), 0)
            index = IndexState(
                asked=gather_rows(written.asked, rows).to(state.index.asked.dtype),
                mark=gather_rows(mark, rows).to(state.index.mark.dtype),
                superseded=gather_rows(superseded, rows),
            )
        position = gather_rows(written.position, rows).masked_fill(~rows.valid, -1)
        return EpisodicState(
            key=gather_rows(written.key, rows).to(state.key.dtype),  # under autocast they are narrower
            value=gather_rows(written.value, rows).to(state.value.dtype),
            priority=gather_rows(written.priority, rows).to(state.priority.dtype),
            time=gather_rows(written.events.time, rows),
            position=position,
            mass=gather_rows(reading.mass + nn.functional.pad(state.mass, (0, length)), rows),
            index=index,
        )

    def empty(self, batch: int) -> EpisodicState:
        """A buffer with no slots yet."""
        like, heads = self.query.weight, self.config.heads

        def none(*shape: int, dtype: torch.dtype) -> Tensor:
            # Not `like.new_zeros`: of a weight that is sharded over processes that would be sharded too.
            return torch.zeros(batch, 0, *shape, dtype=dtype, device=like.device)

        index = None
        if self.index is not None:
            rank = self.index.config.rank
            index = IndexState(
                asked=none(dtype=like.dtype), mark=none(rank, dtype=like.dtype), superseded=none(dtype=torch.bool)
            )
        return EpisodicState(
            key=none(heads, like.shape[0] // heads, dtype=like.dtype),
            value=none(heads, like.shape[0] // heads, dtype=like.dtype),
            priority=none(dtype=like.dtype),
            time=none(dtype=torch.float64),
            position=none(dtype=torch.int64),
            mass=none(dtype=torch.promote_types(like.dtype, torch.float32)),  # it is a long sum
            index=index,
        )

    def _query(self, u: Tensor, h: Tensor, rows: Rows, timeline: Timeline) -> Tensor:
        query = self._heads(self.query(gather_rows(u, rows) + self.mix[0] * gather_rows(h, rows)))
        if self.config.trained_length is not None and not self.training:
            position = gather_rows(timeline.position[:, :-1], rows)
            query = query * _sharpness(position, self.config.trained_length).to(query.dtype)[..., None, None]
        return query

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.config.heads, x.shape[-1] // self.config.heads)


def first_rows(rows: Rows, order: Tensor, most: int) -> tuple[Rows, Tensor]:
    """The `most` rows that come first by `order` [B, R], in the order of positions, and which of the R they were."""
    if rows.at.shape[1] <= most:
        return rows, torch.arange(rows.at.shape[1], device=rows.at.device).expand_as(rows.at)
    picked = order.masked_fill(~rows.valid, torch.inf).topk(most, largest=False).indices.sort(1).values
    return Rows(rows.at.gather(1, picked), rows.valid.gather(1, picked)), picked


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
