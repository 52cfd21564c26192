"""When attention falls over training, and how suddenly: a change-point and a sigmoid, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares
from scipy.special import expit

Array = npt.NDArray[np.float64]
Law = Literal["change-point", "sigmoid"]

_FALL = 2 * math.log(9)  # from 90 % to 10 % of a sigmoid, in its widths


@dataclass(frozen=True, kw_only=True)
class Transition:
    """A fall from one level to another, fitted by least squares."""

    law: Law
    centre: float
    """The step at which half of the fall is over."""
    duration: float
    """Steps from 90 % to 10 % of the fall; 0 for a change-point."""
    before: float
    after: float
    squares: float
    """Sum of squared residuals."""
    points: int

    @property
    def aic(self) -> float:
        """Akaike's criterion for normal residuals of unknown variance; less is better."""
        parameters = {"change-point": 4, "sigmoid": 5}[self.law]
        # Residuals of a perfect fit are rounding errors, not a reason to prefer it without bounds.
        return self.points * math.log(max(self.squares / self.points, 1e-30)) + 2 * parameters

    def at(self, steps: Array) -> Array:
        """The fitted curve."""
        if self.law == "change-point":
            return np.where(steps < self.centre, self.before, self.after)
        width = self.duration / _FALL
        fitted: Array = self.after + (self.before - self.after) * expit((self.centre - steps) / width)
        return fitted


def change_point(steps: Array, reads: Array) -> Transition:
    """Two levels and the step between them, midway between two points; each level has two points at least."""
    count = _checked(steps, reads)
    sums, squares = np.cumsum(reads), np.cumsum(reads**2)
    first = np.arange(2, count - 1)
    left, right = sums[first - 1], sums[-1] - sums[first - 1]
    residual = squares[-1] - left**2 / first - right**2 / (count - first)
    best = int(residual.argmin())
    at = int(first[best])
    return Transition(
        law="change-point",
        centre=float(steps[at - 1] + steps[at]) / 2,
        duration=0.0,
        before=float(left[best] / at),
        after=float(right[best] / (count - at)),
        squares=max(0.0, float(residual[best])),
        points=count,
    )


def sigmoid(steps: Array, reads: Array) -> Transition:
    """A smooth fall: the best of a grid, as a narrow one has no slope where it is not, and from there downhill."""
    count = _checked(steps, reads)
    origin, span = float(steps[0]), float(steps[-1] - steps[0])
    time = (steps - origin) / span
    scale = float(np.ptp(reads)) or 1.0
    # Narrower than the points are apart, one width is as good as another.
    narrow, wide = math.log(float(np.diff(time).min()) / 10), math.log(3.0)

    def shape(centre: Array, width: Array) -> Array:
        found: Array = expit((centre[..., None] - time) / np.exp(width)[..., None])
        return found

    centres, widths = np.meshgrid(np.linspace(0, 1, 41), np.linspace(narrow, math.log(0.5), 12))
    fall = shape(centres.ravel(), widths.ravel())
    # Both levels of each follow in closed form: a line through the reads over the shape.
    steep = fall - fall.mean(1, keepdims=True)
    slope = steep @ reads / np.maximum((steep**2).sum(1), 1e-12)
    level = reads.mean() - slope * fall.mean(1)
    start = int(((level[:, None] + slope[:, None] * fall - reads) ** 2).sum(1).argmin())

    def residuals(parameters: Array) -> Array:
        before, after, centre, width = parameters
        misses: Array = (after + (before - after) * shape(centre, width) - reads) / scale
        return misses

    def jacobian(parameters: Array) -> Array:
        before, after, centre, width = parameters
        now = shape(centre, width)
        inner = (before - after) * now * (1 - now) / np.exp(width)
        return np.stack([now, 1 - now, inner, -inner * (centre - time)], 1) / scale

    begin = (level[start] + slope[start], level[start], centres.ravel()[start], widths.ravel()[start])
    limits = ([-np.inf, -np.inf, 0.0, narrow], [np.inf, np.inf, 1.0, wide])
    inside = np.clip(begin, np.array(limits[0]) + 1e-9, np.array(limits[1]) - 1e-9)
    best = least_squares(residuals, inside, jac=jacobian, bounds=limits)
    before, after, centre, width = (float(x) for x in best.x)
    return Transition(
        law="sigmoid",
        centre=origin + span * centre,
        duration=_FALL * span * math.exp(width),
        before=before,
        after=after,
        squares=2 * float(best.cost) * scale**2,
        points=count,
    )


FITS: Mapping[Law, Callable[[Array, Array], Transition]] = {"change-point": change_point, "sigmoid": sigmoid}


def intervals(
    law: Law, steps: Array, reads: Array, *, draws: int = 200, seed: int = 0, level: float = 0.95
) -> dict[str, tuple[float, float]]:
    """Intervals of `centre`, `duration`, `before` and `after`, from curves drawn again.

    reads: [steps], or [seeds, steps]. Of several seeds, as many are drawn with replacement and their mean is fitted; of
    one curve, blocks of residuals around its fit.
    """
    fit = FITS[law]
    rng = np.random.default_rng(seed)
    curves = np.atleast_2d(reads)
    if len(curves) > 1:
        drawn = (curves[rng.integers(len(curves), size=len(curves))].mean(0) for _ in range(draws))
    else:
        fitted = fit(steps, curves[0]).at(steps)
        drawn = (fitted + _blocks(curves[0] - fitted, rng) for _ in range(draws))
    found = [fit(steps, curve) for curve in drawn]
    tail = 50 * (1 - level)

    def interval(name: str) -> tuple[float, float]:
        low, high = np.percentile([getattr(one, name) for one in found], (tail, 100 - tail))
        return float(low), float(high)

    return {name: interval(name) for name in ("centre", "duration", "before", "after")}


def _blocks(residuals: Array, rng: np.random.Generator) -> Array:
    """Stretches of residuals, drawn and put together, so that what neighbours share stays together."""
    count = len(residuals)
    length = max(1, round(count ** (1 / 3)))
    starts = rng.integers(count, size=-(-count // length))
    places = (starts[:, None] + np.arange(length)).ravel()[:count] % count
    drawn: Array = residuals[places]
    return drawn


def _checked(steps: Array, reads: Array) -> int:
    if steps.shape != reads.shape or steps.ndim != 1 or len(steps) < 5:
        raise ValueError(
            f"steps {steps.shape} and reads {reads.shape} are not possible; allowed: one read a step, 5 or more"
        )
    if not (np.diff(steps) > 0).all():
        raise ValueError("steps must rise")
    return len(steps)
