"""What attention is worth: the loss of a model some of whose layers are told what to attend to find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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

    def loss(self, predictors: Mapping[int, Predictor] | None = None, begin: int = 0) -> Losses:
        """With some layers replaced; of tokens from `begin` on."""
        held: dict[str, Tensor] = {}
        found = []
        with torch.no_grad(), replacing(self.sites, predictors or {}, lambda: held["tokens"]):
            for tokens in self.windows.batches(self.batch, self.device):
                held["tokens"] = tokens
                logits = self.model(tokens, use_cache=False).logits[:, begin:-1].float()
                target = tokens[:, begin + 1 :]
                each = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
                found.append(each.view(target.shape).mean(1).double().cpu())
        return torch.cat(found)

    def one_by_one(self, predictors: Mapping[int, Predictor]) -> list[Losses]:
        """With a single layer replaced, for each."""
        return [self.loss({layer: predictors[layer]}) for layer in range(len(self.sites))]

    def more_and_more(self, predictors: Mapping[int, Predictor], order: Iterable[int]) -> list[Losses]:
        """With the first layer of an order replaced, the first two, and so on to all."""
        replaced: dict[int, Predictor] = {}
        found = []
        for layer in order:
            replaced[layer] = predictors[layer]
            found.append(self.loss(replaced))
        return found


def recovered(intact: float, replaced: float, ablated: float) -> float | None:
    """Of the loss that a mean in attention's place costs, the share that a predictor saves; None if it costs none."""
    cost = ablated - intact
    return None if cost <= 0 else 1 - (replaced - intact) / cost


def copying(vocabulary: int, first: int | None, *, count: int, length: int, seed: int = 0) -> Windows:
    """Random tokens, all of them twice: the second time they can be told from the first, if one attends to it."""
    generator = torch.Generator().manual_seed(seed)
    before = torch.full((count, 1 if first is not None else 0), first or 0)
    once = torch.randint(vocabulary, (count, (length - before.shape[1]) // 2), generator=generator)
    return Windows(torch.cat([before, once, once], dim=1), torch.arange(count), [f"copy {k}" for k in range(count)])


def best_first(alone: Sequence[Losses]) -> list[int]:
    """Layers in the order of what replacing each alone costs."""
    costs = [float(losses.mean()) for losses in alone]
    return sorted(range(len(costs)), key=costs.__getitem__)
