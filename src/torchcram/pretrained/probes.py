"""Predictors of what attention returns, from what goes into it: learned in one pass over tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchcram.pretrained import ridge
from torchcram.pretrained.ridge import Linear, Moments
from torchcram.pretrained.sites import Predictor, Site, recording
from torchcram.pretrained.text import Windows
from torchcram.strict import StrictConfig, check_integer, check_number

ZERO, MEAN, POSITION, TOKEN, SHUFFLED, LINEAR, ADAPTER, DESCENT = LADDER = (
    *("zero", "mean", "position", "token", "shuffled", "linear", "adapter", "descent"),
)
"""What heads return is said to be: nothing; its mean (where it is judged, that text's own); its mean at a position;
for a token; a linear map learned from inputs of other places; a linear map of the input; a narrow map with a ReLU; a
linear map learned by descent."""

_CHECKED = 5  # every so many batches one is for choosing the penalty


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(StrictConfig):
    """How predictors are learned."""

    rank: int | None = None
    """Of the narrow map, as in CRAM's semantic memory; None: a quarter of the width; 0: there is none."""
    steps: int = 0
    """Of descent, at least, with as many passes over the tokens as that takes; 0: one pass, and no linear map that is
    learned that way, as in the paper."""
    chunk: int = 1024
    """Tokens a step of descent."""
    rate: float = 1e-3
    batch: int = 8
    """Windows at once."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank is not None:
            check_integer("rank", self.rank, 0)
        check_integer("steps", self.steps, 0)
        check_integer("chunk", self.chunk, 1)
        check_number("rate", self.rate, 0, open_low=True)
        check_integer("batch", self.batch, 1)
        check_integer("seed", self.seed, 0)


@dataclass(frozen=True, eq=False)
class Probes:
    """Predictors of each layer by name."""

    layers: Sequence[Mapping[str, Predictor]]
    penalties: Sequence[float]
    """Of the linear map of each layer, as chosen."""

    def about(self, means: Sequence[Tensor]) -> Probes:
        """The same, but for what heads return on average [width], which is given for each layer."""
        return Probes(
            [{**each, MEAN: _always(mean)} for each, mean in zip(self.layers, means, strict=True)], self.penalties
        )

    def of(self, name: str) -> dict[int, Predictor]:
        """The same predictor for every layer."""
        return {layer: predictors[name] for layer, predictors in enumerate(self.layers)}


def fit(model: Any, sites: Sequence[Site], windows: Windows, config: ProbeConfig, device: torch.device | str) -> Probes:
    """Learn the predictors of all layers, from one pass over tokens (descent may take more)."""
    learners: list[_Learner] = []
    descents: list[_Descent] = []
    generator = torch.Generator(device=device).manual_seed(config.seed)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(config.seed))
    windows, vocabulary = windows[order], Vocabulary(windows.tokens, device)
    each = windows.tokens.numel() // config.chunk + 1
    passes = max(1, math.ceil(config.steps / each))
    for time in range(passes):
        for number, (tokens, seen) in enumerate(_batches(model, sites, windows, config, device)):
            if not learners:
                learners = [
                    _Learner(site, given, vocabulary, tokens.shape[1])
                    for site, (given, _) in zip(sites, seen, strict=True)
                ]
                descents = _descents(seen, config)
            if time == 0:
                for learner, (given, heads) in zip(learners, seen, strict=True):
                    learner.add(number, tokens, given, heads, generator)
            mixed = torch.randperm(tokens.numel(), generator=generator, device=tokens.device)
            for descent in descents:
                descent.learn(seen, mixed, passes * each)
    return Probes(
        [
            learner.predictors() | {each.name: each.predictor(layer) for each in descents if layer in each.layers}
            for layer, learner in enumerate(learners)
        ],
        [learner.penalty for learner in learners],
    )


_Layers = Sequence[tuple[Tensor, Tensor]]
"""Of each layer the input of attention, [B, N, D], and what its heads returned, [B, N, width]."""


def _batches(
    model: Any, sites: Sequence[Site], windows: Windows, config: ProbeConfig, device: torch.device | str
) -> Iterator[tuple[Tensor, _Layers]]:
    """Tokens [B, N], and what went through each layer for them."""
    for tokens in windows.batches(config.batch, device):
        with torch.no_grad(), recording(sites) as recorded:
            model.base_model(tokens, use_cache=False)
        yield tokens, [(given.float(), heads.float()) for _, given, heads in recorded.each()]


class Vocabulary:
    """The tokens of some text, numbered by themselves: few of all that a model knows."""

    def __init__(self, tokens: Tensor, device: torch.device | str) -> None:
        known, counts = np.unique(tokens.numpy(), return_counts=True)
        self.known = torch.from_numpy(known).to(device)
        """[v], rising."""
        self.counts = torch.from_numpy(counts).to(device)
        """[v]"""

    def places(self, tokens: Tensor) -> Tensor:
        """Numbers of tokens, in their shape; v for one that is not there."""
        at = torch.searchsorted(self.known, tokens).clamp_max(len(self.known) - 1)
        return torch.where(self.known[at] == tokens, at, len(self.known))


class _Learner:
    """What is kept of a layer while tokens go by."""

    def __init__(self, site: Site, given: Tensor, vocabulary: Vocabulary, length: int) -> None:
        self.vocabulary = vocabulary
        device, inputs = given.device, given.shape[-1]
        self.fit, self.check = (Moments(inputs, site.width, device) for _ in range(2))
        self.shuffled = torch.zeros_like(self.fit.xy)
        self.position = torch.zeros(length, site.width, dtype=torch.float64, device=device)
        self.windows = 0
        self.token = torch.zeros(len(vocabulary.known) + 1, site.width, device=device)

    def add(self, number: int, tokens: Tensor, given: Tensor, heads: Tensor, generator: torch.Generator) -> None:
        """A batch of the first pass."""
        x, y = given.flatten(0, 1), heads.flatten(0, 1)
        (self.check if number % _CHECKED == _CHECKED - 1 else self.fit).add(x, y)
        mixed = torch.randperm(len(x), generator=generator, device=x.device)
        self.shuffled.addmm_(x[mixed].double().T, y.double())
        self.position += heads.double().sum(0)
        self.windows += len(heads)
        self.token.index_add_(0, self.vocabulary.places(tokens).flatten(), y)

    @property
    def whole(self) -> Moments:
        return self.fit + self.check

    def predictors(self) -> dict[str, Predictor]:
        """Those of the ladder that sums tell."""
        if self.check.count:
            linear, self.penalty = ridge.choose(self.fit, self.check)
        else:
            self.penalty = ridge.STRENGTHS[len(ridge.STRENGTHS) // 2]
            linear = self.fit.solve(self.penalty)
        whole = self.whole
        mean = whole.mean.float()
        position = (self.position / self.windows).float()
        # A token that was seen once tells as much as the mean does; one that was not, the mean.
        token, places = self.token, self.vocabulary.places
        token += mean
        token[:-1] /= (self.vocabulary.counts + 1).unsqueeze(-1)
        return {
            ZERO: _always(torch.zeros_like(mean)),
            MEAN: _always(mean),
            POSITION: lambda seen: position[: seen.tokens.shape[1]].expand(*seen.tokens.shape, -1),
            TOKEN: lambda seen: token[places(seen.tokens)],
            SHUFFLED: _mapped(whole.crossed(self.shuffled).solve(self.penalty)),
            LINEAR: _mapped(linear),
        }


def _always(vector: Tensor) -> Predictor:
    return lambda seen: vector.expand(*seen.tokens.shape, -1)


def _mapped(linear: Linear) -> Predictor:
    narrow = Linear(linear.weight.float(), linear.bias.float())
    return lambda seen: narrow(seen.given)


class Narrow(nn.Module):
    """W_up ReLU(W_down x) with offsets: the shape of CRAM's semantic memory."""

    def __init__(self, inputs: int, rank: int, outputs: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(inputs, rank), nn.Linear(rank, outputs)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[…, inputs] to […, outputs]."""
        out: Tensor = self.up(nn.functional.relu(self.down(x)))
        return out


def _descents(seen: _Layers, config: ProbeConfig) -> list[_Descent]:
    """What is learned step by step: layers of the same widths together, each by itself."""
    alike: dict[tuple[int, int], list[int]] = {}
    for layer, (given, heads) in enumerate(seen):
        alike.setdefault((given.shape[-1], heads.shape[-1]), []).append(layer)
    found = []
    for (inputs, width), layers in alike.items():
        rank = inputs // 4 if config.rank is None else config.rank
        torch.manual_seed(config.seed)
        if rank:
            found.append(_Descent(ADAPTER, layers, [Narrow(inputs, rank, width) for _ in layers], config))
        if config.steps:
            found.append(_Descent(DESCENT, layers, [nn.Linear(inputs, width) for _ in layers], config))
    return found


class _Descent:
    """Learns a map for each of some layers, step by step, from inputs and targets whose size the first batch told.

    All take their steps at once: one layer's is too little work for a GPU. None knows of the others.
    """

    def __init__(self, name: str, layers: Sequence[int], maps: Sequence[nn.Module], config: ProbeConfig) -> None:
        self.name, self.layers, self.maps, self.config = name, layers, maps, config
        self.stacked: dict[str, Tensor] = {}
        """Parameters by name, a map after the other along their first dimension."""
        self.scales: tuple[Tensor, Tensor, Tensor] | None = None
        self.steps = 0

    def learn(self, seen: _Layers, mixed: Tensor, steps: int) -> None:
        """Some steps on a batch in a new order, of so many steps in all: the rate falls evenly."""
        x, y = (torch.stack([seen[layer][part].flatten(0, 1) for layer in self.layers]) for part in (0, 1))
        if self.scales is None:
            self._begin(x, y)
        assert self.scales is not None
        across, middle, size = self.scales
        with torch.enable_grad():
            for some in torch.split(mixed, self.config.chunk):
                a, b = x[:, some] / across, (y[:, some] - middle) / size
                for group in self.optimizer.param_groups:
                    group["lr"] = self.config.rate * max(0.02, 1 - self.steps / steps)
                self.steps += 1
                loss = (torch.vmap(self._map)(self.stacked, a) - b).square().mean((1, 2)).sum()
                self.optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                self.optimizer.step()

    def _begin(self, x: Tensor, y: Tensor) -> None:
        middle = y.mean(1, keepdim=True)
        self.scales = _size(x), middle, _size(y - middle)
        self.stacked = {
            name: torch.stack([dict(each.named_parameters())[name].detach() for each in self.maps])
            .to(x.device)
            .requires_grad_()
            for name, _ in self.maps[0].named_parameters()
        }
        self.optimizer = torch.optim.AdamW(
            self.stacked.values(), lr=self.config.rate, weight_decay=0.0, fused=x.is_cuda
        )

    def _map(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self.maps[0], parameters, (x,))
        return out

    def predictor(self, layer: int) -> Predictor:
        """Of a layer, as it was learned so far."""
        assert self.scales is not None
        place = self.layers.index(layer)
        across, middle, size = (scale[place] for scale in self.scales)
        mine = {name: stacked.detach()[place] for name, stacked in self.stacked.items()}
        return lambda seen: self._map(mine, seen.given.float() / across) * size + middle


def _size(x: Tensor) -> Tensor:
    """[layers, 1, 1]: the deviation of all numbers of each layer, of [layers, n, width]."""
    return x.flatten(1).std(1).clamp_min(1e-6).view(-1, 1, 1)
