"""From words such as `a.b=c` to the config of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torchcram import tasks
from torchcram.consolidation.config import Schedule
from torchcram.strict import check_choice
from torchcram.training import recipes
from torchcram.training.config import RunConfig

_ELSEWHERE: Mapping[str, str] = {
    "task": "the task is the first word of the command, and its settings are task.…, such as --set task.length=64",
    "settings": "settings of the task are task.…, such as --set task.length=64",
    "model": "use --model, or model.… for its settings, such as --set model.layers=2",
    "name": "use --model",
    **{name: f"use --{name}" for name in ("preset", "schedule", "device", "out", "parallel", "resume")},
}
"""What is no setting, though it looks like one, and what to use instead."""


def configure(
    task: str,
    changes: Sequence[str],
    *,
    preset: str | None = None,
    schedule: str | None = None,
    model: str | None = None,
) -> RunConfig:
    """`recipes.configure` with `a.b=c` changes; `task.…` are the task's own settings."""
    preset, schedule, model = preset or "tiny", schedule or "adaptive", model or "cram"
    check_choice("schedule", schedule, Schedule)
    settings, others = _split(changes)
    for field, instead in _ELSEWHERE.items():
        if field in others:
            raise ValueError(f"--set {field}=… is not possible; {instead}")
    return recipes.configure(
        task, preset, settings=settings, changes=others, schedule=cast(Schedule, schedule), name=model
    )


def changed(config: RunConfig, changes: Sequence[str]) -> RunConfig:
    """A run's config for an evaluation under other settings: of the task, the model and the batch, nothing else."""
    settings, others = _split(changes)
    for name in others:
        if not name.startswith("model.") and name != "batch":
            raise ValueError(f"--set {name}=… is not possible here; allowed: task.…, model.… and batch")
    config = config.override({"settings": {**config.settings, **settings}}).override(others)
    task = tasks.make(config.task, **config.settings)
    if (task.inputs, task.outputs) != (config.model.inputs, config.model.outputs):
        raise ValueError(
            "the model was made for other keys or values; patterns, novel_keys and values must stay as they are"
        )
    return config


def values(changes: Sequence[str]) -> dict[str, Any]:
    """`a.b=c` as names and values, which are read as JSON where they are."""
    found: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} is not possible; allowed: a.b=c")
        found[name] = value(text)
    return found


def value(text: str) -> Any:
    """What a word means, read as JSON where it is."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _split(changes: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`a.b=c` as the task's settings and the rest."""
    task: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in values(changes).items():
        part, _, leaf = name.partition(".")
        if part == "task" and leaf:
            task[leaf] = value
        else:
            rest[name] = value
    return task, rest
