"""Laws of practice fitted to read decisions by their likelihood, compared, and judged on patterns not fitted to.

Each decision is a draw of its own: a query reads with the chance that the law gives its k. Averages over patterns are
not fitted, since they can follow a law that no pattern follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit, xlog1py, xlogy

from torchcram.paper.exposures import Counts, Exposures
from torchcram.paper.laws import LAWS, Array, Name

_SMALL = 1e-9  # no law is so sure that one decision refutes it


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law with the parameters under which the decisions are most likely."""

    law: Name
    parameters: Mapping[str, float]
    """`start`, `floor` and those of the law."""
    free: int
    """How many of them were free."""
    likelihood: float
    """Logarithm of it, without what does not depend on the law."""
    decisions: int

    @property
    def aic(self) -> float:
        """Akaike's criterion; less is better."""
        return 2 * self.free - 2 * self.likelihood

    @property
    def bic(self) -> float:
        """The Bayesian one, over decisions; less is better."""
        return self.free * math.log(self.decisions) - 2 * self.likelihood

    def at(self, k: Array) -> Array:
        """The chance to read at each k."""
        start, floor = self.parameters["start"], self.parameters["floor"]
        law = LAWS[self.law]
        shape = law.shape(np.asarray(k, dtype=np.float64), *(self.parameters[name] for name in law.parameters))
        chance: Array = floor + (start - floor) * shape
        return chance

    def likelihood_of(self, data: Exposures) -> float:
        """Of other decisions."""
        return _likelihood(self.at(data.k.astype(np.float64)), data.asked, data.read)


def fit(law: Name, data: Exposures, *, floor: bool = True, weights: Array | None = None) -> Fit:
    """The most likely parameters of a law.

    floor: Without, the chance goes to 0, as in the paper; a change-point has its second level all the same.
    weights: How often each row counts, [rows]; default: once.
    """
    k, asked, read = _by_exposure(data, weights)
    if not asked.sum():
        raise ValueError("there are no decisions to fit to")
    if law == "change-point":
        parameters, likelihood = _change_point(k, asked, read)
        free = 3
    else:
        parameters, likelihood = _smooth(law, k, asked, read, floor=floor)
        free = len(parameters) - (0 if floor else 1)
    return Fit(law=law, parameters=parameters, free=free, likelihood=likelihood, decisions=round(float(asked.sum())))


def compare(data: Exposures, *, floor: bool = True, by_pattern: bool = False) -> dict[Name, Fit]:
    """All laws, fitted to the same decisions; with `by_pattern`, each pattern has parameters of its own.

    Then likelihoods and numbers of free parameters are added up over patterns, and there are no parameters to show.
    """
    if not by_pattern:
        return {law: fit(law, data, floor=floor) for law in LAWS}
    patterns = [data.where(data.pattern == pattern) for pattern in np.unique(data.pattern)]
    found: dict[Name, Fit] = {}
    for law in LAWS:
        fits = [fit(law, mine, floor=floor) for mine in patterns]
        found[law] = Fit(
            law=law,
            parameters={},
            free=sum(one.free for one in fits),
            likelihood=sum(one.likelihood for one in fits),
            decisions=data.decisions,
        )
    return found


def held_out(data: Exposures, *, folds: int = 5, floor: bool = True, seed: int = 0) -> dict[Name, float]:
    """Mean log-likelihood of a decision, of patterns that the law was not fitted to; more is better."""
    patterns = np.unique(data.pattern)
    if folds < 2 or folds > len(patterns):
        raise ValueError(f"folds = {folds} is not possible; allowed: 2 to {len(patterns)}, the number of patterns")
    fold = np.random.default_rng(seed).permutation(len(patterns)) % folds
    mine = fold[np.searchsorted(patterns, data.pattern)]
    total = dict.fromkeys(LAWS, 0.0)
    for number in range(folds):
        known, unknown = data.where(mine != number), data.where(mine == number)
        for law in LAWS:
            total[law] += fit(law, known, floor=floor).likelihood_of(unknown)
    return {law: likelihood / data.decisions for law, likelihood in total.items()}


