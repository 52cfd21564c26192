"""`torchcram paper`."""

from __future__ import annotations

import os
from pathlib import Path

from torchcram import report
from torchcram.cli.errors import told
from torchcram.paper import verdicts
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.report import claims, frontier, result


@told()
def run(folder: Path, *, out: Path) -> None:
    """Write the claims anew into the page, and the picture of results beside it; say how many there are of each."""
    if not out.is_file():
        raise ValueError(f"{out} is not there; allowed: a page with a place for the claims, such as docs/paper.md")
    results = verdicts.read(folder)
    place = os.path.relpath(folder, out.parent)
    text = claims.renewed(out.read_text(encoding="utf-8"), results, folder=place, experiments=EXPERIMENTS)
    report.save(out, text)
    try:
        drawn = result.picture(results)
    except ValueError as error:
        print(f"the picture is left as it is: {error}")
    else:
        report.save(out.parent / "images" / "result.svg", drawn)
    for task in frontier.TASKS:
        if (traded := frontier.picture(results, task)) is not None:
            report.save(out.parent / "images" / f"frontier-{task}.svg", traded)
    for status, count in verdicts.counts(verdicts.judge(results)).items():
        print(f"{count:4} {status}")
