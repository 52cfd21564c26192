"""When is a model ready to give up reads? When they demonstrably help, and have finished helping more.

Or when there is nothing left that they could bring.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

_GROWING = 0.05  # of the benefit: a dense loss that still falls by more is still learning to read


@dataclass(kw_only=True)
class CompetenceGate:
    """Watches held-out losses with every token reading and with none.

    A model that has not learned to retrieve loses nothing without reads, however flat its loss: it is never released.
    Unless it does without reads as well as anyone could, as where everything can be learned by heart.
    """

    benefit: float
    """Nats per scored position that reads must be worth, in some head."""
    patience: int
    """Checks over which the dense loss must have stopped falling."""
    main: str | None = None
    """The head that reads are for: it must be among those helped. None: any head will do."""
    floor: float | None = None
    """The least that the loss of the main head (or of the only one) can be: 0 of a cross entropy; None: not known."""
    tolerance: float = 0.0
    """Nats above the floor that nobody minds: without reads no further from it, there is nothing for them to bring."""
    checks: list[dict[str, tuple[float, float]]] = field(default_factory=list)
    """Losses by head with every token reading and with none, a check each; as many as are needed."""

    def observe(self, dense: Mapping[str, float], off: Mapping[str, float]) -> list[str]:
        """Take in one check. The heads that are not to get worse if the model is ready to be released; else none.

        Those that reads help, if they have all finished helping more; and the main head also if it needs none.
        """
        if self.main is not None and self.main not in dense:
            raise ValueError(f"main = {self.main!r} is not a head; heads: {', '.join(dense)}")
        self.checks = [*self.checks, {head: (dense[head], off[head]) for head in dense}][-1 - self.patience :]
        if len(self.checks) <= self.patience:
            return []
        helped = [head for head in dense if self._helps(head)]
        if any(self.checks[0][head][0] - dense[head] > _GROWING * (off[head] - dense[head]) for head in helped):
            return []
        main = next(iter(dense)) if self.main is None and len(dense) == 1 else self.main
        if main is not None and main not in helped and self._needs_none(main):
            return [main, *helped]
        return helped if self.main is None or self.main in helped else []

    def _needs_none(self, head: str) -> bool:
        """Whether it is as good without reads as it could be with any, at every check."""
        return self.floor is not None and all(check[head][1] - self.floor <= self.tolerance for check in self.checks)

    def _helps(self, head: str) -> bool:
        """Worth the benefit at every check, and more than the dense loss goes up and down by itself."""
        gains = [without - reading for reading, without in (check[head] for check in self.checks)]
        noise = statistics.stdev(check[head][0] for check in self.checks)
        return min(gains) >= self.benefit and statistics.mean(gains) >= self.benefit + 2 * noise
