"""The quality controller: as much pressure as the tolerance allows, no more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

_UP, _DOWN = math.log(1.5), math.log(0.5)  # largest steps of the log pressure at one check
_LEAST = math.log(1e-3)


@dataclass(kw_only=True)
class QualityController:
    """Dual ascent on the constraint "routed loss - reference ≤ tolerance", for every head at once.

    `pressure` in (0, 1] scales the price of a read. The reference is dense reading now and, for heads that reads had
    helped at release, the better of that and dense reading at release: a model whose reads decay cannot lower its own
    bar, and the ups and downs of a head that needs no reads are not blamed on routing.
    """

    tolerance: float
    """Nats per scored position."""
    log_pressure: float = 0.0
    at_release: dict[str, float] = field(default_factory=dict)
    """Dense losses at release, of the heads that reads had helped."""
    excesses: list[float] = field(default_factory=list)
    """How far the worst head was above its reference at the last checks, three at most."""

    @property
    def excess(self) -> float:
        """The least of the last checks: what lasts is routing's doing, what comes and goes is training's."""
        return min(self.excesses, default=0.0)

    @property
    def pressure(self) -> float:
        """Share of the full price to ask for now."""
        return math.exp(self.log_pressure)

    def observe(self, routed: Mapping[str, float], dense: Mapping[str, float]) -> None:
        """Take in one check and move the pressure."""
        self.excesses = [*self.excesses, excess(routed, dense, self.at_release)][-3:]
        slack = 1 - self.excess / self.tolerance
        self.log_pressure = min(0.0, max(_LEAST, self.log_pressure + min(_UP, max(_DOWN, slack * _UP))))


def excess(routed: Mapping[str, float], dense: Mapping[str, float], at_release: Mapping[str, float]) -> float:
    """How far the worst head is above its reference: dense reading now or, for heads that have one, at release."""
    gaps = [routed[head] - min(dense[head], at_release.get(head, math.inf)) for head in routed]
    return max(gaps) if all(map(math.isfinite, gaps)) else math.inf
