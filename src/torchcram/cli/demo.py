"""The demonstration: a small model learns to read, then not to, and a page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchcram.cli import evaluate, report, train
from torchcram.cli.errors import told

SETTINGS = ("task.length=256", "task.novel_keys=512", "task.values=16")
"""SRCD small enough for a laptop: the optimum is the same share of positions as at full size."""


@told()
def run(out: Path, *, changes: Sequence[str]) -> None:
    """Train (or go on with) the run in `out`, evaluate it on data it has not seen, and write its report."""
    begun = (out / "config.json").exists()
    if begun and changes:
        raise ValueError(f"{out} holds a run already, which keeps its settings; choose another folder with --out")
    if begun:
        print(
            f"{out} holds a run already: going on with it, if there is anything left to do (remove it to train again)"
        )
    finished = train.run(
        "srcd",
        out,
        model="cram",
        preset="tiny",
        schedule="adaptive",
        changes=[] if begun else [*SETTINGS, *changes],
        resume=begun,
        device="cpu",
        parallel="ddp",
    )
    if not finished:
        return
    evaluate.run(out, changes=[], rows=1024, worth=False, kept=True, device="cpu", json=out / "result.json")
    report.run([out], out=out / "report.html", picture=None)
