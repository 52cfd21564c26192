"""Reports: run folders → one self-contained HTML page, or one picture. Needs neither torch nor a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from torchcram.files import replacing
from torchcram.report import charts
from torchcram.report.page import page
from torchcram.report.runs import Run, read_all
from torchcram.report.words import verdict

__all__ = ["Run", "page", "picture", "read_all", "save", "verdict"]


def picture(runs: Sequence[Run], *, width: int = 860, height: int = 400) -> str:
    """Reads over training as one SVG file, for a README or a slide."""
    return charts.reads(runs, width=width, height=height, heading=_heading(runs))


def save(path: str | os.PathLike[str], text: str) -> None:
    """Write a page or picture, whole or not at all."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _heading(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return verdict(runs[0]).removesuffix(".")
    return f"Reads over training: {len(runs)} runs and their median"
