"""When is a model ready to give up reads? When they demonstrably help, and have finished helping more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_GROWING = 0.05  # of the benefit: a dense loss that still falls by more is still learning to read


@dataclass(kw_only=True)
class CompetenceGate:
    """Watches held-out losses with every token reading and with none.

    A model that has not learned to retrieve loses nothing without reads, however flat its loss: it is never released.
    """

    benefit: float
    """Nats per scored position that reads must be worth, in some head."""
    patience: int
    """Checks over which the dense loss must have stopped falling."""
    dense: list[dict[str, float]] = field(default_factory=list)
    """Dense losses by head, a check each."""

    def observe(self, dense: Mapping[str, float], off: Mapping[str, float]) -> list[str]:
        """Take in one check. The heads that reads help, if they have all finished helping more; else none."""
        self.dense.append(dict(dense))
        if len(self.dense) <= self.patience:
            return []
        earlier = self.dense[-1 - self.patience]
        helped = [head for head in dense if off[head] - dense[head] >= self.benefit]
        growing = any(earlier[head] - dense[head] > _GROWING * (off[head] - dense[head]) for head in helped)
        return [] if growing else helped
