"""What making a batch costs, as a share of the training step that uses it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from torchcram.bench.timing import compare, wait_for
from torchcram.results import Row
from torchcram.training.loop import Trainer
from torchcram.training.recipes import configure


def run(preset: str, device: str, settings: Mapping[str, Any], repeats: int = 15) -> Row:
    """An SRCD batch against a whole training step, in which every token reads; `share` is the former's part."""
    config = configure("srcd", preset, settings=settings)
    trainer = Trainer(config, device)
    steps = itertools.count()

    def batch() -> None:
        trainer.task.batch(seed=0, step=next(steps), rows=range(config.batch), device=trainer.device)
        wait_for(trainer.device)

    def step() -> None:
        trainer.train_step()
        wait_for(trainer.device)

    row = compare("an SRCD batch", batch, step, against="training step", length=trainer.task.length, repeats=repeats)
    return {**row, "preset": preset, "batch": config.batch, "share": 1 / float(row["ratio"] or 0)}
