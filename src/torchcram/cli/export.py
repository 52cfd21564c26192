"""`torchcram export`."""

from __future__ import annotations

from pathlib import Path

from torchcram.cli.errors import told
from torchcram.training.loop import Trainer
from torchcram.training.run import RunFolder


@told()
def run(path: Path, *, out: Path) -> None:
    """Write the newest checkpoint of a run as a model folder, for `Cram.from_pretrained`."""
    folder = RunFolder(path)
    trainer = Trainer(folder.config.override({"compile": False}), say=print)
    if not trainer.restore(folder.checkpoints):
        raise ValueError(f"{path} has no checkpoint")
    trainer.model.save_pretrained(out)
    print(f"written: {out} (step {trainer.step}); load it with Cram.from_pretrained({str(out)!r})")
