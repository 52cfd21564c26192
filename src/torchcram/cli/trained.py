"""A trained run, for the commands that use one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from torchcram.config import BaselineConfig
from torchcram.results import VARIED
from torchcram.training.loop import Trainer
from torchcram.training.run import RunFolder
from torchcram.training.trained import restored


def load(path: Path, device: str = "cpu", changes: Sequence[str] = (), *, compile: bool = False) -> Trainer:
    """The newest checkpoint of the run in a folder; with `a.b=c` changes of its task, model or batch."""
    return restored(path, device, changes, compile=compile, say=lambda text: Console(stderr=True).print(text))


def facts(trainer: Trainer, path: Path) -> dict[str, Any]:
    """What a row of results says of the run it comes from, which lies in the folder `path`."""
    config = trainer.config
    return {
        "model": config.name,
        "preset": config.preset,
        "task": config.task,
        "schedule": config.consolidation.schedule,
        "seed": config.seed,
        "rate": config.optimizer.rate,
        "length": trainer.task.length,
        "slots": config.model.attention.slots
        if isinstance(config.model, BaselineConfig)
        else config.model.episodic.slots,
        **{f"{VARIED}{name}": value for name, value in RunFolder(path).varied.items()},
    }
