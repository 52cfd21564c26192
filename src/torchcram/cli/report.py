"""`torchcram report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchcram import report
from torchcram.cli.errors import told
from torchcram.paper import verdicts
from torchcram.report import paper


@told()
def run(folders: Sequence[Path], *, out: Path | None, picture: Path | None) -> None:
    """Write the page and, if wanted, the picture; say where, and what each run came to."""
    if picture is not None and picture.suffix != ".svg":
        raise ValueError(f"--picture {picture} is not possible; allowed: a name that ends in .svg")
    runs = report.read_all(folders)
    if out is not None:
        report.save(out, report.page(runs))
    if picture is not None:
        report.save(picture, report.picture(runs))
    for one in runs:
        print(f"{one.name}: {report.verdict(one)}".replace("\u00a0", " "))
    print(f"written: {', '.join(str(path) for path in (out, picture) if path is not None)}")


@told()
def run_paper(folder: Path, *, out: Path) -> None:
    """Write the page about the paper; say where, and how many claims have each verdict."""
    from torchcram.paper.experiments import EXPERIMENTS

    results = verdicts.read(folder)
    if not results:
        raise ValueError(f"{folder} has no result files; allowed: the folder `results` of a checkout, or one like it")
    report.save(out, paper.page(results, experiments=EXPERIMENTS))
    counts = verdicts.counts(verdicts.judge(results))
    print("; ".join(f"{status} {count}" for status, count in counts.items()))
    print(f"written: {out}")
