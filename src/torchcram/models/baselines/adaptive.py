"""Mixers that choose which tokens look back: SeqBoat, mixture of depths, and where a prediction is uncertain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcram.config import BaselineConfig
from torchcram.memory import Timeline
from torchcram.memory.losses import Counts
from torchcram.memory.moments import RunningMoments
from torchcram.models.baselines.attention import Attention, attend_rows
from torchcram.models.baselines.lookback import Turn, empty_cache, look_back
from torchcram.models.baselines.mixer import Mixed, by_head
from torchcram.models.baselines.space import SelectiveSpace
from torchcram.models.baselines.state import MixerState
from torchcram.ops import compact, decay_scan, gather_rows, scatter_rows


class Boat(nn.Module):
    """SeqBoat: a moving average on every token, and gated attention among those that a configurator activates.

    Tokens that are not active neither look back nor are looked back at. The configurator learns from its probability,
    which what an active token found is multiplied by.
    """

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        width = config.block.width
        self.config = config
        # A token counts in its own average by a half, more or less: by the sigmoid of a standard normal number.
        spread = torch.special.ndtri((torch.arange(width) + 0.5) / width)
        self.rate = nn.Parameter(nn.functional.softplus(spread).log())
        self.average = nn.Linear(width, width, bias=False)
        self.configure = nn.Linear(width, 2)
        # Nearly all are active at first: a configurator that begins undecided closes before attention is of any use.
        self.configure.weight.data.mul_(0.1)
        self.configure.bias.data.copy_(torch.tensor([-2.0, 2.0]))
        self.gate = nn.Linear(width, width)
        self.pair = nn.Linear(width, 2 * width, bias=False)
        self.pair.weight.data[width:] = self.pair.weight.data[:width]
        self.content = nn.Linear(width, width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)
        self.turn = Turn(config.attention, width // config.attention.heads)

    def initial_state(self, batch: int) -> MixerState:
        like, heads = self.outward.weight, self.config.attention.heads
        return MixerState(
            cache=empty_cache(batch, heads, like.shape[0] // heads, like),
            average=torch.zeros(batch, like.shape[0], dtype=self.rate.dtype, device=like.device),
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
        found = look_back(
            query,
            key,
            value,
            timeline,
            state.cache,
            c.attention,
            self.turn,
            rows=rows,
            events=rows,
            in_order=True,
            keep=keep,
        )
        gated = self.outward(nn.functional.silu(self.gate(around)) * found.value.flatten(2))
        gated = gated * gather_rows(active, rows).unsqueeze(-1)
        out = timeline.clean(self.average(nn.functional.silu(h))) + scatter_rows(gated, rows, u.shape[1])
        losses = {}
        if self.training and c.cost:
            losses["cost"] = c.cost * (active * timeline.mask).sum() / Counts.of(timeline.mask, None, None).tokens
        return Mixed(
            out,
            MixerState(cache=found.cache, average=average.to(state.average.dtype)),
            chosen,
            chosen,
            found.pairs,
            losses,
        )


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
            chosen = _highest(score, timeline, self.capacity)
            cost = nn.functional.binary_cross_entropy_with_logits(foretold, chosen.to(foretold.dtype), reduction="none")
            losses["predictor"] = (cost * timeline.mask).sum() / Counts.of(timeline.mask, None, None).tokens
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

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__()
        self.deviations = config.deviations
        self.space = SelectiveSpace(config)
        self.attention = Attention(config)
        self.entropies = RunningMoments(1)

    def initial_state(self, batch: int) -> MixerState:
        space, cache = self.space.initial_state(batch), self.attention.initial_state(batch).cache
        return MixerState(space=space.space, recent=space.recent, cache=cache)

    def uncertain(self, entropy: Tensor, mask: Tensor, asked: Tensor | None) -> Tensor:
        """[B, N] bool: whose entropy [B, N] is so many standard deviations above what it has been where it was asked.

        Where nothing is ever asked, nothing makes an answer sure or unsure.
        """
        if self.training:
            self.entropies.observe(entropy.unsqueeze(-1), mask if asked is None else mask & asked)
        return (entropy > self.entropies.mean + self.deviations * self.entropies.variance.sqrt()) & mask

    def look(self, u: Tensor, timeline: Timeline, state: MixerState, chosen: Tensor, *, keep: bool) -> Mixed:
        """What the chosen tokens [B, N] find, and nothing for the others."""
        rows = compact(chosen)
        out, found = attend_rows(self.attention, u, timeline, state, rows, None, keep=keep)
        return found._replace(value=scatter_rows(out, rows, u.shape[1]), reads=chosen, writes=timeline.mask)


def _highest(score: Tensor, timeline: Timeline, capacity: float) -> Tensor:
    """[B, N] bool: the share `capacity` of each sequence's real tokens that has the highest scores [B, N]."""
    mask = timeline.mask
    order = score.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    if not timeline.packed:
        count = mask.sum(1, keepdim=True)
        return (order.argsort(dim=1) < (count * capacity).ceil()) & mask
    # The same order, one sequence of a row after the other: each begins where it does in the row.
    sequence = timeline.start.long().cumsum(1)
    order = order.gather(1, sequence.gather(1, order).argsort(dim=1, stable=True))
    first = torch.where(timeline.start, torch.arange(mask.shape[1], device=mask.device), 0).cummax(1).values
    count = nn.functional.pad(torch.zeros_like(order), (0, 1)).scatter_add(1, sequence, mask.long())
    return (order.argsort(dim=1) - first < (count.gather(1, sequence) * capacity).ceil()) & mask
