"""Mixers in which every token looks back; and what those are made of in which some do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcram.config import BaselineConfig, EpisodicConfig
from torchcram.memory import Timeline
from torchcram.memory.episodic import EpisodicMemory, first_taps, nothing_before, smooth
from torchcram.memory.losses import Counts, priority_loss, worth_telling
from torchcram.models.baselines.lookback import Turn, empty_cache, look_back
from torchcram.models.baselines.mixer import Mixed, by_head
from torchcram.models.baselines.state import MixerState
from torchcram.ops import Rows, compact, gather_rows, scatter_rows


class Attention(nn.Module):
    """Every token looks back at all, or at those in a window."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        width = config.block.width
        self.config = config.attention
        self.inward = nn.Linear(width, 3 * width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)
        # As in CRAM: a query and a key of the same content match from the start.
        self.inward.weight.data[width : 2 * width] = self.inward.weight.data[:width]
        self.taps = first_taps(width, self.config.convolution)
        self.turn = Turn(self.config, width // self.config.heads)

    def initial_state(self, batch: int) -> MixerState:
        like, c = self.outward.weight, self.config
        cache = empty_cache(batch, c.heads, like.shape[0] // c.heads, like)
        return MixerState(cache=cache, recent=nothing_before(batch, self.taps))

    def forward(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        assert state.cache is not None
        u, recent = _smoothed(u, self.taps, timeline, state.recent)
        parts = self.turn.apart(self.inward(u), timeline.position[:, :-1], self.config.heads)
        found = look_back(*parts, timeline, state.cache, self.config, None, keep=keep)
        out = self.outward(found.value.flatten(2))
        return Mixed(out, MixerState(cache=found.cache, recent=recent), timeline.mask, timeline.mask, found.pairs, {})


class SlottedAttention(nn.Module):
    """Every token looks back at the events of highest priority, of which CRAM's own buffer holds as many."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        self.memory = EpisodicMemory(
            config.block.width,
            EpisodicConfig(
                slots=config.attention.slots,
                heads=config.attention.heads,
                convolution=config.attention.convolution,
            ),
        )

    def initial_state(self, batch: int) -> MixerState:
        return MixerState(episodic=self.memory.empty(batch), recent=nothing_before(batch, self.memory.taps))

    def forward(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        assert state.episodic is not None
        u, recent = _smoothed(u, self.memory.taps, timeline, state.recent)
        none = torch.zeros_like(u)  # there is no working memory that keys could see
        priority = self.memory.priority_of(self.memory.of_token(u), self.memory.of_working(none))
        written = self.memory.write(priority, timeline, state.episodic)
        reading = self.memory.look(u, none, compact(timeline.mask), timeline, written, state.episodic, None, keep=keep)
        value = scatter_rows(reading.value, reading.rows, u.shape[1])
        losses = {}
        if self.training:
            length, counts = u.shape[1], Counts.of(timeline.mask, reading, written)
            of_new = written.priority[:, -length:], reading.mass[:, -length:]
            losses["priority"] = priority_loss(*of_new, worth_telling(written), counts.events)
        kept = self.memory.keep(written, reading, state.episodic) if keep else None
        after = MixerState(episodic=kept, recent=recent)
        return Mixed(value, after, timeline.mask, written.admitted, reading.pairs, losses)


def _smoothed(
    u: Tensor, taps: Tensor | None, timeline: Timeline, recent: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The tokens after the short convolution, if there is one, and what to carry on."""
    if taps is None or recent is None:
        return u, None
    before, recent = timeline.previous(u, recent)
    return smooth(u, before, taps), recent


def attend_rows(
    attention: Attention,
    u: Tensor,
    timeline: Timeline,
    state: MixerState,
    rows: Rows,
    events: Rows | None,
    *,
    keep: bool,
) -> tuple[Tensor, Mixed]:
    """Attention of some rows to some events: what the rows found [B, R, D], and the rest of what a mixer returns."""
    assert state.cache is not None
    c = attention.config
    weights = attention.inward.weight.chunk(3)
    asker, asked = gather_rows(u, rows), u if events is None else gather_rows(u, events)
    query, key, value = (
        by_head(nn.functional.linear(x, weight), c.heads)
        for x, weight in zip((asker, asked, asked), weights, strict=True)
    )
    found = look_back(query, key, value, timeline, state.cache, c, attention.turn, rows=rows, events=events, keep=keep)
    nobody = torch.zeros_like(timeline.mask)
    rest = Mixed(u, MixerState(cache=found.cache), nobody, nobody, found.pairs, {})
    return attention.outward(found.value.flatten(2)), rest
