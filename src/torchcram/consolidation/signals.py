"""What the routing pressure is made of: each signal says how reads are charged, audited and sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from torchcram.consolidation.config import ConsolidationConfig, Signal


class RoutingSignal(Protocol):
    """One way to decide which reads to give up."""

    def cost(
        self,
        config: ConsolidationConfig,
        losses: Mapping[str, Tensor],
        price: float,
        positions: Tensor | int,
        scored: Tensor | int,
    ) -> Tensor | float:
        """What reads cost, less what recall earns, per scored position."""

    def audit(self, config: ConsolidationConfig) -> float:
        """Share of skipping tokens to audit."""

    def trial(self, config: ConsolidationConfig) -> float:
        """Share of reads to use a random part of."""

    def temperature(self, config: ConsolidationConfig, step: int, progress: float) -> float:
        """Of the routing gradient."""


class QualitySignal:
    """A price in nats for each read, and a share of it back for each recall, in proportion to its quality."""

    def cost(
        self,
        config: ConsolidationConfig,
        losses: Mapping[str, Tensor],
        price: float,
        positions: Tensor | int,
        scored: Tensor | int,
    ) -> Tensor | float:
        if price == 0 or "reads" not in losses:
            return 0.0
        return price * (positions / scored) * (losses["reads"] + config.reward * losses["recall"])

    def audit(self, config: ConsolidationConfig) -> float:
        return config.audit

    def trial(self, config: ConsolidationConfig) -> float:
        return 0.0

    def temperature(self, config: ConsolidationConfig, step: int, progress: float) -> float:
        return 1 + (config.temperature - 1) * progress


class UtilitySignal(QualitySignal):
    """Reads are charged by the rule itself, which skips those worth less than the price; recall earns as ever."""

    def cost(
        self,
        config: ConsolidationConfig,
        losses: Mapping[str, Tensor],
        price: float,
        positions: Tensor | int,
        scored: Tensor | int,
    ) -> Tensor | float:
        if price == 0 or "recall" not in losses:
            return 0.0
        return price * (positions / scored) * config.reward * losses["recall"]

    def trial(self, config: ConsolidationConfig) -> float:
        return config.trial


class PaperSignal:
    """λ_E Σ π² - λ_S Σ π³ q with the paper's constants, from the first step on; no audits."""

    episodic, semantic = 0.1, 0.05
    """λ_E and λ_S of the paper's appendix."""
    cooling = 3000
    """Steps over which the temperature falls from 1 to 0.1."""

    def cost(
        self,
        config: ConsolidationConfig,
        losses: Mapping[str, Tensor],
        price: float,
        positions: Tensor | int,
        scored: Tensor | int,
    ) -> Tensor | float:
        total = self.episodic * losses["reads"] + self.semantic * losses["recall"]
        return total * positions if config.paper_sum else total

    def audit(self, config: ConsolidationConfig) -> float:
        return 0.0

    def trial(self, config: ConsolidationConfig) -> float:
        return 0.0

    def temperature(self, config: ConsolidationConfig, step: int, progress: float) -> float:
        return max(0.1, 1 - 0.9 * step / self.cooling)


SIGNALS: Mapping[Signal, RoutingSignal] = {
    "quality": QualitySignal(),
    "utility": UtilitySignal(),
    "paper": PaperSignal(),
}
"""By name, as in `ConsolidationConfig.signal`."""
