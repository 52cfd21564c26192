"""The drift alarm: what memory knows has stopped being so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchcram.strict import check_number

_TIMES = (2, 5, 15, 45)  # as often as expected: what the alarm looks out for, ...
_MOST = 0.95  # ... and not more than this
_LEAST = 0.01  # rate of surprises to expect in any case


@dataclass(kw_only=True)
class DriftAlarm:
    """Rings when surprises, normally rare, become common. A surprise is a check that found memory to be wrong.

        alarm = DriftAlarm.calibrated(model(usual).surprises())
        for chunk in stream:
            out = model(chunk, state=state)
            if alarm.observe(out.surprises()):
                ...                                # the world has changed; reads go on answering meanwhile

    A Shiryaev-Roberts test, averaged over several rates after the change: R ← (1 + R) · p₁(x) / p₀(x), ringing at
    R ≥ `every`. As long as surprises are no more frequent than `expected`, whatever came before, R less the number of
    checks has no upward drift: so there are at least `every` checks between false alarms on average, and the chance of
    one within n checks is at most n / `every`.
    """

    expected: float = 0.15
    """Rate of surprises while nothing has changed, at most."""
    every: float = 1e8
    """Checks between false alarms, on average at least."""
    checks: int = 0
    """Seen so far."""
    rang_at: list[int] = field(default_factory=list)
    """After which checks it rang."""
    level: list[float] = field(default_factory=list)
    """log R for each rate."""

    @classmethod
    def calibrated(cls, usual: Iterable[bool], every: float = 1e8) -> DriftAlarm:
        """An alarm for a model that makes these checks, a thousand say, where nothing has changed.

        Expected are no more surprises than a quarter above the rate that they leave possible at one in a million.
        """
        from scipy.special import betaincinv

        checks = list(usual)
        found = sum(checks)
        most = 1.25 * float(betaincinv(found + 1, max(1, len(checks) - found), 1 - 1e-6))
        if (most > 0.4 and found < 0.3 * len(checks)) or not checks:
            raise ValueError(f"{len(checks)} checks are too few to know what is usual")
        if most > 0.4:
            raise ValueError(f"{found} of {len(checks)} checks are surprises as it is: a change would not stand out")
        return cls(expected=max(_LEAST, most), every=every)

    def __post_init__(self) -> None:
        check_number("alarm.expected", self.expected, 0, 0.4, open_low=True)
        check_number("alarm.every", self.every, 1)
        self.level = self.level or [-math.inf] * len(_TIMES)

    def observe(self, surprises: Iterable[bool]) -> bool:
        """Take in checks, in order; True if it rang. It starts anew after each ring."""
        rings = len(self.rang_at)
        for surprise in surprises:
            self.checks += 1
            for number, times in enumerate(_TIMES):
                rate = min(_MOST, times * self.expected)
                ratio = rate / self.expected if surprise else (1 - rate) / (1 - self.expected)
                self.level[number] = _log1p_exp(self.level[number]) + math.log(ratio)
            if _mean_exp(self.level) >= self.every:
                self.rang_at.append(self.checks)
                self.level = [-math.inf] * len(_TIMES)
        return len(self.rang_at) > rings


def _log1p_exp(x: float) -> float:
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))


def _mean_exp(levels: list[float]) -> float:
    return sum(map(math.exp, levels)) / len(levels)
