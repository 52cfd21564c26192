"""Ridge regression from sums over samples: exact, in one pass, in memory that does not grow with their number."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

STRENGTHS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Of the penalty, in units of the inputs' mean variance."""


class Linear(NamedTuple):
    """A linear map with an offset."""

    weight: Tensor
    """[D, m]"""
    bias: Tensor
    """[m]"""

    def __call__(self, inputs: Tensor) -> Tensor:
        """[…, D] to […, m]."""
        return inputs.to(self.weight.dtype) @ self.weight + self.bias


class Moments:
    """Sums in float64 of inputs [n, D] and targets [n, m], of their squares and products."""

    def __init__(self, inputs: int, targets: int, device: torch.device | str = "cpu") -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.count = 0
        self.x, self.y = zeros(inputs), zeros(targets)
        self.xx, self.xy, self.yy = zeros(inputs, inputs), zeros(inputs, targets), zeros(targets)

    def add(self, inputs: Tensor, targets: Tensor) -> None:
        """More samples."""
        x, y = inputs.double(), targets.double()
        self.count += len(x)
        self.x += x.sum(0)
        self.y += y.sum(0)
        self.xx.addmm_(x.T, x)
        self.xy.addmm_(x.T, y)
        self.yy += y.square().sum(0)

    def __add__(self, other: Moments) -> Moments:
        both = Moments(len(self.x), len(self.y), self.x.device)
        both.count = self.count + other.count
        for name in ("x", "y", "xx", "xy", "yy"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    def crossed(self, xy: Tensor) -> Moments:
        """The same inputs and targets with other products: as if these belonged to other inputs."""
        other = copy.copy(self)
        other.xy = xy
        return other

    @property
    def mean(self) -> Tensor:
        """[m] of the targets."""
        return self.y / max(1, self.count)

    def solve(self, strength: float) -> Linear:
        """The map with the least squared error and a penalty on its weights, not on its offset."""
        if self.count < 2:
            raise ValueError(f"a regression needs two samples or more, not {self.count}")
        mean = self.x / self.count
        centred = self.xx - self.count * torch.outer(mean, mean)
        crossed = self.xy - torch.outer(mean, self.y)
        scale = float(centred.diagonal().mean().clamp_min(1e-300))
        penalised = centred + strength * scale * torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
        weight = torch.linalg.solve(penalised, crossed)
        return Linear(weight, self.mean - mean @ weight)

    def error(self, found: Linear) -> Tensor:
        """[m]: mean squared error of a map on these samples."""
        weight, bias = found
        said = (weight * (self.xx @ weight)).sum(0) + 2 * bias * (self.x @ weight) + self.count * bias.square()
        both = (weight * self.xy).sum(0) + bias * self.y
        return (self.yy - 2 * both + said).clamp_min(0) / max(1, self.count)


def choose(fit: Moments, check: Moments, strengths: Sequence[float] = STRENGTHS) -> tuple[Linear, float]:
    """Learned from both, with the penalty that does best on the second when learned from the first."""
    best = min(strengths, key=lambda strength: float(check.error(fit.solve(strength)).sum()))
    return (fit + check).solve(best), best
