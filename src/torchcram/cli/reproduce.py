"""`torchcram reproduce`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import cast

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.tables import show_row
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.paper.scale import Scale
from torchcram.strict import check_choice, reject


def show_list() -> None:
    """Print the experiments, a line each."""
    for name, experiment in EXPERIMENTS.items():
        print(f"{name:<10} {(inspect.getdoc(experiment) or '').splitlines()[0]}")


@told()
def run(name: str, *, scale: str, out: Path, json: Path | None) -> None:
    """Run an experiment; show each row as soon as it is there, and write all of them to the folder."""
    check_choice("scale", scale, Scale)
    if name not in EXPERIMENTS:
        reject("experiment", name, ", ".join(EXPERIMENTS))
    rows = []
    for row in EXPERIMENTS[name](cast(Scale, scale), out):
        if str(json) != "-":
            show_row(row)
        rows.append(row)
    paths = [out / f"{name}.json", *([] if json is None else [json])]
    for path in paths:
        results.write(path, name=f"paper-{name}", rows=rows, seeds=[0])
