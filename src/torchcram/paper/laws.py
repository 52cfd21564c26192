"""Laws of practice: how the chance that a pattern still reads may fall with the number k of times it has been seen.

Each goes from `start` at k = 1 to `floor`: p(k) = floor + (start - floor) · shape(k), shape(1) = 1.

    power                k^-γ                          the paper's, with a floor of 0
    exponential          e^(-λ (k-1))
    APEX                 k^-γ e^(-λ (k-1))             the product of both
    delayed exponential  (1 + τ) / (τ + e^(λ (k-1)))   flat at first, for large τ
    change-point         1 up to k = c, then 0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Name = Literal["power", "exponential", "APEX", "delayed exponential", "change-point"]


@dataclass(frozen=True, kw_only=True)
class Law:
    """The shape of a law; its parameters are all above 0."""

    parameters: tuple[str, ...]
    shape: Callable[..., Array]
    starts: tuple[tuple[float, ...], ...]
    """Where to begin to look for the parameters; rates in units of 1 ÷ the largest k."""


def power(k: Array, gamma: float) -> Array:
    """k^-γ."""
    return np.exp(-gamma * np.log(k))


def exponential(k: Array, rate: float) -> Array:
    """e^(-λ (k-1))."""
    return np.exp(-rate * (k - 1))


def apex(k: Array, gamma: float, rate: float) -> Array:
    """k^-γ e^(-λ (k-1))."""
    return np.exp(-gamma * np.log(k) - rate * (k - 1))


def delayed(k: Array, rate: float, delay: float) -> Array:
    """(1 + τ) / (τ + e^(λ (k-1))), in a form that no large k overflows."""
    decayed = np.exp(-rate * (k - 1))
    return (1 + delay) * decayed / (delay * decayed + 1)


def step(k: Array, last: float) -> Array:
    """1 up to k = c, then 0."""
    return (k <= last).astype(np.float64)


LAWS: Mapping[Name, Law] = {
    "power": Law(parameters=("gamma",), shape=power, starts=((0.2,), (1.0,))),
    "exponential": Law(parameters=("rate",), shape=exponential, starts=((2.0,), (20.0,))),
    "APEX": Law(parameters=("gamma", "rate"), shape=apex, starts=((0.5, 1.0), (0.05, 5.0), (0.5, 0.01))),
    "delayed exponential": Law(
        parameters=("rate", "delay"), shape=delayed, starts=((5.0, 1.0), (20.0, 1e3), (10.0, 0.01))
    ),
    "change-point": Law(parameters=("last",), shape=step, starts=()),
}
