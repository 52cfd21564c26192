"""`torchcram train` and `torchcram evaluate`."""

from __future__ import annotations

import json as json_text
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

import torch
import typer
from rich.console import Console

from torchcram import results
from torchcram.cli.progress import Display
from torchcram.cli.tables import show_row
from torchcram.config import CramConfig
from torchcram.consolidation.config import Schedule
from torchcram.strict import check_choice
from torchcram.tasks import Srcd
from torchcram.training.config import RunConfig
from torchcram.training.distributed import PeerError, launched
from torchcram.training.evaluate import evaluate
from torchcram.training.loop import Trainer
from torchcram.training.recipes import recipe
from torchcram.training.run import RunFolder

Model = Literal["cram"]


def run(
    task: str,
    out: Path,
    *,
    model: str,
    preset: str,
    schedule: str,
    changes: Sequence[str],
    resume: bool,
    device: str,
    parallel: str,
) -> bool:
    """Train, show progress, save, and stop cleanly when told to; with torchrun, all processes as one.

    Returns whether the run came to its end.
    """
    folder = RunFolder(out)
    try:
        check_choice("model", model, Model)
        _prepare(device)
        with launched(device, parallel) as world, ExitStack() as lock:
            console = Console(highlight=False, quiet=not world.first)
            stopping = _stop_on_signals(console)
            with world.together():
                if world.first:
                    lock.enter_context(folder)
                    if resume and changes:
                        raise ValueError("a resumed run keeps its settings; --set is for new ones")
                    config = folder.config if resume else configure(task, preset, changes, schedule)
                    world.check(config)
                    if not resume:
                        folder.begin(config)
            config = folder.config
            trainer = Trainer(config, say=lambda text: console.print(f"[yellow]{text}"), world=world)
            restored = resume and trainer.restore(folder.checkpoints)
            with world.together():
                if resume and not restored:
                    raise ValueError(f"{out} has no checkpoint to resume from")
            with Display(console, trainer) as display:
                for progress in trainer.run(folder.checkpoints, stop=lambda: bool(stopping)):
                    if world.first:
                        folder.record(progress.entry())
                    display.report(progress)
            if trainer.step < config.steps:
                console.print(f"stopped at step {trainer.step}; go on with --resume")
            elif trainer.consolidator.released_at is None:
                console.print(
                    "[bold red]never released: reads did not become clearly useful, so the model still reads "
                    "everywhere[/bold red]"
                )
            return trainer.step >= config.steps
    except ValueError as error:
        _fail(error)


def evaluate_run(path: Path, *, changes: Sequence[str], rows: int, device: str, json: Path | None) -> None:
    """Print (and write) one row: quality and reads of the newest checkpoint of a run."""
    try:
        _prepare(device)
        folder = RunFolder(path)
        config = folder.config
        settings, model_changes = _settings(changes, allowed=("task", "model"))
        config = config.override({"settings": {**config.settings, **settings}}).override(
            {f"model.{name}": value for name, value in model_changes.items()}
        )
        trainer = Trainer(config, device, say=lambda text: Console(stderr=True).print(text))
        if not trainer.restore(folder.checkpoints):
            raise ValueError(f"{path} has no checkpoint")
        released = trainer.consolidator.released_at
        policy = None if released is not None else trainer.consolidator.dense()
        found = evaluate(trainer.model, trainer.task, seed=config.seed + 1, rows=rows, policy=policy, bf16=config.bf16)
    except ValueError as error:
        _fail(error)
    row: dict[str, Any] = {
        "model": "cram",
        "preset": config.preset,
        "task": config.task,
        "schedule": config.consolidation.schedule,
        "seed": config.seed,
        "length": trainer.task.length,
        "slots": config.model.episodic.slots,
        **found.row(),
        "released_at": released,
        "steps": trainer.step,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }
    if json is None or str(json) != "-":
        show_row({"what": str(path), **row})
    if json is not None:
        machine = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None
        results.write(json, name=f"{config.task}-{path.name}", rows=[row], seeds=[config.seed], machine=machine)


def _prepare(device: str) -> None:
    """On a GPU, float32 products may use its matrix units (tf32): the process is ours to set."""
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")


def configure(task: str, preset: str, changes: Sequence[str], schedule: str = "adaptive") -> RunConfig:
    """A run's config: the recipe of a size for a task, then `a.b=c` changes; `task.…` are the task's own settings."""
    check_choice("schedule", schedule, Schedule)
    settings, others = _settings(changes, allowed=("task",))
    made = Srcd.variant(task, **settings)
    model = CramConfig.preset(preset, inputs=made.inputs, outputs=made.outputs)
    model = model.override({"episodic.trained_length": max(2, made.length)})
    config = RunConfig(task=task, settings=settings, model=model, preset=preset)
    return recipe(config, schedule).override(others)


def _settings(changes: Sequence[str], allowed: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `a.b=c` into the task's settings and the rest, with values read as JSON where they are."""
    task: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} is not possible; allowed: a.b=c")
        try:
            value = json_text.loads(text)
        except json_text.JSONDecodeError:
            value = text
        part, _, leaf = name.partition(".")
        if part == "task" and leaf:
            task[leaf] = value
        elif "model" in allowed and part != "model":
            raise ValueError(f"--set {change!r} is not possible here; allowed: task.… and model.…")
        else:
            rest[leaf if "model" in allowed else name] = value
    return task, rest


def _stop_on_signals(console: Console) -> list[int]:
    """A list that holds something once the run was asked to stop."""
    asked: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        console.print("stopping after this step, with a checkpoint")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return asked


def _fail(error: ValueError) -> NoReturn:
    if not isinstance(error, PeerError):  # that process tells
        print(f"torchcram: {error}", file=sys.stderr)
    raise typer.Exit(1) from None
