"""Every task and variant by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchcram.strict import reject
from torchcram.tasks.recall import Copying, CopyingConfig, Induction, Mqar, MqarConfig, TokenTaskConfig
from torchcram.tasks.srcd import VARIANTS, Srcd
from torchcram.tasks.task import Task
from torchcram.tasks.text import Text, TextConfig

_OTHERS: Mapping[str, tuple[Any, Any, Mapping[str, Any]]] = {
    "mqar": (Mqar, MqarConfig, {}),
    "forgetting-mqar": (Mqar, MqarConfig, {"rebound": 0.5}),
    "associative": (Mqar, MqarConfig, {"last": True}),
    "copying": (Copying, CopyingConfig, {}),
    "induction": (Induction, TokenTaskConfig, {"vocabulary": 16}),
    "text": (Text, TextConfig, {}),
}
"""Task, its settings, and which of them differ from the defaults."""

NAMES = (*VARIANTS, *_OTHERS)


def make(name: str, **settings: Any) -> Task:
    """A task by name, with settings of one's own."""
    if name in VARIANTS:
        return Srcd.variant(name, **settings)
    if name not in _OTHERS:
        reject("task", name, ", ".join(NAMES))
    task, config, given = _OTHERS[name]
    made: Task = task(config.from_dict({**given, **settings}))
    return made
