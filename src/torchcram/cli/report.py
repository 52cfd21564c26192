"""`torchcram report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchcram import report
from torchcram.cli.errors import told


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
