"""`torchcram reproduce`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import machine, prepare
from torchcram.cli.tables import show_row
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.paper.setup import SIZES, Scale, Setup
from torchcram.strict import check_choice, reject


def show_list() -> None:
    """Print the experiments, a line each: what it is about, and how many runs it trains at each scale."""
    for name, experiment in EXPERIMENTS.items():
        counts = ", ".join(f"{scale} {experiment.runs(SIZES[scale])}" for scale in get_args(Scale))
        print(f"{name:<10} {experiment.about} (runs: {counts})")


@told()
def run(name: str, *, scale: str, out: Path, data: Sequence[str], json: Path | None) -> None:
    """Run an experiment; show each row as soon as it is there, and write all of them to the folder."""
    check_choice("scale", scale, Scale)
    if name not in EXPERIMENTS:
        reject("experiment", name, ", ".join(EXPERIMENTS))
    setup = Setup(
        scale=cast(Scale, scale), out=out, data=_paths(data), say=lambda text: print(text, file=sys.stderr, flush=True)
    )
    _run(name, setup, json)


def _run(name: str, setup: Setup, json: Path | None) -> None:
    prepare(setup.size.device)
    rows = []
    for row in EXPERIMENTS[name].run(setup):
        if str(json) != "-":
            show_row(row)
        rows.append(row)
    # Of what is calculated, draws have a seed of 0 each.
    seeds = range(max([1, *(each.seeds for each in EXPERIMENTS[name].wanted(setup.size))]))
    for path in (setup.out / f"{name}.json", *([] if json is None else [json])):
        results.write(path, name=f"paper-{name}", rows=rows, seeds=seeds, machine=machine(setup.size.device))


def _paths(given: Sequence[str]) -> dict[str, Path]:
    """`name=PATH`, each of which must be there."""
    found = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not (equals and name):
            raise ValueError(f"--data {each!r} is not possible; allowed: name=PATH")
        if not Path(path).exists():
            raise ValueError(f"--data {name}: there is no {path}")
        found[name] = Path(path)
    return found
