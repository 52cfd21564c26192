"""Attention of some tokens to some earlier ones, with a cache: what all baselines with attention are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.config import AttentionConfig
from torchcram.memory import Timeline
from torchcram.models.baselines.state import CacheState
from torchcram.ops import Rows, compact, gather_rows, turn, turn_apart


class Looked(NamedTuple):
    """What came of it."""

    value: Tensor
    """[B, R, H, d]"""
    pairs: Tensor
    """[B]: query-key pairs scored."""
    cache: CacheState | None
    """For the next call, if it was to be kept."""


# An operator of its own: compiled code would work them out anew for every head of queries and of keys.
@torch.library.custom_op("torchcram::angles", mutates_args=())
def angles(position: Tensor, rates: Tensor) -> Tensor:
    """[2, B, R, d/2]: sines and cosines for positions [B, R]; rates: see `Turn`."""
    # In two parts: the product of a large position and a rate would lose what is after the point.
    angle = (position & 255).unsqueeze(-1) * rates[0] + (position >> 8).unsqueeze(-1) * rates[1]
    return torch.stack([angle.sin(), angle.cos()])


@angles.register_fake
def _(position: Tensor, rates: Tensor) -> Tensor:
    return rates.new_empty(2, *position.shape, rates.shape[1])


class Turn(nn.Module):
    """Rotary positions: pairs of numbers turned by an angle that grows with the position; or nothing at all."""

    rates: Tensor

    def __init__(self, config: AttentionConfig, size: int) -> None:
        """size: of a head."""
        super().__init__()
        self.on, self.size = config.rotary, size
        self.register_buffer("rates", self._rates(torch.float32), persistent=False)

    def _rates(self, dtype: torch.dtype) -> Tensor:
        """[2, d/2]: turns from one a position to one in 10,000, and what 256 positions are beyond whole turns."""
        rate = 10_000.0 ** (-torch.arange(self.size // 2, dtype=torch.float64) / (self.size // 2))
        return torch.stack([rate, (256 * rate).remainder(2 * math.pi)]).to(dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Turn:
        """Angles need the precision that a model in bfloat16 does not have."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        wide = torch.promote_types(self.rates.dtype, torch.float32)
        self.rates = self._rates(wide).to(self.rates.device)
        return self

    def angles(self, position: Tensor) -> Tensor | None:
        """[2, B, R, d/2], sines and cosines for positions [B, R]; None if nothing is turned."""
        return angles(position, self.rates) if self.on else None

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        """x [B, R, H, d], turned by the angles of its positions."""
        if angles is None:
            return x
        return turn(x, angles)

    def apart(self, joint: Tensor, position: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, turned, and values, each [B, R, H, d], of positions [B, R] from [B, R, 3 H d]."""
        angles = self.angles(position)
        if angles is None:
            query, key, value = joint.view(*joint.shape[:2], 3, heads, -1).unbind(2)
            return query, key, value
        return turn_apart(joint, angles, heads)


def look_back(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    timeline: Timeline,
    held: CacheState,
    config: AttentionConfig,
    turn: Turn | None,
    *,
    rows: Rows | None = None,
    events: Rows | None = None,
    in_order: bool = False,
    keep: bool = True,
) -> Looked:
    """Each row attends to itself, if it is an event, and to the events of its sequence before it.

    query [B, R, H, d] of `rows`, key and value [B, E, H, d] of `events`; None: of all tokens. turn: None, if queries
    and keys are turned already. With a window, only events less than so many positions back; `in_order`: only the last
    so many events.
    """
    window = config.window
    at = _position(rows, timeline)
    position = at if events is rows else _position(events, timeline)
    if turn is not None:
        turned = turn.angles(at)
        query, key = turn(query, turned), turn(key, turned if position is at else turn.angles(position))
    batch, count = query.shape[:2]
    plain = rows is None and events is None and held.slots == 0 and not (timeline.padded or timeline.packed)
    if plain and window is None:
        found = _attend(query, key, value, causal=True)
        pairs = torch.full((batch,), count * (count + 1) // 2, device=query.device)
        return Looked(found, pairs, CacheState(position=position, key=key, value=value) if keep else None)
    all_keys = torch.cat([held.key.to(key.dtype), key], dim=1)
    all_values = torch.cat([held.value.to(value.dtype), value], dim=1)
    known = _Events.of(timeline, held, events, position)
    allowed = known.before(timeline, rows, at)
    if window is not None:
        own = known.number_at(timeline, rows) if in_order else at
        allowed &= (known.number if in_order else known.position).unsqueeze(1) > (own - window).unsqueeze(2)
    # Rows that are padding may look at anything: what they find is dropped.
    seen = allowed if rows is None and not timeline.padded else allowed | ~_valid(timeline, rows).unsqueeze(2)
    found = _attend(query, all_keys, all_values, allowed=seen)
    cache = None
    if keep:
        stays = known.staying(timeline, window, in_order=in_order)
        kept = (gather_rows(x, stays) for x in (all_keys, all_values))
        position = gather_rows(known.position, stays).masked_fill(~stays.valid, -1)
        cache = CacheState(position=position, key=next(kept), value=next(kept))
    return Looked(found, allowed.sum((1, 2)), cache)


class _Events(NamedTuple):
    """Held and new events in the order of writing, all [B, S + E]."""

    position: Tensor
    """In the sequence; -1: none."""
    written: Tensor
    """Where in the call; -1: before it."""
    sequence: Tensor
    """How many sequences had begun in the call when it was written."""
    number: Tensor
    """1, 2, … in the order of writing; 0: none."""

    @classmethod
    def of(cls, timeline: Timeline, held: CacheState, events: Rows | None, position: Tensor) -> _Events:
        sequence = timeline.start.cumsum(1)
        if events is None:
            real = timeline.mask
            at = torch.arange(real.shape[1], device=real.device).expand_as(real)
        else:
            real, at, sequence = events.valid, events.at, gather_rows(sequence, events)
        valid = torch.cat([held.position >= 0, real], dim=1)
        return cls(
            position=torch.cat([held.position, position], dim=1).masked_fill(~valid, -1),
            written=torch.cat([torch.full_like(held.position, -1), at], dim=1),
            sequence=torch.cat([torch.zeros_like(held.position), sequence], dim=1),
            number=valid.cumsum(1) * valid,
        )

    def before(self, timeline: Timeline, rows: Rows | None, position: Tensor) -> Tensor:
        """[B, R, E] bool: the events of its sequence that a row, at a position [B, R], can look at."""
        sequence = timeline.start.cumsum(1)
        here = torch.arange(sequence.shape[1], device=sequence.device).expand_as(sequence)
        if rows is not None:
            sequence, here = gather_rows(sequence, rows), rows.at
        allowed = (self.number > 0).unsqueeze(1) & (self.written.unsqueeze(1) <= here.unsqueeze(2))
        allowed &= self.sequence.unsqueeze(1) == sequence.unsqueeze(2)
        return allowed & _valid(timeline, rows).unsqueeze(2)

    def number_at(self, timeline: Timeline, rows: Rows | None) -> Tensor:
        """The number [B, R] that a row has that is an event itself."""
        held = self.number.shape[1] - (timeline.mask.shape[1] if rows is None else rows.at.shape[1])
        return self.number[:, held:]

    def staying(self, timeline: Timeline, window: int | None, *, in_order: bool) -> Rows:
        """Those that the next call can look at."""
        stays = (self.number > 0) & (self.sequence == timeline.start.sum(1, keepdim=True))
        if window is not None and in_order:
            stays &= self.number > self.number.cummax(1).values[:, -1:] + 1 - window
        elif window is not None:
            stays &= self.position > timeline.position[:, -1:] - window
        return compact(stays)


def empty_cache(batch: int, heads: int, size: int, like: Tensor) -> CacheState:
    """A cache with nothing in it."""
    nothing = torch.zeros(batch, 0, heads, size, dtype=like.dtype, device=like.device)
    return CacheState(
        position=torch.zeros(batch, 0, dtype=torch.int64, device=like.device), key=nothing, value=nothing.clone()
    )


def _valid(timeline: Timeline, rows: Rows | None) -> Tensor:
    return timeline.mask if rows is None else rows.valid


def _position(rows: Rows | None, timeline: Timeline) -> Tensor:
    """[B, R]: in the sequence."""
    position = timeline.position[:, :-1]
    return position if rows is None else gather_rows(position, rows)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, allowed: Tensor | None = None
) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    mask = allowed.unsqueeze(1) if allowed is not None else None
    found = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return found.transpose(1, 2)
