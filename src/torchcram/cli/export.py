"""`torchcram export`."""

from __future__ import annotations

from pathlib import Path

from torchcram.cli.errors import told
from torchcram.cli.trained import load


@told()
def run(path: Path, *, out: Path) -> None:
    """Write the newest checkpoint of a run as a model folder, for `Cram.from_pretrained`."""
    trainer = load(path)
    trainer.model.save_pretrained(out)
    print(f"written: {out} (step {trainer.step}); load it with Cram.from_pretrained({str(out)!r})")
