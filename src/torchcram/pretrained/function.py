"""What attention is worth: the loss of a model some of whose layers are told what to attend to find."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchcram.pretrained.sites import Predictor, Site, replacing
from torchcram.pretrained.text import Windows

Losses = Tensor
"""[W]: nats a token, of each window."""


class Tester:
    """Measures losses of a model on the same windows, with predictors in place of some layers' attention."""

    def __init__(
        self, model: Any, sites: Sequence[Site], windows: Windows, *, batch: int, device: torch.device | str
    ) -> None:
        self.model, self.sites, self.windows = model, sites, windows
        self.batch, self.device = batch, device

    def on(self, which: Tensor) -> Tester:
        """The same on some of the windows."""
        return Tester(self.model, self.sites, self.windows[which], batch=self.batch, device=self.device)

    def loss(self, predictors: Mapping[int, Predictor] | None = None, begin: int = 0) -> Losses:
        """With some layers replaced; of what tokens from `begin` on say comes next."""
        held: dict[str, Tensor] = {}
        found = []
        with torch.no_grad(), replacing(self.sites, predictors or {}, lambda: held["tokens"]):
            for tokens in self.windows.batches(self.batch, self.device):
                held["tokens"] = tokens
                logits = self.model(tokens, use_cache=False).logits
                # A window at a time: all of them at once would need the memory of the logits again and again.
                pairs = zip(logits[:, begin:-1], tokens[:, begin + 1 :], strict=True)
                found += [nn.functional.cross_entropy(said.float(), true).double() for said, true in pairs]
        return torch.stack(found).cpu()

    def one_by_one(self, predictors: Mapping[int, Predictor]) -> list[Losses]:
        """With a single layer replaced, for each."""
        return [self.loss({layer: predictors[layer]}) for layer in range(len(self.sites))]

    def more_and_more(
        self, predictors: Mapping[int, Predictor], order: Sequence[int], counts: Sequence[int]
    ) -> list[Losses]:
        """With the first layers of an order replaced, as many as each count says."""
        return [self.loss({layer: predictors[layer] for layer in order[:count]}) for count in counts]


def counts(layers: int, most: int = 15) -> list[int]:
    """Numbers of layers to replace: all up to `layers`, or `most` of them, evenly."""
    steps = min(layers, most)
    return [round(step * layers / steps) for step in range(1, steps + 1)]


def halves(owner: Tensor) -> Tensor:
    """[W] bool: about half of the windows, of other documents than the rest if there are several."""
    number = torch.from_numpy(np.unique(owner.numpy(), return_inverse=True)[1])
    if not number.any():
        number = torch.arange(len(owner))
    sizes = number.bincount()
    chosen = torch.zeros_like(sizes, dtype=torch.bool)
    ahead = 0
    for document in sizes.argsort(descending=True, stable=True).tolist():
        chosen[document] = ahead <= 0
        ahead += int(sizes[document]) * (1 if chosen[document] else -1)
    return chosen[number]


def best_first(alone: Sequence[Losses]) -> list[int]:
    """Layers in the order of what replacing each alone costs."""
    costs = [float(losses.mean()) for losses in alone]
    return sorted(range(len(costs)), key=costs.__getitem__)


class Copies(NamedTuple):
    """Sequences that say the same twice."""

    windows: Windows
    begin: int
    """Where the second time begins."""
    chance: float
    """Nats of a guess among all tokens that were drawn from."""


def copying(text: Tensor, first: int | None, *, count: int, length: int, seed: int = 0) -> Copies:
    """Tokens of a text in random order, none twice, and then all of them again, in `length` positions at most.

    The second time they can be told from the first, if one attends to it. Sequences begin with `first`, if it is given.
    """
    generator = torch.Generator().manual_seed(seed)
    known = torch.from_numpy(np.unique(text.numpy()))
    known = known[known != first] if first is not None else known
    before = torch.full((count, 1 if first is not None else 0), first or 0)
    half = min(len(known), (length - before.shape[1]) // 2)
    once = torch.stack([known[torch.randperm(len(known), generator=generator)[:half]] for _ in range(count)])
    windows = Windows(torch.cat([before, once, once], dim=1), torch.arange(count))
    return Copies(windows, before.shape[1] + half, math.log(len(known)))
