"""`torchcram explore`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import numbers
from torchcram.cli.trained import facts, load
from torchcram.paper import exposures
from torchcram.training import checkpoint
from torchcram.training.decisions import load_decisions
from torchcram.training.explore import curves, explore, moments
from torchcram.training.run import RunFolder

_PER_DECADE = 8  # points of the practice curve


@told()
def run(path: Path, *, out: Path, at: str | None, changes: Sequence[str]) -> None:
    """Write what a run does with one held-out sequence at several checkpoints, and how it got there."""
    trainer = load(path, changes=changes)
    folder = RunFolder(path)
    there = checkpoint.steps(folder.checkpoints)
    chosen = numbers("--at", at, least=0) if at is not None else moments(there, trainer.consolidator.released_at)
    known = {**facts(trainer, path), "steps": trainer.step, "released_at": trainer.consolidator.released_at}
    # Other sequences than those that training was steered by.
    rows: list[dict[str, Any]] = list(
        explore(trainer, folder.checkpoints, sorted(chosen), seed=trainer.config.seed + 1)
    )
    rows[0] = {**known, **rows[0]}
    rows += [*curves(folder.metrics()), *_practice(folder.checkpoints / "decisions")]
    results.write(out, name=out.stem, rows=rows, seeds=[trainer.config.seed])
    if str(out) != "-":
        Console(highlight=False).print(f"{len(chosen)} moments of {path} written to {out}")


def _practice(folder: Path) -> Iterator[dict[str, Any]]:
    """How often recurring patterns were asked for, and read, by how often they had been seen; in bins of k."""
    if not folder.is_dir():
        return
    decisions = {name: x.numpy() for name, x in load_decisions(folder).items()}
    found = exposures.from_steps(decisions["asked"], decisions["read"])
    bins: dict[int, list[int]] = {}
    for k, asked, read in zip(found.k.tolist(), found.asked.tolist(), found.read.tolist(), strict=True):
        begin = round(10 ** (int(_PER_DECADE * math.log10(k)) / _PER_DECADE))
        total = bins.setdefault(begin, [0, 0])
        total[0] += asked
        total[1] += read
    for k, (asked, read) in sorted(bins.items()):
        yield {"what": "practice", "k": k, "asked": asked, "read": read}
