"""Mixers with a selective state space: Mamba-2, and TransMamba, which attends first."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchcram.config import BaselineConfig
from torchcram.memory import Norm, Timeline
from torchcram.memory.episodic import nothing_before
from torchcram.models.baselines.lookback import Turn, empty_cache, look_back
from torchcram.models.baselines.mixer import Mixed, by_head
from torchcram.models.baselines.state import MixerState
from torchcram.ops import compact, gather_rows, scatter_rows, state_space


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
        self.taps = _first_taps(space.convolution, mixed)
        self.tap_bias = nn.Parameter(torch.zeros(mixed))
        _match_pairs(self.inward.weight, self.taps, 2 * inner, inner, space.size)
        self.decay = _Decay(self.heads)
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.norm = Norm(inner)
        self.outward = nn.Linear(inner, width, bias=False)

    def initial_state(self, batch: int) -> MixerState:
        like, c = self.skip, self.config  # which is never made narrow

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(batch, *shape, dtype=like.dtype, device=like.device)

        return MixerState(space=zeros(self.heads, c.head, c.size), recent=nothing_before(batch, self.taps))

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


def _first_taps(count: int, channels: int) -> nn.Parameter:
    """Weights [W, C] that a convolution begins with: mostly the token itself, so that like tokens look alike."""
    taps = torch.empty(count, channels).uniform_(-1, 1) / (4 * math.sqrt(count))
    taps[0] += 1
    return nn.Parameter(taps)


def convolve(
    x: Tensor, taps: Tensor, bias: Tensor, timeline: Timeline, recent: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """SiLU of a causal convolution, a weight per channel and tap: x [B, N, C]; and what to carry on."""
    out = taps[0] * x + bias
    if recent is not None:
        before, recent = timeline.previous(x, recent.to(x.dtype))
        recent = recent.to(taps.dtype)  # under autocast x is narrower
        out = out + torch.einsum("bnwc,wc->bnc", before, taps[1:])
    return timeline.clean(nn.functional.silu(out)), recent


def _match_pairs(weight: Tensor, taps: Tensor, row: int, channel: int, size: int) -> None:
    """Let queries and keys, `size` outputs each and next to each other, begin alike: tokens of the same content match.

    They begin at output `row` of `weight` and at channel `channel` of `taps`.
    """
    weight.data[row + size : row + 2 * size] = weight.data[row : row + size]
    taps.data[:, channel + size : channel + 2 * size] = taps.data[:, channel : channel + size]


class Switch(nn.Module):
    """TransMamba: attention up to a position, a state space after it; query, key and value are those of both.

    The state space runs from the beginning, so that at the switch it holds what attention could look back at.
    """

    def __init__(self, config: BaselineConfig, until: int) -> None:
        super().__init__()
        width = config.block.width
        self.config, self.heads, self.until = config.attention, config.attention.heads, until
        self.sizes = (width, 3 * width, self.heads)
        self.inward = nn.Linear(width, sum(self.sizes), bias=False)
        self.taps = _first_taps(config.space.convolution, 3 * width)
        self.tap_bias = nn.Parameter(torch.zeros(3 * width))
        _match_pairs(self.inward.weight, self.taps, width, 0, width)
        self.decay = _Decay(self.heads)
        self.norm = Norm(width)
        self.outward = nn.Linear(width, width, bias=False)
        self.turn = Turn(config.attention, width // self.heads)

    def initial_state(self, batch: int) -> MixerState:
        like = self.tap_bias  # which is never made narrow
        size = self.outward.weight.shape[0] // self.heads

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(batch, *shape, dtype=like.dtype, device=like.device)

        return MixerState(
            cache=empty_cache(batch, self.heads, size, self.outward.weight),
            space=zeros(self.heads, size, size),
            recent=nothing_before(batch, self.taps),
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
            self.config,
            self.turn,
            rows=rows,
            events=rows,
            keep=keep,
        )
        attended = scatter_rows(found.value, rows, u.shape[1])
        y = torch.where(looks[..., None, None], attended, carried).flatten(2)
        out = self.outward(self.norm(y * nn.functional.silu(gate)))
        after = MixerState(cache=found.cache, space=last.to(state.space.dtype), recent=recent)
        return Mixed(timeline.clean(out), after, looks, looks, found.pairs, {})
