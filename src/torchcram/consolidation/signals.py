"""What the routing pressure is made of: each signal says how reads are charged, audited and sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from torchcram.consolidation.config import ConsolidationConfig, Signal


class RoutingSignal(Protocol):
    """One way to decide which reads to give up."""

    def cost(
        self,
        config: ConsolidationConfig,
        losses: Mapping[str, Tensor],
        price: float | Tensor,
        positions: Tensor | int,
        scored: Tensor | int,
    ) -> Tensor | float:
        """What reads cost, less what recall earns, per scored position."""

    def audit(self, config: ConsolidationConfig) -> float:
        """Share of skipping tokens to audit."""

    def trial(self, config: ConsolidationConfig) -> float:
        """Share of reads to use a random part of."""

    def temperature(self, config: ConsolidationConfig, step: int, since: int) -> float:
        """Of the routing gradient, at a step and so many since release."""


@dataclass(frozen=True, kw_only=True)
class PricedSignal:
    """A price in nats for each read, and a share of it back for each recall, in proportion to its quality."""

    by_rule: bool
    """Reads are charged by the rule itself, which skips those worth less, and some are tried to learn what they are."""

    def cost(
        self,
        config: ConsolidationConfig,
        losses: Mapping[str, Tensor],
        price: float | Tensor,
        positions: Tensor | int,
        scored: Tensor | int,
    ) -> Tensor | float:
        free = not isinstance(price, Tensor) and price == 0
        if free or "reads" not in losses:
            return 0.0
        charged = 0.0 if self.by_rule else losses["reads"]
        return price * (positions / scored) * (charged + config.reward * losses["recall"])

    def audit(self, config: ConsolidationConfig) -> float:
        return config.audit

    def trial(self, config: ConsolidationConfig) -> float:
        return config.trial if self.by_rule else 0.0

    def temperature(self, config: ConsolidationConfig, step: int, since: int) -> float:
        return 1 + (config.temperature - 1) * min(1.0, since / (config.cooling or config.ramp))


class PaperSignal:
    """λ_E Σ π² - λ_S Σ π³ q with the paper's constants, from the first step on; no audits."""

    episodic, semantic = 0.1, 0.05
    """λ_E and λ_S of the paper's appendix."""
    cooling = 3000
    """Steps over which the temperature falls from 1 to 0.1, unless the config says otherwise."""

    def cost(
        self,
        config: ConsolidationConfig,
        losses: Mapping[str, Tensor],
        price: float | Tensor,
        positions: Tensor | int,
        scored: Tensor | int,
    ) -> Tensor | float:
        total = self.episodic * losses["reads"] + self.semantic * losses["recall"]
        return total * positions if config.paper_sum else total

    def audit(self, config: ConsolidationConfig) -> float:
        return 0.0

    def trial(self, config: ConsolidationConfig) -> float:
        return 0.0

    def temperature(self, config: ConsolidationConfig, step: int, since: int) -> float:
        return max(0.1, 1 - 0.9 * step / (config.cooling or self.cooling))


SIGNALS: Mapping[Signal, RoutingSignal] = {
    "quality": PricedSignal(by_rule=False),
    "utility": PricedSignal(by_rule=True),
    "paper": PaperSignal(),
}
"""By name, as in `ConsolidationConfig.signal`."""
