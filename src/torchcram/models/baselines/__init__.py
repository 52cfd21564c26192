"""The models that CRAM is compared with, behind the same interface."""

from torchcram.models.baselines.stack import Baseline
from torchcram.models.baselines.state import BaselineState

__all__ = ["Baseline", "BaselineState"]
