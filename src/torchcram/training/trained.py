"""A trained run, as it is or under other settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torchcram.training.loop import Trainer
from torchcram.training.run import RunFolder
from torchcram.training.settings import changed


def restored(
    path: Path,
    device: str = "cpu",
    changes: Sequence[str] = (),
    *,
    compile: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Trainer:
    """The newest checkpoint of the run in a folder; with `a.b=c` changes of its task, model or batch."""
    folder = RunFolder(path)
    config = changed(folder.config, changes).override({"compile": compile})
    trainer = Trainer(config, device, say=say)
    if not trainer.restore(folder.checkpoints):
        raise ValueError(f"{path} has no checkpoint")
    return trainer
