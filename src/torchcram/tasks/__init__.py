"""Tasks: data, loss and metrics. They know no model."""

from torchcram.tasks.names import NAMES, make
from torchcram.tasks.recall import Copying, CopyingConfig, Induction, Mqar, MqarConfig, TokenTaskConfig
from torchcram.tasks.srcd import Srcd, SrcdConfig
from torchcram.tasks.task import HELD_OUT, Examples, Task
from torchcram.tasks.text import Text, TextConfig

__all__ = [
    "HELD_OUT",
    "NAMES",
    "Copying",
    "CopyingConfig",
    "Examples",
    "Induction",
    "Mqar",
    "MqarConfig",
    "Srcd",
    "SrcdConfig",
    "Task",
    "Text",
    "TextConfig",
    "TokenTaskConfig",
    "make",
]
