"""`torchcram sweep`."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import lists, machine, prepare
from torchcram.training.stopping import stopping_signals
from torchcram.training.sweep import Job, Sweep, jobs


@told()
def run(
    task: str,
    out: Path,
    *,
    vary: Sequence[str],
    changes: Sequence[str],
    options: Mapping[str, str | None],
    workers: int,
    rows: int,
    device: str,
    json: Path | None,
    minutes: float | None = None,
) -> bool:
    """Run every combination of what is varied, and show one table. Returns whether all came to their end.

    minutes: after so long all runs are stopped, with checkpoints.
    """
    prepare(device)
    given = {name: value for name, value in options.items() if value is not None}
    every = jobs(task, out, lists("--vary", vary), fixed=changes, options=given)
    for job in every:
        job.check()
    console = Console(highlight=False, stderr=str(json) == "-")
    sweep = Sweep(every, workers=workers, device=device, rows=rows)
    with stopping_signals(sweep.stop, "stopping all runs, with checkpoints"), _later(minutes, sweep.stop):
        rows_by_name: dict[str, dict[str, Any]] = {}
        for job, row in sweep.run(lambda job, text: console.print(f"[red]{job.folder.name}: {text}")):
            if row is not None:
                rows_by_name[job.folder.name] = row
                console.print(f"{len(rows_by_name)}/{len(every)}  {_line(job, row)}", soft_wrap=True)
    found = [rows_by_name[job.folder.name] for job in every if job.folder.name in rows_by_name]
    if found:
        for line in _told(every, rows_by_name, console.width):
            console.print(line, soft_wrap=True, markup=False)
    if json is not None:
        seeds = sorted({row["seed"] for row in found})
        results.write(json, name=f"sweep-{task}", rows=found, seeds=seeds, machine=machine(device))
    left = len(every) - len(found)
    if left:
        console.print(f"{left} of {len(every)} runs are not done; the same command goes on with them")
    return not left


@contextmanager
def _later(minutes: float | None, act: Callable[[], None]) -> Iterator[None]:
    """Act after so many minutes, unless it is over before."""
    timer = threading.Timer(60 * minutes, act) if minutes is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _line(job: Job, row: Mapping[str, Any]) -> str:
    return f"{job.folder.name}: accuracy {_share(row['accuracy'])}, reads {_share(row['reads'])}"


_COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy", lambda value: f"{value:.2%}"),
    "reads": ("reads", lambda value: f"{value:.2%}"),
    "accuracy_recurring": ("recur", lambda value: f"{value:.2%}"),
    "accuracy_novel": ("novel", lambda value: f"{value:.2%}"),
    "pairs": ("pairs", lambda value: f"{value:.2%}"),
    "seconds": ("secs", lambda value: f"{value:,.0f}"),
    "parameters": ("params", lambda value: f"{value / 1e6:.3g}M" if value >= 1e6 else f"{value / 1e3:.3g}k"),
    "steps": ("steps", lambda value: f"{value:,}"),
}
"""What a table shows of a row, the most important first: its head, and how it is written."""


def _told(every: Sequence[Job], rows: Mapping[str, Mapping[str, Any]], width: int) -> Iterator[str]:
    """Lines of a table of all runs, and of one over seeds; no line is longer than `width`, if that is possible."""
    names = list(every[0].varied)
    each = [(job, rows.get(job.folder.name, {})) for job in every]
    shown = [key for key in _COLUMNS if key not in names and any(row.get(key) is not None for _, row in each)]
    own = [[name.rpartition(".")[2] for name in names], *(list(job.varied.values()) for job in every)]
    left_out: list[str] = []
    while True:
        cells = [[*own[0], *(_COLUMNS[key][0] for key in shown)]]
        for words, (_, row) in zip(own[1:], each, strict=True):
            cells.append([*words, *(_written(key, row.get(key)) for key in shown)])
        lines = _aligned(cells, len(names))
        if len(lines[0]) <= width or len(shown) <= 2:
            break
        left_out.insert(0, _COLUMNS[shown.pop()][0])
    yield from lines
    if left_out:
        yield f"no room for {', '.join(left_out)}: --json FILE has all"
    if over := _over_seeds(every, rows):
        yield ""
        yield "median of the seeds, and the worst:"
        yield from over


def _over_seeds(every: Sequence[Job], rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each setting that was run with several seeds."""
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    names = [name for name in every[0].varied if name != "seed"]
    for job in every:
        if job.folder.name in rows:
            found.setdefault(tuple(job.varied[name] for name in names), []).append(rows[job.folder.name])
    cells = [[*(name.rpartition(".")[2] for name in names), "seeds", "accuracy", "worst", "reads", "most"]]
    for words, mine in found.items():
        if len(mine) > 1:
            right, reads = ([row[key] for row in mine] for key in ("accuracy", "reads"))
            numbers = (statistics.median(right), min(right), statistics.median(reads), max(reads))
            cells.append([*words, str(len(mine)), *(f"{number:.2%}" for number in numbers)])
    return _aligned(cells, len(names)) if len(cells) > 1 else []


def _aligned(cells: Sequence[Sequence[str]], words: int) -> list[str]:
    """Lines of cells under each other: the first columns are words, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]


def _written(key: str, value: float | None) -> str:
    return "–" if value is None else _COLUMNS[key][1](value)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"
