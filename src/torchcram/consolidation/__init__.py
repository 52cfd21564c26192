"""Consolidation, for any training loop: phases, competence gate, quality controller, routing signals."""

from torchcram.consolidation.alarm import DriftAlarm
from torchcram.consolidation.config import ConsolidationConfig
from torchcram.consolidation.consolidator import Consolidator, Dials, Phase
from torchcram.consolidation.controller import QualityController
from torchcram.consolidation.gate import CompetenceGate
from torchcram.consolidation.trials import TrialConsolidator

__all__ = [
    "CompetenceGate",
    "ConsolidationConfig",
    "Consolidator",
    "Dials",
    "DriftAlarm",
    "Phase",
    "QualityController",
    "TrialConsolidator",
]