def intervals(
    law: Name, data: Exposures, *, draws: int = 200, floor: bool = True, seed: int = 0, level: float = 0.95
) -> dict[str, tuple[float, float]]:
    """Intervals of the parameters: seeds are drawn with replacement, then patterns of each seed drawn.

    Decisions of one pattern depend on each other, and so do patterns of one model.
    """
    rng = np.random.default_rng(seed)
    patterns, place = np.unique(data.pattern, return_inverse=True)
    owner = np.empty(len(patterns), dtype=np.int64)
    owner[place] = data.seed
    mine = [np.flatnonzero(owner == each) for each in np.unique(owner)]
    found = []
    for _ in range(draws):
        times = np.zeros(len(patterns))
        for number in rng.integers(len(mine), size=len(mine)):
            np.add.at(times, rng.choice(mine[number], size=len(mine[number])), 1)
        found.append(fit(law, data, floor=floor, weights=times[place]).parameters)
    tail = 50 * (1 - level)

    def interval(name: str) -> tuple[float, float]:
        low, high = np.percentile([one[name] for one in found], (tail, 100 - tail))
        return float(low), float(high)

    return {name: interval(name) for name in found[0]}


def _by_exposure(data: Exposures, weights: Array | None) -> tuple[Array, Array, Array]:
    """Sums over rows of the same k, which are all that a law common to them depends on."""
    k, place = np.unique(data.k, return_inverse=True)
    counted = np.ones(len(place)) if weights is None else weights
    asked: Array = np.bincount(place, counted * data.asked, minlength=len(k)).astype(np.float64)
    read: Array = np.bincount(place, counted * data.read, minlength=len(k)).astype(np.float64)
    there = asked > 0
    return k[there].astype(np.float64), asked[there], read[there]


def _likelihood(chance: Array, asked: Array | Counts, read: Array | Counts) -> float:
    sure = np.clip(chance, _SMALL, 1 - _SMALL)
    return float((xlogy(read, sure) + xlog1py(asked - read, -sure)).sum())


def _change_point(k: Array, asked: Array, read: Array) -> tuple[dict[str, float], float]:
    """Every place tried; levels are then the shares themselves."""
    if len(k) == 1:
        share = float(read[0] / asked[0])
        return {"start": share, "floor": share, "last": float(k[0])}, _likelihood(np.array([share]), asked, read)
    asked_left, read_left = np.cumsum(asked)[:-1], np.cumsum(read)[:-1]
    asked_right, read_right = asked.sum() - asked_left, read.sum() - read_left
    left, right = read_left / asked_left, read_right / asked_right

    def part(share: Array, asked: Array, read: Array) -> Array:
        sure = np.clip(share, _SMALL, 1 - _SMALL)
        found: Array = xlogy(read, sure) + xlog1py(asked - read, -sure)
        return found

    likelihood = part(left, asked_left, read_left) + part(right, asked_right, read_right)
    best = int(likelihood.argmax())
    parameters = {"start": float(left[best]), "floor": float(right[best]), "last": float(k[best])}
    return parameters, float(likelihood[best])


def _smooth(name: Name, k: Array, asked: Array, read: Array, *, floor: bool) -> tuple[dict[str, float], float]:
    law = LAWS[name]
    longest = max(float(k.max()), 2.0)
    first = float(np.clip(read[0] / asked[0], 0.05, 0.95))

    def unpack(x: Array) -> dict[str, float]:
        start = float(expit(x[0]))
        values = np.exp(np.clip(x[1 : 1 + len(law.parameters)], -40, 40))
        low = start * float(expit(x[-1])) if floor else 0.0
        return {"start": start, "floor": low, **dict(zip(law.parameters, map(float, values), strict=True))}

    def loss(x: Array) -> float:
        known = unpack(x)
        low = known["floor"]
        chance = low + (known["start"] - low) * law.shape(k, *(known[each] for each in law.parameters))
        return -_likelihood(chance, asked, read) / float(asked.sum())

    best, least = None, math.inf
    for start in law.starts:
        # Rates are given for the longest k as 1.
        scaled = [v / longest if each == "rate" else v for each, v in zip(law.parameters, start, strict=True)]
        begin = np.array([logit(first), *np.log(scaled), *([logit(0.05)] if floor else [])])
        found = minimize(loss, begin, method="L-BFGS-B")
        if found.fun < least:
            best, least = found.x, float(found.fun)
    assert best is not None
    return unpack(best), -least * float(asked.sum())
