"""How near predictors come to what attention returns: as the paper measures it, and about the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcram.pretrained.gguf import Array
from torchcram.pretrained.probes import MEAN, Probes
from torchcram.pretrained.sites import Predictor, Seen, Site, recording
from torchcram.pretrained.text import Windows
from torchcram.resampling import resampled

SETS = ("all", "later")
"""Positions: all, and those after the first few."""

EARLY = 4
"""Positions at the beginning of a window that `later` leaves out."""

FEW = 10
"""Documents: where there are fewer, passages of them are drawn; fewer of these give no interval."""

_BEGINS = (0, EARLY)  # where each set begins

_PASSAGE = 8  # windows, at least: neighbours are alike

_SUMS = ("count", "printed", "cosine", "error", "spread")


@dataclass(frozen=True, eq=False)
class Judged:
    """Sums over the positions of each window."""

    sums: Array
    """[W, layers, predictors, parts, sets, sums]; parts: every head, then the layer without bias, then with it."""
    windows: Windows
    """What they are of."""
    names: Sequence[str]
    """Of the predictors."""
    centres: Sequence[Tensor]
    """[sets, width] of each layer: what its heads return on average on these windows, at the positions of each set.
    Measures are about it: about the mean of another text, what sets two texts apart would count as told."""

    def measures(self, draws: Array | None = None) -> dict[str, Array]:
        """[layers, predictors, parts, sets] each, over all windows; or [draws, …], with each as often as `draws` says.

        `printed`: the mean of 1 - |a - â| / |a|, as in the paper. `excess`: what that is above the mean predictor's, or
        above 0, which saying nothing gives.
        `r2`: 1 - Σ|a - â|² / Σ|a - ā|². `cosine`: of the angle between a - ā and â - ā. ā is the mean of all windows,
        however often each is there.
        """
        summed = self.sums.sum(0) if draws is None else np.tensordot(draws, self.sums, 1)
        total = dict(zip(_SUMS, np.moveaxis(summed, -1, 0), strict=True))
        with np.errstate(invalid="ignore", divide="ignore"):
            printed = total["printed"] / total["count"]
            mean = printed[..., [self.names.index(MEAN)], :, :]
            return {
                "printed": printed,
                "excess": printed - np.maximum(mean, 0),
                "r2": 1 - total["error"] / total["spread"],
                "cosine": total["cosine"] / total["count"],
            }


def _centres(
    model: Any, sites: Sequence[Site], windows: Windows, batch: int, device: torch.device | str
) -> list[Tensor]:
    """See `Judged`."""
    sums = [torch.zeros(len(SETS), site.width, dtype=torch.float64, device=device) for site in sites]
    for tokens in windows.batches(batch, device):
        with torch.no_grad(), recording(sites) as recorded:
            model.base_model(tokens, use_cache=False)
            for layer, _, heads in recorded.each():
                sums[layer] += torch.stack([heads[:, begin:].double().sum((0, 1)) for begin in _BEGINS])
    length = windows.tokens.shape[1]
    counts = torch.tensor([len(windows) * max(1, length - begin) for begin in _BEGINS], device=device)
    return [(each / counts.unsqueeze(-1)).float() for each in sums]


def judge(
    model: Any, sites: Sequence[Site], probes: Probes, windows: Windows, *, batch: int, device: torch.device | str
) -> Judged:
    """All predictors of all layers on windows that they did not learn from."""
    names = tuple(probes.layers[0])
    about = _centres(model, sites, windows, batch, device)
    found = []
    for tokens in windows.batches(batch, device):
        with torch.no_grad(), recording(sites) as recorded:
            model.base_model(tokens, use_cache=False)
            found.append(
                torch.stack(
                    [
                        _layer(
                            sites[layer], probes.layers[layer], names, Seen(given.float(), tokens), heads.float(), mean
                        )
                        for (layer, given, heads), mean in zip(recorded.each(), about, strict=True)
                    ],
                    dim=1,
                ).cpu()
            )
    return Judged(torch.cat(found).numpy(), windows, names, about)


def _layer(
    site: Site, predictors: Mapping[str, Predictor], names: Sequence[str], seen: Seen, true: Tensor, about: Tensor
) -> Tensor:
    """[B, predictors, parts, sets, sums]"""

    def views(vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Of each head, [B, H, N, size], and of the layer, [B, 1, N, D]."""
        heads = vectors.reshape(*vectors.shape[:2], site.heads, -1).transpose(1, 2)
        return heads, site.project(vectors).unsqueeze(1)

    true_views = views(true)
    middles = [views(mean.expand(1, 1, -1)) for mean in about]
    found = []
    for name in names:
        told = None if name == MEAN else views(predictors[name](seen).float())
        sets = []
        for begin, middle in zip(_BEGINS, middles, strict=True):
            # The mean of a set is that of its own positions.
            said = told or tuple(each.expand_as(one) for each, one in zip(middle, true_views, strict=True))
            of_heads, of_layer = (
                (one[:, :, begin:], other[:, :, begin:], mean)
                for one, other, mean in zip(true_views, said, middle, strict=True)
            )
            parts = [_of(*of_heads), _of(*of_layer), _of(*of_layer, site.bias)]
            sums = torch.cat(parts, dim=1).double().sum(2)
            if told is None:
                sums[..., _SUMS.index("cosine")] = 0  # it points nowhere: what rounding makes of that is no direction
            sets.append(sums)
        found.append(torch.stack(sets, dim=2))
    return torch.stack(found, dim=1)


def units(windows: Windows) -> Array:
    """[W]: the document that each window is of or, if these are few, the passage: a stretch of a document."""
    owner, place = windows.owner.numpy(), windows.place.numpy()
    documents, number = np.unique(owner, return_inverse=True)
    if len(documents) >= FEW:
        return owner
    # As long as if all windows were there: of those that were drawn from a text, few are neighbours.
    longest = np.zeros(len(documents), dtype=np.int64)
    np.maximum.at(longest, number, place + 1)
    size = max(_PASSAGE, int(longest.sum()) // (4 * FEW))
    return np.asarray(number * (int(longest.max()) + 1) + place // size)


def draws(windows: Windows, count: int, seed: int = 0) -> Array | None:
    """[count, W]: how often each window is there when `units` are drawn again and again; None if these are few."""
    drawn = units(windows)
    if len(np.unique(drawn)) < FEW:
        return None
    return np.stack([np.bincount(rows, minlength=len(drawn)) for rows in resampled(drawn, count, seed)]).astype(float)


def between(drawn: Array) -> tuple[float | None, float | None]:
    """The middle 95 % of what draws [count] gave."""
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return None, None
    low, high = np.quantile(known, (0.025, 0.975))
    return float(low), float(high)


def _of(true: Tensor, said: Tensor, mean: Tensor, bias: Tensor | None = None) -> Tensor:
    """[…, N, sums] of vectors […, N, size], to all of which the same bias may be added."""
    size = (true if bias is None else true + bias).norm(dim=-1)
    missed = (true - said).norm(dim=-1)
    there = size > 0
    printed = torch.where(there, 1 - missed / size.clamp_min(1e-30), 0)
    angle = torch.nn.functional.cosine_similarity(true - mean, said - mean, dim=-1, eps=1e-12)
    angle = torch.where(there, angle, 0)
    spread = (true - mean).square().sum(-1)
    return torch.stack([there.to(size.dtype), printed, angle, missed.square(), spread], dim=-1)
