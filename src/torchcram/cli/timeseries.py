"""`torchcram timeseries`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from json import loads
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import lists, machine, numbers, prepare
from torchcram.files import replacing
from torchcram.report.timeseries import page, warnings
from torchcram.results import Row
from torchcram.strict import reject
from torchcram.timeseries import compare
from torchcram.timeseries.datasets import DATASETS, split
from torchcram.training.settings import value, values


@told()
def run(
    dataset: str,
    folder: Path,
    out: Path,
    *,
    models: str,
    splits: str | None,
    members: int,
    seed: int,
    changes: Sequence[str],
    tries: Sequence[str],
    device: str,
    json: Path | None,
) -> None:
    """Fit models to splits of a data set, and show one table; what is in `out` already is not fitted again."""
    prepare(device)
    if dataset not in DATASETS:
        reject("data set", dataset, ", ".join(DATASETS))
    names = models.split(",")
    settings = values(changes)
    options = {name: [value(word) for word in words] for name, words in lists("--try", tries).items()}
    for name, among in options.items():
        if len(among) < 2 or name in settings:
            reject(f"--try {name}", among, "two values or more, of what no --set sets")
    own = {name: (compare.own(name, settings), compare.own(name, options)) for name in names}
    for name in names:
        compare.check(name, {key: None for given in own[name] for key in given})
    every = range(1, DATASETS[dataset].splits + 1)
    chosen = list(every) if splits is None else numbers("--splits", splits)
    console = Console(highlight=False, stderr=str(json) == "-")
    for number in chosen:
        parts = None
        for name in names:
            facts = {"task": dataset, "split": number, "seed": seed}
            facts |= {"members": 1 if name in compare.TABULAR else members}
            facts |= {"settings": own[name][0], "tries": own[name][1]}
            if _done(out, name, number, facts):
                continue
            parts = split(dataset, folder, number) if parts is None else parts
            fixed, choices = own[name]
            for found in compare.judge(
                name, parts, members=members, settings=fixed, tries=choices, device=device, seed=seed
            ):
                found.row.update(task=dataset, split=number)
                console.print(_line(found.row), soft_wrap=True)
                compare.save(found, out, f"{name}-{found.row['routing']}-{number}")
    said = compare.read(out)
    rows = _rows(said)
    console.print(_table([each.row for each in said]))
    for warning in warnings(rows):
        console.print(f"[yellow]{warning}", soft_wrap=True)
    if json is not None:
        for measure in ("auroc", "auprc") if "auroc" in said[0].row else ("accuracy", "macro_f1"):
            rows += compare.differences(said, measure)
        seeds = sorted({each.row["seed"] + k for each in said for k in range(each.row["members"])})
        results.write(json, name=f"timeseries-{dataset}", rows=rows, seeds=seeds, machine=machine(device))


@told()
def write_page(folder: Path, out: Path) -> None:
    """The page of all result files of comparisons in a folder."""
    found = {path.stem.removeprefix("timeseries-"): path for path in sorted(folder.glob("timeseries-*.json"))}
    if not found:
        raise ValueError(f"{folder} holds no timeseries-*.json")
    with replacing(out) as temporary:
        temporary.write_text(page({name: results.read(path) for name, path in found.items()}), encoding="utf-8")


def _done(out: Path, model: str, number: int, facts: dict[str, Any]) -> bool:
    """Whether a folder has all that a model says of a split; what was made in another way is refused."""
    paths = [out / f"{model}-{routing}-{number}.json" for routing in compare.routings(model)]
    for path in paths:
        if path.exists():
            row = loads(path.read_text(encoding="utf-8"))
            row |= {name: loads(row[name]) for name in ("settings", "tries")}
            for name, fact in facts.items():
                if row[name] != fact:
                    raise ValueError(f"{path} has {name} {row[name]}, not {fact}; choose another --out")
    return all(path.exists() for path in paths)


def _rows(said: Sequence[compare.Said]) -> list[Row]:
    classes = said[0].probabilities.shape[1]
    chances = {each.row["split"]: compare.chance(each.labels, classes) for each in said}
    return [
        *({"what": "model", **each.row} for each in said),
        *({"what": "chance", "split": number, **expected} for number, expected in chances.items()),
    ]


def _line(row: Row) -> str:
    measures = [name for name in ("auroc", "auprc", "accuracy", "macro_f1") if name in row]
    scores = ", ".join(f"{name} {row[name]:.4f}" for name in measures)
    reads = f", reads {row['reads']:.2%}" if "reads" in row else ""
    return f"split {row['split']}, {row['model']} ({row['routing']}): {scores}{reads}; {row['seconds']:.0f} s"


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    measures = [
        name for name in ("auroc", "auprc", "balanced_accuracy", "brier", "accuracy", "macro_f1") if name in rows[0]
    ]
    table = Table("model", "routing", "splits", *measures, "reads", box=None)
    for key in dict.fromkeys((row["model"], row["routing"]) for row in rows):
        mine = [row for row in rows if (row["model"], row["routing"]) == key]
        cells = [_spread([row[name] for row in mine]) for name in measures]
        reads = [row["reads"] for row in mine if "reads" in row]
        table.add_row(*key, str(len(mine)), *cells, f"{statistics.mean(reads):.2%}" if reads else "–")
    return table


def _spread(found: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(found):.4f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.4f}{spread}"
