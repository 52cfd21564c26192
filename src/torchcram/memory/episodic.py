"""Episodic memory: attention over a bounded buffer of written events."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.config import EpisodicConfig
from torchcram.memory.contradiction import Pointer
from torchcram.memory.joint import Map
from torchcram.memory.lessons import Evidence
from torchcram.memory.state import EpisodicState
from torchcram.memory.timeline import Timeline
from torchcram.ops import KNOWN, Events, Expiry, Rows, compact, episodic_read, expiry, gather_rows, scatter_rows
from torchcram.ops.rows import following, longest


class Written(NamedTuple):
    """What became of the events of a call: the S held ones, then the N new ones."""

    priority: Tensor
    """[B, S + N], before the sigmoid."""
    known: Tensor
    """[B, S + N] bool: a contradiction index found nothing new in it."""
    position: Tensor
    """[B, S + N]: index in the sequence; -1 = none."""
    events: Events
    admitted: Tensor
    """[B, N] bool: which of the new ones were put into the buffer."""

    @property
    def held(self) -> int:
        """S."""
        return self.position.shape[1] - self.admitted.shape[1]


class Picked(NamedTuple):
    """New events of a call that are of any use."""

    rows: Rows | None
    """None: all of them."""
    needed: Tensor
    """[]: the most of any sequence; 0 if none was picked. There may be room for fewer."""


class Listed(NamedTuple):
    """Events with keys and values: the S held ones, then the new ones that are of any use, in the order of writing."""

    number: Tensor
    """[B, E]: among the S + N of the call."""
    valid: Tensor
    """[B, E] bool: not padding, which nobody can read."""
    key: Tensor
    """[B, E, H, d]"""
    value: Tensor
    """[B, E, H, d]"""
    strength: Tensor
    """[B, E]: log σ(w)."""
    events: Events
    useful: Tensor
    """[]: see `Picked.needed`."""

    def detached(self) -> Listed:
        """The same to look at, without gradients."""
        # Not `_replace`: compiled code could not return it.
        key, value, strength = (x.detach() for x in (self.key, self.value, self.strength))
        return Listed(self.number, self.valid, key, value, strength, self.events, self.useful)

    def place(self, number: Tensor, total: int) -> Tensor:
        """Where in the list the events of these numbers [B, R] are, of `total` in the call; -1: nowhere."""
        place = torch.arange(1, self.number.shape[1] + 1, device=number.device).expand_as(self.number)
        places = scatter_rows(place, Rows(self.number, self.valid), total) - 1
        return torch.where(number >= 0, places.gather(1, number.clamp_min(0)), -1)


class Reading(NamedTuple):
    """What the chosen rows of a call read."""

    rows: Rows
    listed: Listed | None
    """What they could read; None: all that is held, as it is."""
    value: Tensor
    """[B, R, D]: r^E."""
    mass: Tensor
    """[B, S + N]: attention each event received in this call."""
    pairs: Tensor
    """[B]: query-event pairs scored."""

    def detached(self) -> Reading:
        """The same to look at, without gradients."""
        listed = None if self.listed is None else self.listed.detached()
        return Reading(self.rows, listed, self.value.detach(), self.mass, self.pairs)


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

    @property
    def of_token(self) -> Map:
        """The part of the priority's map that sees the token, without its bias."""
        return Map(self.priority.weight[:, : self.mix.shape[1]])

    @property
    def of_working(self) -> Map:
        """The part that sees working memory."""
        return Map(self.priority.weight[:, self.mix.shape[1] :])

    def priority_of(self, token: Tensor, working: Tensor) -> Tensor:
        """w [B, N] from what `of_token` made of the tokens and `of_working` of h, both [B, N, 1]."""
        return (token + working + self.priority.bias.to(token.dtype)).squeeze(-1)

    def write(
        self,
        priority: Tensor,
        timeline: Timeline,
        state: EpisodicState,
        *,
        known: Tensor | None = None,
        keep_all: bool = False,
    ) -> Written:
        """Offer every real position of a call to the buffer, or to one without bounds.

        priority [B, N]: of `priority_of`. known [B, N] bool: a contradiction index found nothing new there, so it is
        the first to go.
        """
        batch, length = timeline.mask.shape
        known = torch.zeros_like(timeline.mask) if known is None else known
        position = timeline.position[:, :-1]
        fate = self.evictions(priority - KNOWN * known, timeline, state, None if keep_all else self.config.slots)
        here = torch.arange(length, device=priority.device).expand(batch, length)
        events = Events(
            written=torch.cat([torch.full_like(state.position, -1), here], dim=1),
            expires=fate.expires,
            time=torch.cat([state.time, timeline.time], dim=1),
        )
        return Written(
            priority=torch.cat([state.priority.to(priority.dtype), priority], dim=1),
            known=torch.cat([state.known, known], dim=1),
            position=torch.cat([state.position, position], dim=1),
            events=events,
            admitted=fate.admitted,
        )

    def evictions(self, priority: Tensor, timeline: Timeline, state: EpisodicState, slots: int | None) -> Expiry:
        """What becomes of the events held and of those offered, priority [B, N]."""
        position, held = timeline.position[:, :-1], state.priority - KNOWN * state.known
        start = timeline.start if timeline.packed else None
        return expiry(priority.detach(), timeline.mask, start, position, held, state.position, slots)

    def look(
        self,
        u: Tensor,
        h: Tensor,
        rows: Rows,
        timeline: Timeline,
        written: Written,
        state: EpisodicState,
        readers: Tensor | None,
        pointer: Pointer | None = None,
        *,
        keep: bool,
        room: int | None = None,
    ) -> Reading:
        """Look up the given rows, and no others; `pointer`: which event each token [B, N] is thought to ask for.

        u, h [B, N, D]. readers, keep, room: see `pick`; rows are among the readers.
        """
        picked = self.pick(written, readers, keep=keep, room=room)
        if picked.rows is None:
            askers, events = (gather_rows(u, rows), gather_rows(h, rows)), (u, h)
        elif torch.compiler.is_compiling():
            askers, events = ((gather_rows(u, each), gather_rows(h, each)) for each in (rows, picked.rows))
        else:
            # Both at once: each tensor that is gathered from has to be filled with gradients once only.
            count = rows.at.shape[1]
            both = Rows(*(torch.cat(parts, dim=1) for parts in zip(rows[:2], picked.rows[:2], strict=True)))
            found = gather_rows(u, both), gather_rows(h, both)
            askers, events = (found[0][:, :count], found[1][:, :count]), (found[0][:, count:], found[1][:, count:])
        listed = self.list(*events, picked, written, state)
        target = None
        total = written.position.shape[1]
        if pointer is not None:
            target = listed.place(_pointed_at(pointer, rows, written), total)
        read = episodic_read(
            self.query_of(*askers, rows, timeline),
            listed.key,
            listed.value,
            listed.strength,
            self.recency,
            rows,
            gather_rows(timeline.time, rows),
            listed.events,
            target,
        )
        mass = read.mass
        if picked.rows is not None:
            # Only the new ones are not where they belong.
            held, length = written.held, written.admitted.shape[1]
            mass = torch.cat([mass[:, :held], scatter_rows(mass[:, held:], picked.rows, length)], dim=1)
        return Reading(rows, listed, self.outward(read.value.flatten(2)), mass, read.pairs)

    def pick(self, written: Written, readers: Tensor | None, *, keep: bool, room: int | None = None) -> Picked:
        """The new events that `readers` [B, N] bool can read, and with `keep` those that stay; None: all of them.

        All others would be listed for nothing: of most events in a long sequence nobody ever asks. room: for how many
        of a sequence.
        """
        if readers is None:
            return Picked(None, torch.zeros((), dtype=torch.int64, device=written.position.device))
        wanted = useful(written.events.expires[:, written.held :], readers, keep=keep)
        new = compact(wanted, room)
        if new.at.shape[1] == 0:
            new = compact(wanted, 1)  # a list of nothing but padding, so that there is something to gather from
        return Picked(new, longest(new))

    def list(self, u: Tensor, h: Tensor, picked: Picked, written: Written, state: EpisodicState) -> Listed:
        """Keys and values of the events held, and of those picked, whose u and h are [B, E, D]."""
        held, events = written.held, written.events
        if picked.rows is None:
            number = torch.arange(written.position.shape[1], device=u.device).expand_as(written.position)
            valid, listed, strength = torch.ones_like(written.known), events, written.priority
        else:
            new = picked.rows
            own = torch.arange(held, device=u.device).expand(len(u), held)
            number = torch.cat([own, held + new.at], dim=1)
            valid = torch.cat([torch.ones_like(own, dtype=torch.bool), new.valid], dim=1)
            never = written.admitted.shape[1]  # of padding: it is written when all is over
            written_at, expires = (x.gather(1, number).masked_fill(~valid, never) for x in events[:2])
            listed = Events(written_at, expires, events.time.gather(1, number))
            strength = written.priority.gather(1, number)
        key, value = self.pair_of(u, h)
        return Listed(
            number=number,
            valid=valid,
            key=_append(state.key, key),
            value=_append(state.value, value),
            strength=nn.functional.logsigmoid(strength),
            events=listed,
            useful=picked.needed,
        )

    @torch.no_grad()
    def evidence(
        self, u: Tensor, h: Tensor, rows: Rows, timeline: Timeline, written: Written, listed: Listed, used: Tensor
    ) -> Evidence:
        """What the reads of a few rows rest on, which are among those `listed` for; used [B, N] bool: who uses one."""
        query = self.query_of(gather_rows(u, rows), gather_rows(h, rows), rows, timeline)
        scores = torch.einsum("brhd,behd->bhre", query, listed.key) / math.sqrt(query.shape[-1])
        age = torch.log1p(gather_rows(timeline.time, rows).unsqueeze(2) - listed.events.time.unsqueeze(1))
        scores = scores + self.recency.view(-1, 1, 1) * age.clamp_min(0).unsqueeze(1).to(scores.dtype)
        scores = scores + listed.strength[:, None, None]
        unread = ~listed.events.readable(rows)
        weights = scores.masked_fill(unread.unsqueeze(1), -torch.inf).softmax(-1).nan_to_num()
        # Heads count by how much they add to the read: one may retrieve while the others idle.
        found = torch.einsum("bhre,behd->brhd", weights, listed.value.to(weights.dtype))
        loud = torch.einsum("brhd,ohd->brho", found, self._heads(self.outward.weight).to(found.dtype)).norm(dim=-1)
        loud = loud / loud.sum(-1, keepdim=True).clamp_min(1e-9)
        share, place = torch.einsum("bhre,brh->bre", weights, loud)[..., written.held :].max(-1)
        place = place + written.held
        event = listed.number.gather(1, place) - written.held
        says = self.outward(gather_rows(listed.value, Rows(place, rows.valid)).flatten(2))
        return Evidence(share, event, says, gather_rows(used, rows) & rows.valid, (~unread).sum((1, 2)))

    def keep(self, written: Written, reading: Reading, state: EpisodicState) -> EpisodicState:
        """The buffer after a call that listed them: the survivors in the order they have been in, then empty slots."""
        held, length = state.slots, written.admitted.shape[1]
        slots = held + length if self.config.slots is None else max(held, min(self.config.slots, held + length))
        listed = reading.listed
        assert listed is not None
        stays = compact(listed.valid & (listed.events.expires >= length), slots)
        rows = Rows(gather_rows(listed.number, stays), stays.valid)
        position = gather_rows(written.position, rows).masked_fill(~rows.valid, -1)
        return EpisodicState(
            key=gather_rows(listed.key, stays).to(state.key.dtype),  # under autocast they are narrower
            value=gather_rows(listed.value, stays).to(state.value.dtype),
            priority=gather_rows(written.priority, rows).to(state.priority.dtype),
            known=gather_rows(written.known, rows),
            time=gather_rows(written.events.time, rows),
            position=position,
            mass=gather_rows(reading.mass + nn.functional.pad(state.mass, (0, length)), rows),
        )

    def empty(self, batch: int) -> EpisodicState:
        """A buffer with no slots yet."""
        like, heads = self.mix, self.config.heads  # which is never made narrow
        size = like.shape[1] // heads

        def none(*shape: int, dtype: torch.dtype) -> Tensor:
            # Not `like.new_zeros`: of a weight that is sharded over processes that would be sharded too.
            return torch.zeros(batch, 0, *shape, dtype=dtype, device=like.device)

        return EpisodicState(
            key=none(heads, size, dtype=like.dtype),
            value=none(heads, size, dtype=like.dtype),
            priority=none(dtype=like.dtype),
            known=none(dtype=torch.bool),
            time=none(dtype=torch.float64),
            position=none(dtype=torch.int64),
            mass=none(dtype=torch.promote_types(like.dtype, torch.float32)),  # it is a long sum
        )

    def pair_of(self, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, H, d] of u and h [B, R, D]."""
        return self._heads(self.key(u + self.mix[1] * h)), self._heads(self.value(u + self.mix[2] * h))

    def query_of(self, u: Tensor, h: Tensor, rows: Rows, timeline: Timeline) -> Tensor:
        """Queries [B, R, H, d] of the given rows, whose u and h are [B, R, D]."""
        query = self._heads(self.query(u + self.mix[0] * h))
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


def useful(expires: Tensor, readers: Tensor, *, keep: bool) -> Tensor:
    """[B, N] bool: new events that a later reader finds before they expire [B, N]; with `keep`, those that stay too."""
    length, reader = readers.shape[1], following(readers)
    read = (reader <= expires) & (reader < length)
    return read | (expires >= length) if keep else read


def _pointed_at(pointer: Pointer, rows: Rows, written: Written) -> Tensor:
    """The number of the event [B, R] that each row is pointed at, -1: none. It may be one that the row cannot read."""
    held = written.held
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
    """Held and new events [B, ., H, d]; on a CPU laid out in memory head by head, which is how a read walks there."""
    if new.is_cuda:
        return torch.cat([held.to(new.dtype), new], dim=1) if held.shape[1] else new
    return torch.cat([held.to(new.dtype).transpose(1, 2), new.transpose(1, 2)], dim=2).transpose(1, 2)
