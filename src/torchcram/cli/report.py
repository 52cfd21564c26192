"""`torchcram report`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from torchcram import report


def run(folders: Sequence[Path], *, out: Path | None, picture: Path | None) -> None:
    """Write the page and, if wanted, the picture; say where, and what each run came to."""
    try:
        runs = report.read_all(folders)
        if out is not None:
            report.save(out, report.page(runs))
        if picture is not None:
            report.save(picture, report.picture(runs))
    except (ValueError, OSError) as error:
        print(f"torchcram: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    for one in runs:
        print(f"{one.name}: {report.verdict(one)}".replace("\u00a0", " "))
    print(f"written: {', '.join(str(path) for path in (out, picture) if path is not None)}")
