"""`torchcram train`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from torchcram.cli.errors import told
from torchcram.cli.progress import Display
from torchcram.cli.settings import prepare
from torchcram.consolidation import Phase
from torchcram.training.config import RunConfig
from torchcram.training.distributed import launched
from torchcram.training.loop import Trainer
from torchcram.training.run import RunFolder
from torchcram.training.settings import configure
from torchcram.training.start import load_layers
from torchcram.training.stopping import stopping_signals


@told()
def run(
    task: str,
    out: Path,
    *,
    model: str | None,
    preset: str | None,
    schedule: str | None,
    changes: Sequence[str],
    resume: bool,
    device: str,
    parallel: str,
) -> bool:
    """Train, show progress, save, and stop cleanly when told to; with torchrun, all processes as one.

    Returns whether the run came to its end.
    """
    folder = RunFolder(out)
    with ExitStack() as stack:
        prepare(device)
        world = stack.enter_context(launched(device, parallel))
        console = Console(highlight=False, quiet=not world.first)
        asked = threading.Event()
        words = "stopping after this step, with a checkpoint" if world.first else ""
        stack.enter_context(stopping_signals(asked.set, words))
        with world.together():
            if resume:
                config = folder.config
                _agrees(config, task, model, preset, schedule, changes)
            else:
                folder.check_new()
                config = configure(task, changes, preset=preset, schedule=schedule, model=model)
            world.check(config)
        trainer = Trainer(config, say=lambda text: console.print(f"[yellow]{text}"), world=world)
        if config.start.run and not resume:  # once more when it starts: here, to refuse layers that do not fit
            load_layers(trainer.model, config.start.run, world)
        # Nothing is written before all of that was possible: the corrected command can use the same folder.
        with world.together():
            if world.first:
                stack.enter_context(folder)
                if not resume:
                    folder.begin(config)
        # Without a checkpoint the run was stopped before its first: it starts again.
        if resume and not trainer.restore(folder.checkpoints):
            console.print(f"{out} has no checkpoint yet: starting from the first step", soft_wrap=True)
        if trainer.step >= config.steps:
            console.print(f"{out} is complete: all {config.steps} steps are done", soft_wrap=True)
            return True
        with Display(console, trainer) as display:
            for progress in trainer.run(folder.checkpoints, stop=asked.is_set):
                if world.first:
                    folder.record(progress.entry())
                display.report(progress)
        if trainer.step < config.steps:
            console.print(f"stopped at step {trainer.step}; go on with --resume")
            return False
        if trainer.consolidator.phase is Phase.ACQUIRE:
            console.print(
                "[bold red]never released: reads did not become clearly useful, so the model still reads "
                "everywhere; more steps, shorter sequences or another learning rate may help[/bold red]",
                soft_wrap=True,
            )
        console.print(f"done: torchcram evaluate {out}, torchcram report {out}", soft_wrap=True)
    return True


def _agrees(
    config: RunConfig, task: str, model: str | None, preset: str | None, schedule: str | None, changes: Sequence[str]
) -> None:
    """A resumed run keeps its settings: refuse others rather than pass over them."""
    if changes:
        raise ValueError(f"a resumed run keeps its settings; {', '.join(changes)} is for new ones")
    for name, mine, kept in (
        ("task", task, config.task),
        ("model", model, config.name),
        ("preset", preset, config.preset),
        ("schedule", schedule, config.consolidation.schedule),
    ):
        if mine not in (kept, None):
            raise ValueError(f"the run has {name} = {kept!r}, not {mine!r}; a resumed run keeps its settings")
