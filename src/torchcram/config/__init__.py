"""Models as data: frozen dataclasses that check themselves, without torch."""

from torchcram.config.baseline import (
    BASELINES,
    CONTROLS,
    AttentionConfig,
    BaselineConfig,
    SpaceConfig,
)
from torchcram.config.cram import (
    PRESETS,
    BlockConfig,
    ContradictionConfig,
    CramConfig,
    EpisodicConfig,
    InputConfig,
    ModelConfig,
    OutputConfig,
    RouterConfig,
    SemanticConfig,
    TokenField,
    WorkingConfig,
)

__all__ = [
    "BASELINES",
    "CONTROLS",
    "PRESETS",
    "AttentionConfig",
    "BaselineConfig",
    "BlockConfig",
    "ContradictionConfig",
    "CramConfig",
    "EpisodicConfig",
    "InputConfig",
    "ModelConfig",
    "OutputConfig",
    "RouterConfig",
    "SemanticConfig",
    "SpaceConfig",
    "TokenField",
    "WorkingConfig",
]
