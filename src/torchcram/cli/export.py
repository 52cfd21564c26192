"""`torchcram export`."""

from __future__ import annotations

from pathlib import Path

from torchcram.cli.errors import told
from torchcram.cli.trained import load
from torchcram.models import Cram


@told()
def run(path: Path, *, out: Path) -> None:
    """Write the newest checkpoint of a run as a model folder, for `Cram.from_pretrained`."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; choose a folder for the model")
    trainer = load(path)
    trainer.model.save_pretrained(out)
    how = "Cram.from_pretrained" if isinstance(trainer.model, Cram) else "torchcram.models.load"
    print(f"written: {out} (step {trainer.step}); load it with {how}({str(out)!r})")
