"""From the words of a command line to the config of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import torch

from torchcram import tasks
from torchcram.consolidation.config import Schedule
from torchcram.strict import check_choice, reject
from torchcram.training import recipes
from torchcram.training.config import RunConfig


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
    for field, option in (("preset", "preset"), ("name", "model"), ("model", "model")):
        if field in others:
            raise ValueError(f"--set {field}=… is not possible; use --{option}")
    return recipes.configure(
        task, preset, settings=settings, changes=others, schedule=cast(Schedule, schedule), name=model
    )


def changed(config: RunConfig, changes: Sequence[str]) -> RunConfig:
    """A run's config for an evaluation under other settings: of the task and the model, nothing else."""
    settings, others = _split(changes)
    for name in others:
        if not name.startswith("model."):
            raise ValueError(f"--set {name}=… is not possible here; allowed: task.… and model.…")
    config = config.override({"settings": {**config.settings, **settings}}).override(others)
    task = tasks.make(config.task, **config.settings)
    if (task.inputs, task.outputs) != (config.model.inputs, config.model.outputs):
        raise ValueError(
            "the model was made for other keys or values; patterns, novel_keys and values must stay as they are"
        )
    return config


def prepare(device: str, *, tf32: bool = True) -> None:
    """Refuse a device that is not there. On a GPU, let float32 products use its matrix units (tf32), or not."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        reject("device", device, "'cpu' or 'cuda'")
    if kind == "cuda":
        if not torch.cuda.is_available():
            reject("device", device, "'cpu', since there is no GPU here that torch can use")
        torch.set_float32_matmul_precision("high" if tf32 else "highest")


def numbers(option: str, text: str, least: int = 1) -> list[int]:
    """What an option lists."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        reject(option, text, f"whole numbers from {least} on, separated by commas")
    return [int(part) for part in parts]


def machine(device: str) -> str | None:
    """The name of a GPU for result files; None for a CPU, which they describe by themselves."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None


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


def lists(option: str, given: Sequence[str]) -> dict[str, list[str]]:
    """`name=value,value` as names and the words they may be."""
    found: dict[str, list[str]] = {}
    for each in given:
        name, equals, words = each.partition("=")
        if not equals:
            raise ValueError(f"{option} {each!r} is not possible; allowed: name=value,value,…")
        if name in found:
            raise ValueError(f"{option} {name} is given twice; give all its values at once, separated by commas")
        found[name] = [word for word in words.split(",") if word]
    return found


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
