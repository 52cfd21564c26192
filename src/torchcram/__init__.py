"""torchcram: sequence models whose need for attention falls as they learn.

    from torchcram import Cram, CramConfig
    model = Cram(CramConfig.preset("small", inputs="tokens", vocabulary=256, outputs="tokens"))
    out = model(tokens, dt=dt)

The names below are loaded when first used, so that `import torchcram` itself is quick and needs no torch.
"""

from __future__ import annotations

import importlib
import typing

__version__ = "0.1.0"

_HOMES = {
    "BlockConfig": "config",
    "ContradictionConfig": "config",
    "CramConfig": "config",
    "EpisodicConfig": "config",
    "InputConfig": "config",
    "OutputConfig": "config",
    "PRESETS": "config",
    "RouterConfig": "config",
    "SemanticConfig": "config",
    "TokenField": "config",
    "WorkingConfig": "config",
    "Cost": "ledger",
    "Ledger": "ledger",
    "measure": "ledger",
    "Block": "memory",
    "BlockState": "memory",
    "RoutingPolicy": "memory",
    "Timeline": "memory",
    "Cram": "models",
    "CramOutput": "models",
    "CramState": "models",
    "Generation": "models",
    "CramClassifier": "timeseries",
    "CramLabeller": "timeseries",
}

__all__ = ["__version__", *sorted(_HOMES)]

if typing.TYPE_CHECKING:
    from torchcram.config import (
        PRESETS,
        BlockConfig,
        ContradictionConfig,
        CramConfig,
        EpisodicConfig,
        InputConfig,
        OutputConfig,
        RouterConfig,
        SemanticConfig,
        TokenField,
        WorkingConfig,
    )
    from torchcram.ledger import Cost, Ledger, measure
    from torchcram.memory import Block, BlockState, RoutingPolicy, Timeline
    from torchcram.models import Cram, CramOutput, CramState, Generation
    from torchcram.timeseries import CramClassifier, CramLabeller


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchcram' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"torchcram.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
