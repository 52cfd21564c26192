"""How near predictors come to what attention returns: as the paper measures it, and about the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcram.pretrained.gguf import Array
from torchcram.pretrained.probes import MEAN, Probes
from torchcram.pretrained.sites import Seen, Site, recording
from torchcram.pretrained.text import Windows
from torchcram.resampling import resampled

SETS = ("all", "later")
"""Positions: all, and those after the first few."""

EARLY = 4
"""Positions at the beginning of a window that `later` leaves out."""

_SUMS = ("count", "printed", "cosine", "error", "spread")


@dataclass(frozen=True, eq=False)
class Judged:
    """Sums over the positions of each window."""

    sums: Array
    """[W, layers, predictors, parts, sets, sums]; parts: every head, then the layer without bias, then with it."""
    owner: Array
    """[W]: the document of a window."""
    names: Sequence[str]
    """Of the predictors."""

    def measures(self, windows: Array | None = None) -> dict[str, Array]:
        """[layers, predictors, parts, sets] each, over all windows or some of them, which may be there repeatedly.

        `printed`: the mean of 1 - |a - â| / |a|, as in the paper. `excess`: what that is above the mean predictor's, or
        above 0, which saying nothing gives.
        `r2`: 1 - Σ|a - â|² / Σ|a - ā|². `cosine`: of the angle between a - ā and â - ā.
        """
        summed = (self.sums if windows is None else self.sums[windows]).sum(0)
        total = dict(zip(_SUMS, np.moveaxis(summed, -1, 0), strict=True))
        with np.errstate(invalid="ignore", divide="ignore"):
            printed = total["printed"] / total["count"]
            mean = printed[:, [self.names.index(MEAN)]]
            return {
                "printed": printed,
                "excess": printed - np.maximum(mean, 0),
                "r2": 1 - total["error"] / total["spread"],
                "cosine": total["cosine"] / total["count"],
            }

    def drawn(self, draws: int, seed: int = 0) -> list[dict[str, Array]]:
        """The same for documents drawn again and again."""
        return [self.measures(windows) for windows in resampled(self.owner, draws, seed)]


def judge(
    model: Any, sites: Sequence[Site], probes: Probes, windows: Windows, *, batch: int, device: torch.device | str
) -> Judged:
    """All predictors of all layers on windows that they did not learn from."""
    names = tuple(probes.layers[0])
    found = []
    for tokens in windows.batches(batch, device):
        with torch.no_grad(), recording(sites) as recorded:
            model.base_model(tokens, use_cache=False)
            found.append(
                torch.stack(
                    [
                        _layer(sites[layer], probes, layer, names, Seen(given.float(), tokens), heads.float())
                        for layer, given, heads in recorded.each()
                    ],
                    dim=1,
                ).cpu()
            )
    return Judged(torch.cat(found).numpy(), windows.owner.numpy(), names)


def _layer(site: Site, probes: Probes, layer: int, names: Sequence[str], seen: Seen, heads: Tensor) -> Tensor:
    """[B, predictors, parts, sets, sums]"""
    return torch.stack(
        [_sums(site, heads, probes.layers[layer][name](seen).float(), probes.means[layer]) for name in names], dim=1
    )


def _sums(site: Site, true: Tensor, said: Tensor, mean: Tensor) -> Tensor:
    """[B, parts, sets, sums]"""
    parts = []
    a, b, m = (x.reshape(*x.shape[:2], site.heads, -1).transpose(1, 2) for x in (true, said, mean.expand_as(true)))
    parts.append(_of(a, b, m))  # [B, H, N]
    a, b, m = (site.project(x).unsqueeze(1) for x in (true, said, mean.expand_as(true)))
    parts.append(_of(a, b, m))
    parts.append(_of(a, b, m, site.bias))
    each = torch.cat(parts, dim=1).double()
    return torch.stack([each.sum(2), each[:, :, EARLY:].sum(2)], dim=2)


def _of(true: Tensor, said: Tensor, mean: Tensor, bias: Tensor | None = None) -> Tensor:
    """[…, N, sums] of vectors […, N, size], to all of which the same bias may be added."""
    size = (true if bias is None else true + bias).norm(dim=-1)
    missed = (true - said).norm(dim=-1)
    there = size > 0
    printed = torch.where(there, 1 - missed / size.clamp_min(1e-30), 0)
    angle = torch.nn.functional.cosine_similarity(true - mean, said - mean, dim=-1, eps=1e-12)
    spread = (true - mean).square().sum(-1)
    return torch.stack([there.to(size.dtype), printed, angle, missed.square(), spread], dim=-1)
