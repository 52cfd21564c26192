"""What layers of baselines do with a sequence: attention, state spaces, and both."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from torchcram.config import BaselineConfig, EpisodicConfig
from torchcram.memory import Timeline
from torchcram.memory.episodic import EpisodicMemory
from torchcram.memory.losses import Counts, priority_loss
from torchcram.models.baselines.lookback import empty_cache, look_back
from torchcram.models.baselines.state import MixerState
from torchcram.ops import Rows, compact, decay_scan, gather_rows, scatter_rows, state_space


class Mixed(NamedTuple):
    """What a mixer returns."""

    value: Tensor
    """[B, N, D], to be added to the residual stream."""
    state: MixerState
    reads: Tensor
    """[B, N] bool: tokens that looked back."""
    writes: Tensor
    """[B, N] bool: tokens that others can look back at."""
    pairs: Tensor | None
    """[B]: query-key pairs scored; None in a layer that cannot look back."""
    losses: dict[str, Tensor]
    """In training; all but `priority`, which CRAM has as well, weighed already."""


class Mixer(Protocol):
    """What all mixers do."""

    def __call__(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        """u [B, N, D], normed."""

    def initial_state(self, batch: int) -> MixerState:
        """Before anything was seen."""


class Attention(nn.Module):
    """Every token looks back at all, or at those in a window."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        width = config.block.width
        self.config = config.attention
        self.inward = nn.Linear(width, 3 * width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)

    def initial_state(self, batch: int) -> MixerState:
        width = self.outward.weight.shape[0]
        return MixerState(cache=empty_cache(batch, self.config.heads, width // self.config.heads, self.outward.weight))

    def forward(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        assert state.cache is not None
        query, key, value = (by_head(part, self.config.heads) for part in self.inward(u).chunk(3, dim=-1))
        c = self.config
        found = look_back(query, key, value, timeline, state.cache, window=c.window, rotary=c.rotary, keep=keep)
        out = self.outward(found.value.flatten(2))
        return Mixed(out, MixerState(cache=found.cache), timeline.mask, timeline.mask, found.pairs, {})


class SlottedAttention(nn.Module):
    """Every token looks back at the events of highest priority, of which CRAM's own buffer holds as many."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        self.memory = EpisodicMemory(
            config.block.width, EpisodicConfig(slots=config.attention.slots, heads=config.attention.heads)
        )

    def initial_state(self, batch: int) -> MixerState:
        return MixerState(episodic=self.memory.empty(batch))

    def forward(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        assert state.episodic is not None
        none = torch.zeros_like(u)  # there is no working memory that keys could see
        written = self.memory.write(u, none, timeline, state.episodic)
        reading = self.memory.read(u, none, compact(timeline.mask), timeline, written)
        value = scatter_rows(reading.value, reading.rows, u.shape[1])
        losses = {}
        if self.training:
            losses["priority"] = priority_loss(written, reading, Counts.of(timeline.mask, reading, written))
        after = MixerState(episodic=self.memory.keep(written, reading, state.episodic) if keep else None)
        return Mixed(value, after, timeline.mask, written.slot >= 0, reading.pairs, losses)


class SelectiveSpace(nn.Module):
    """Mamba-2: a state space whose decay and input depend on the token; a short convolution before, a gate after."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        space, width, inner = config.space, config.block.width, config.inner
        self.config = space
        self.heads = inner // space.head
        self.sizes = (inner, inner, 2 * space.size, self.heads)  # gate, input, key and query, step
        self.inward = nn.Linear(width, sum(self.sizes), bias=False)
        mixed = inner + 2 * space.size
        self.taps = nn.Parameter(torch.empty(space.convolution, mixed).uniform_(-1, 1) / math.sqrt(space.convolution))
        self.tap_bias = nn.Parameter(torch.zeros(mixed))
        self.decay = _Decay(self.heads)
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.RMSNorm(inner)
        self.outward = nn.Linear(inner, width, bias=False)

    def initial_state(self, batch: int) -> MixerState:
        like, c = self.outward.weight, self.config

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(batch, *shape, dtype=like.dtype, device=like.device)

        recent = zeros(c.convolution - 1, len(self.tap_bias)) if c.convolution > 1 else None
        return MixerState(space=zeros(self.heads, c.head, c.size), recent=recent)

    def forward(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        assert state.space is not None
        gate, inner, pair, step = self.inward(timeline.clean(u)).split(self.sizes, dim=-1)
        mixed, recent = convolve(torch.cat([inner, pair], dim=-1), self.taps, self.tap_bias, timeline, state.recent)
        inner, key, query = torch.split(mixed, [self.sizes[0], self.config.size, self.config.size], dim=-1)
        x = by_head(inner, self.heads)
        amount, decay = self.decay(step, timeline)
        y, last = state_space(
            x * amount.unsqueeze(-1), decay, key.unsqueeze(2), query.unsqueeze(2), timeline.start, state.space
        )
        y = (y + self.skip.unsqueeze(-1) * x).flatten(2)
        value = self.outward(self.norm(y * nn.functional.silu(gate)))
        nobody = torch.zeros_like(timeline.mask)
        after = MixerState(space=last.to(state.space.dtype), recent=recent)
        return Mixed(timeline.clean(value), after, nobody, nobody, None, {})


class _Decay(nn.Module):
    """How much of each token enters, and how much of the state stays: Δ and A of Mamba-2, a number a head each."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        step = torch.exp(torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))

    def forward(self, step: Tensor, timeline: Timeline) -> tuple[Tensor, Tensor]:
        """step [B, N, H]. Padding enters nothing and takes no time."""
        amount = nn.functional.softplus(step + self.bias) * timeline.mask.unsqueeze(-1)
        return amount, amount * self.log_rate.exp()


def convolve(
    x: Tensor, taps: Tensor, bias: Tensor, timeline: Timeline, recent: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """SiLU of a causal convolution, a weight per channel and tap: x [B, N, C]; and what to carry on."""
    out = taps[0] * x + bias
    if recent is not None:
        before, recent = timeline.previous(x, recent.to(x.dtype))
        out = out + torch.einsum("bnwc,wc->bnc", before, taps[1:])
    return timeline.clean(nn.functional.silu(out)), recent


def by_head(x: Tensor, heads: int) -> Tensor:
    """[..., D] as [..., H, D / H]."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads)


class Boat(nn.Module):
    """SeqBoat: a moving average on every token, and gated attention among those that a configurator activates.

    Tokens that are not active neither look back nor are looked back at. The configurator learns from its probability,
    which what an active token found is multiplied by.
    """

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        width = config.block.width
        self.config = config
        self.rate = nn.Parameter(torch.logspace(-3, 0, width).log())
        self.average = nn.Linear(width, width, bias=False)
        self.configure = nn.Linear(width, 2)
        self.gate = nn.Linear(width, width)
        self.pair = nn.Linear(width, 2 * width, bias=False)
        self.content = nn.Linear(width, width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)

    def initial_state(self, batch: int) -> MixerState:
        like, heads = self.outward.weight, self.config.attention.heads
        return MixerState(
            cache=empty_cache(batch, heads, like.shape[0] // heads, like),
            average=torch.zeros(batch, like.shape[0], dtype=like.dtype, device=like.device),
        )

    def forward(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        assert state.cache is not None
        assert state.average is not None
        c, heads = self.config, self.config.attention.heads
        rate = self.rate.exp()
        entering = timeline.clean(u * -torch.expm1(-rate))
        steps = timeline.mask.to(rate.dtype)  # an average over tokens, whatever the time between them
        h, average = decay_scan(entering, rate, steps, timeline.start, state.average)
        active = torch.softmax(self.configure(h) / c.temperature, dim=-1)[..., 1]
        chosen = (active > 0.5) & timeline.mask
        rows = compact(chosen)
        mine, around = gather_rows(u, rows), gather_rows(h, rows)
        query, key = (by_head(part, heads) for part in self.pair(around).chunk(2, dim=-1))
        value = by_head(self.content(mine), heads)
        a = c.attention
        found = look_back(
            query,
            key,
            value,
            timeline,
            state.cache,
            rows=rows,
            events=rows,
            window=a.window,
            in_order=True,
            rotary=a.rotary,
            keep=keep,
        )
        gated = self.outward(nn.functional.silu(self.gate(around)) * found.value.flatten(2))
        gated = gated * gather_rows(active, rows).unsqueeze(-1)
        out = timeline.clean(self.average(nn.functional.silu(h))) + scatter_rows(gated, rows, u.shape[1])
        losses = {}
        if self.training and c.cost:
            losses["cost"] = c.cost * (active * timeline.mask).sum() / timeline.mask.sum()
        return Mixed(out, MixerState(cache=found.cache, average=average), chosen, chosen, found.pairs, losses)


class Switch(nn.Module):
    """TransMamba: attention up to a position, a state space after it; query, key and value are those of both.

    The state space runs from the beginning, so that at the switch it holds what attention could look back at.
    """

    def __init__(self, config: BaselineConfig, until: int) -> None:
        super().__init__()
        width = config.block.width
        self.heads, self.until = config.attention.heads, until
        self.rotary = config.attention.rotary
        self.sizes = (width, 3 * width, self.heads)
        self.inward = nn.Linear(width, sum(self.sizes), bias=False)
        taps = config.space.convolution
        self.taps = nn.Parameter(torch.empty(taps, 3 * width).uniform_(-1, 1) / math.sqrt(taps))
        self.tap_bias = nn.Parameter(torch.zeros(3 * width))
        self.decay = _Decay(self.heads)
        self.norm = nn.RMSNorm(width)
        self.outward = nn.Linear(width, width, bias=False)

    def initial_state(self, batch: int) -> MixerState:
        like = self.outward.weight
        size, taps = like.shape[0] // self.heads, self.taps.shape[0]

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(batch, *shape, dtype=like.dtype, device=like.device)

        return MixerState(
            cache=empty_cache(batch, self.heads, size, like),
            space=zeros(self.heads, size, size),
            recent=zeros(taps - 1, self.taps.shape[1]) if taps > 1 else None,
        )

    def forward(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        assert state.cache is not None
        assert state.space is not None
        gate, mixed, step = self.inward(timeline.clean(u)).split(self.sizes, dim=-1)
        mixed, recent = convolve(mixed, self.taps, self.tap_bias, timeline, state.recent)
        query, key, value = (by_head(part, self.heads) for part in mixed.chunk(3, dim=-1))
        amount, decay = self.decay(step, timeline)
        scale = query.shape[-1] ** -0.5
        carried, last = state_space(
            value * amount.unsqueeze(-1), decay, key, query * scale, timeline.start, state.space
        )
        looks = timeline.mask & (timeline.position[:, :-1] < self.until)
        rows = compact(looks)
        found = look_back(
            gather_rows(query, rows),
            gather_rows(key, rows),
            gather_rows(value, rows),
            timeline,
            state.cache,
            rows=rows,
            events=rows,
            rotary=self.rotary,
            keep=keep,
        )
        attended = scatter_rows(found.value, rows, u.shape[1])
        y = torch.where(looks[..., None, None], attended, carried).flatten(2)
        out = self.outward(self.norm(y * nn.functional.silu(gate)))
        after = MixerState(cache=found.cache, space=last.to(state.space.dtype), recent=recent)
        return Mixed(timeline.clean(out), after, looks, looks, found.pairs, {})


class Depth(nn.Module):
    """Mixture of depths: attention among the tokens that a router ranks highest in their sequence.

    A rank is known only when all tokens are. At evaluation a predictor, trained to foretell it from the token alone,
    decides instead.
    """

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        width = config.block.width
        self.capacity = config.capacity
        self.router = nn.Linear(width, 1)
        self.predictor = nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 1))
        self.attention = Attention(config)

    def initial_state(self, batch: int) -> MixerState:
        return self.attention.initial_state(batch)

    def forward(self, u: Tensor, timeline: Timeline, state: MixerState, *, keep: bool) -> Mixed:
        assert state.cache is not None
        score = self.router(u).squeeze(-1)
        foretold = self.predictor(u.detach()).squeeze(-1)
        losses = {}
        if self.training:
            chosen = _highest(score, timeline.mask, self.capacity)
            cost = nn.functional.binary_cross_entropy_with_logits(foretold, chosen.to(foretold.dtype), reduction="none")
            losses["predictor"] = (cost * timeline.mask).sum() / timeline.mask.sum()
        else:
            chosen = (foretold > 0) & timeline.mask
        rows = compact(chosen)
        out, found = attend_rows(self.attention, u, timeline, state, rows, rows, keep=keep)
        out = out * torch.sigmoid(gather_rows(score, rows)).unsqueeze(-1)
        value = scatter_rows(out, rows, u.shape[1])
        return Mixed(value, found.state, chosen, chosen, found.pairs, losses)


class Uncertain(nn.Module):
    """A state space on every token, and attention for those of which its prediction is uncertain.

    How uncertain a token is comes from outside: the entropy of what the model would answer without attention.
    """

    mean: Tensor
    square: Tensor

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        self.deviations = config.deviations
        self.space = SelectiveSpace(config)
        self.attention = Attention(config)
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("square", torch.zeros(1))
        """Running means of entropies and of their squares."""

    def initial_state(self, batch: int) -> MixerState:
        space, cache = self.space.initial_state(batch), self.attention.initial_state(batch).cache
        return MixerState(space=space.space, recent=space.recent, cache=cache)

    def uncertain(self, entropy: Tensor, mask: Tensor) -> Tensor:
        """[B, N] bool: whose entropy [B, N] is so many standard deviations above what it has been."""
        if self.training:
            with torch.no_grad():
                seen = (
                    torch.where(mask, entropy, 0).sum() / mask.sum(),
                    torch.where(mask, entropy**2, 0).sum() / mask.sum(),
                )
                for kept, now in zip((self.mean, self.square), seen, strict=True):
                    kept.lerp_(now.to(kept.dtype), 0.02)
        deviation = (self.square - self.mean.square()).clamp_min(0).sqrt()
        return (entropy > self.mean + self.deviations * deviation) & mask

    def look(self, u: Tensor, timeline: Timeline, state: MixerState, chosen: Tensor, *, keep: bool) -> Mixed:
        """What the chosen tokens [B, N] find, and nothing for the others."""
        rows = compact(chosen)
        out, found = attend_rows(self.attention, u, timeline, state, rows, None, keep=keep)
        return found._replace(value=scatter_rows(out, rows, u.shape[1]), reads=chosen, writes=timeline.mask)


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
    found = look_back(
        query,
        key,
        value,
        timeline,
        state.cache,
        rows=rows,
        events=events,
        window=c.window,
        rotary=c.rotary,
        keep=keep,
    )
    nobody = torch.zeros_like(timeline.mask)
    rest = Mixed(u, MixerState(cache=found.cache), nobody, nobody, found.pairs, {})
    return attention.outward(found.value.flatten(2)), rest


def _highest(score: Tensor, mask: Tensor, capacity: float) -> Tensor:
    """[B, N] bool: the share `capacity` of each row's real tokens that has the highest scores."""
    count = (mask.sum(1, keepdim=True) * capacity).ceil()
    rank = score.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (rank < count) & mask
