"""How each size is trained, and the paper's own recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchcram import tasks
from torchcram.config import BASELINES, CONTROLS, BaselineConfig, CramConfig
from torchcram.consolidation.config import ConsolidationConfig, Schedule
from torchcram.models import baseline
from torchcram.strict import reject
from torchcram.training.config import RunConfig

COMMON: Mapping[str, Any] = {"model.contradiction.rank": 64}
"""What all sizes have in common, by dotted names."""

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"optimizer.rate": 3e-3, "steps": 1500, "batch": 16},
    "small": {"optimizer.rate": 2e-3, "steps": 2000, "batch": 16},
    "medium": {
        "optimizer.rate": 1e-3,
        "optimizer.warm_up": 100,
        "steps": 2000,
        "batch": 8,
        "evaluate_rows": 32,
    },
    "large": {
        "optimizer.rate": 5e-4,
        "optimizer.warm_up": 200,
        "steps": 2000,
        "batch": 32,
        "evaluate_rows": 32,
        "evaluate_every": 100,
    },
}
"""Settings of a run for each size, likewise; what a user sets himself comes on top."""

TASKS: Mapping[str, Mapping[str, Any]] = {
    # A value must see its key, up to three positions before. Retrieval that takes two steps is not found in 2000 steps
    # at 2048 positions; found at 512, it holds there as well.
    # The contradiction index has not been tried there: a value comes up to three tokens after its key.
    "two-token": {
        "model.episodic.convolution": 4,
        "model.contradiction.rank": 0,
        "task.length": 512,
        "batch": 32,
    },
    # A binding is two tokens here too, the value right after its key. Nothing recurs, so nothing can be expected: the
    # contradiction index enters every binding, and so knows which keys can be asked for at all.
    **{
        task: {"model.episodic.convolution": 2, "batch": 64}
        for task in ("mqar", "forgetting-mqar", "associative", "copying", "induction")
    },
    # What comes next in a text has no key: there is nothing that a contradiction index could look for.
    "text": {"model.contradiction.rank": 0, "batch": 64, "optimizer.warm_up": 200},
}
"""What a task needs of a model and a run, likewise; `task.` is for the task's own settings."""

MODELS = ("cram", *CONTROLS, *BASELINES)
"""All that can be trained, by name."""

_SIZES = ("model.layers", "model.block.width")  # changed before parameters are counted, not after

PAPER: Mapping[str, Any] = {
    "model.router.quality": "exact",
    "model.router.features": "scalars",
    "model.router.sharpness": 0.0,
    "model.contradiction.rank": 0,
    "consolidation.schedule": "paper",
    "consolidation.signal": "paper",
    "optimizer.rate": 3e-4,
    "optimizer.semantic": 0.1,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.98,
    "optimizer.decay": 0.01,
    "optimizer.warm_up": 0,
    "optimizer.settle": 1.0,
    "optimizer.last": 0.0,
    "batch": 32,
    "steps": 10_000,
}
"""The paper's appendix to the letter: exact q, a router that sees four numbers, λ_E and λ_S from the first step, the
temperature down from 1 to 0.1 over 3000 steps, AdamW with a cosine over all steps, semantic memory at a tenth of the
rate."""


def configure(
    task: str,
    preset: str,
    *,
    settings: Mapping[str, Any] | None = None,
    changes: Mapping[str, Any] | None = None,
    schedule: Schedule = "adaptive",
    name: str = "cram",
) -> RunConfig:
    """A run's config: a model of a size for a task, the recipes of both, then changes by dotted name.

    name: `cram`, one of its controls (`config.CONTROLS`), or a baseline (`config.BASELINES`); all get as many
    parameters as a CRAM with the same layers and width.
    """
    if name not in MODELS:
        reject("model", name, ", ".join(MODELS))
    if name != "cram" and schedule == "paper":
        reject("schedule", schedule, "'adaptive' or 'plain' for another model: the paper's is CRAM's")
    given = {**COMMON, **RECIPES.get("large" if preset == "paper" else preset, {}), **TASKS.get(task, {})}
    own = {field.removeprefix("task."): given.pop(field) for field in tuple(given) if field.startswith("task.")}
    settings = {**own, **(settings or {})}
    made = tasks.make(task, **settings)
    cram = CramConfig.preset(preset, inputs=made.inputs, outputs=made.outputs).override(
        {
            "episodic.trained_length": max(2, made.length),
            **{field.removeprefix("model."): given.pop(field) for field in tuple(given) if field.startswith("model.")},
            **{field.removeprefix("model."): value for field, value in (changes or {}).items() if field in _SIZES},
        }
    )
    model: CramConfig | BaselineConfig = cram if name == "cram" else baseline(name, cram)
    if name in BASELINES or name == "working":
        schedule = "plain"
    given |= PAPER if schedule == "paper" else {}
    given |= changes or {}
    if given.get("consolidation.signal") == "utility":
        given = {"model.router.rule": "worth", **given}
    start = ConsolidationConfig(schedule="plain" if schedule == "plain" else "adaptive")
    return RunConfig(task=task, settings=settings, model=model, name=name, preset=preset, consolidation=start).override(
        given
    )
