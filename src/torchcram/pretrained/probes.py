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
from torchcram.pretrained.sites import Predictor, Seen, Site, recording
from torchcram.pretrained.text import Windows
from torchcram.strict import StrictConfig, check_integer, check_number

ZERO, MEAN, POSITION, TOKEN, SHUFFLED, LINEAR, ADAPTER, DESCENT = LADDER = (
    *("zero", "mean", "position", "token", "shuffled", "linear", "adapter", "descent"),
)
"""What heads return is said to be: nothing; its mean; its mean at a position; for a token; a linear map learned from
inputs of other places; a linear map of the input; a narrow map with a ReLU; a linear map learned by descent."""

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
    means: Sequence[Tensor]
    """[width] of each layer: what its heads return on average."""
    penalties: Sequence[float]
    """Of the linear map of each layer, as chosen."""

    def of(self, name: str) -> dict[int, Predictor]:
        """The same predictor for every layer."""
        return {layer: predictors[name] for layer, predictors in enumerate(self.layers)}


def fit(model: Any, sites: Sequence[Site], windows: Windows, config: ProbeConfig, device: torch.device | str) -> Probes:
    """Learn the predictors of all layers, from one pass over tokens (descent may take more)."""
    learners: list[_Learner] = []
    generator = torch.Generator(device=device).manual_seed(config.seed)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(config.seed))
    windows, vocabulary = windows[order], Vocabulary(windows.tokens, device)
    each = windows.tokens.numel() // config.chunk + 1
    passes = max(1, math.ceil(config.steps / each))
    for number, (tokens, layer, given, heads) in _passes(model, sites, windows, config, device):
        if layer == len(learners):
            learners.append(_Learner(sites[layer], given, vocabulary, windows.tokens.shape[1], config))
        learners[layer].add(number, tokens, given, heads, generator, passes * each)
    for _ in range(passes - 1):
        for _, (_, layer, given, heads) in _passes(model, sites, windows, config, device):
            learners[layer].descend(given, heads, generator, passes * each)
    return Probes(
        [learner.predictors() for learner in learners],
        [learner.whole.mean.float() for learner in learners],
        [learner.penalty for learner in learners],
    )


def _passes(
    model: Any, sites: Sequence[Site], windows: Windows, config: ProbeConfig, device: torch.device | str
) -> Iterator[tuple[int, tuple[Tensor, int, Tensor, Tensor]]]:
    for number, tokens in enumerate(windows.batches(config.batch, device)):
        with torch.no_grad(), recording(sites) as recorded:
            model.base_model(tokens, use_cache=False)
        for layer, given, heads in recorded.each():
            yield number, (tokens, layer, given.float(), heads.float())


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

    def __init__(self, site: Site, given: Tensor, vocabulary: Vocabulary, length: int, config: ProbeConfig) -> None:
        self.config, self.vocabulary = config, vocabulary
        device, inputs = given.device, given.shape[-1]
        self.fit, self.check = (Moments(inputs, site.width, device) for _ in range(2))
        self.shuffled = torch.zeros_like(self.fit.xy)
        self.position = torch.zeros(length, site.width, dtype=torch.float64, device=device)
        self.windows = 0
        self.token = torch.zeros(len(vocabulary.known) + 1, site.width, device=device)
        rank = inputs // 4 if config.rank is None else config.rank
        torch.manual_seed(config.seed)
        self.descents: dict[str, _Descent] = {}
        if rank:
            self.descents[ADAPTER] = _Descent(Narrow(inputs, rank, site.width).to(device), config)
        if config.steps:
            self.descents[DESCENT] = _Descent(nn.Linear(inputs, site.width).to(device), config)

    def add(
        self, number: int, tokens: Tensor, given: Tensor, heads: Tensor, generator: torch.Generator, steps: int
    ) -> None:
        """A batch of the first pass; `steps`: of descent, in all passes, about."""
        x, y = given.flatten(0, 1), heads.flatten(0, 1)
        (self.check if number % _CHECKED == _CHECKED - 1 else self.fit).add(x, y)
        mixed = torch.randperm(len(x), generator=generator, device=x.device)
        self.shuffled.addmm_(x[mixed].double().T, y.double())
        self.position += heads.double().sum(0)
        self.windows += len(heads)
        self.token.index_add_(0, self.vocabulary.places(tokens).flatten(), y)
        self.descend(given, heads, generator, steps)

    def descend(self, given: Tensor, heads: Tensor, generator: torch.Generator, steps: int) -> None:
        """A batch of any pass, for what is learned by descent."""
        x, y = given.flatten(0, 1), heads.flatten(0, 1)
        mixed = torch.randperm(len(x), generator=generator, device=x.device)
        for descent in self.descents.values():
            descent.learn(x[mixed], y[mixed], steps)

    @property
    def whole(self) -> Moments:
        return self.fit + self.check

    def predictors(self) -> dict[str, Predictor]:
        """All of the ladder that were asked for."""
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
        found: dict[str, Predictor] = {
            ZERO: lambda seen: torch.zeros_like(mean).expand(*seen.tokens.shape, -1),
            MEAN: lambda seen: mean.expand(*seen.tokens.shape, -1),
            POSITION: lambda seen: position[: seen.tokens.shape[1]].expand(*seen.tokens.shape, -1),
            TOKEN: lambda seen: token[places(seen.tokens)],
            SHUFFLED: _mapped(whole.crossed(self.shuffled).solve(self.penalty)),
            LINEAR: _mapped(linear),
        }
        for name, descent in self.descents.items():
            found[name] = descent.predictor()
        return found


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


class _Descent:
    """Learns a map step by step, from inputs and targets whose size the first batch told."""

    def __init__(self, module: nn.Module, config: ProbeConfig) -> None:
        self.module, self.config = module, config
        fused = next(module.parameters()).is_cuda
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=config.rate, weight_decay=0.0, fused=fused)
        self.scales: tuple[Tensor, Tensor, Tensor] | None = None
        self.steps = 0

    def learn(self, x: Tensor, y: Tensor, steps: int) -> None:
        """Some steps, of so many in all: the rate falls evenly."""
        if self.scales is None:
            self.scales = x.std().clamp_min(1e-6), y.mean(0), (y - y.mean(0)).std().clamp_min(1e-6)
        across, middle, size = self.scales
        with torch.enable_grad():
            for begin in range(0, len(x), self.config.chunk):
                some = slice(begin, begin + self.config.chunk)
                a, b = x[some] / across, (y[some] - middle) / size
                for group in self.optimizer.param_groups:
                    group["lr"] = self.config.rate * max(0.02, 1 - self.steps / steps)
                self.steps += 1
                loss = (self.module(a) - b).square().mean()
                self.optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                self.optimizer.step()

    def predictor(self) -> Predictor:
        assert self.scales is not None
        across, middle, size = self.scales
        module = self.module.eval().requires_grad_(False)

        def predict(seen: Seen) -> Tensor:
            out: Tensor = module(seen.given.float() / across) * size + middle
            return out

        return predict
