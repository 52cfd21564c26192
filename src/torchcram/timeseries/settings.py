"""What an estimator is made with, and where each of its settings belongs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchcram.strict import StrictConfig, check_flag, check_integer
from torchcram.timeseries.fitting import FitConfig
from torchcram.training.config import StartConfig


@dataclass(frozen=True, kw_only=True)
class EstimatorConfig(StrictConfig):
    """What an estimator is made with."""

    model: str = "cram"
    """`cram`, or a baseline (`torchcram.config.BASELINES`) with as many parameters."""
    preset: str = "tiny"
    """Size of the model."""
    members: int = 1
    """Models that are fitted, with one seed after another, and whose probabilities are averaged."""
    network: dict[str, Any] = field(default_factory=dict)
    """Settings of `NetworkConfig`: `layout`, `features`, `answer`, `hide`; `interval`, in the samples' unit of time."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings of the model by dotted name, e.g. `{"episodic.slots": 64}`."""
    fit: FitConfig = field(default_factory=FitConfig)
    start: StartConfig = field(default_factory=StartConfig)
    """A run whose layers the models begin with, and which of their parts learn no more; give `changes` that make the
    layers alike."""
    progress: bool = True
    """Show a bar."""

    def __post_init__(self) -> None:
        check_integer("members", self.members, 1)
        check_flag("progress", self.progress)


_HOMES: Mapping[str, frozenset[str]] = {
    "network": frozenset({"layout", "features", "answer", "interval", "hide"}),
    "fit": frozenset(FitConfig.__dataclass_fields__),
    "": frozenset(EstimatorConfig.__dataclass_fields__) - {"network", "fit"},
}
SIGHT = _HOMES["network"]
"""Names of the settings that say what a sequence model sees of a sample."""
SETTINGS = frozenset().union(*_HOMES.values())
"""Names of all settings of an estimator."""


def configure(settings: Mapping[str, Any]) -> EstimatorConfig:
    """Settings by name, each put where it belongs."""
    parts: dict[str, dict[str, Any]] = {home: {} for home in _HOMES}
    for name, value in settings.items():
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise ValueError(f"{name} is not a setting; allowed: {', '.join(sorted(SETTINGS))}")
        parts[home][name] = value
    return EstimatorConfig.from_dict({**parts[""], "network": parts["network"], "fit": parts["fit"]})
