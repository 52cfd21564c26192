"""`torchcram sweep`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

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
        console.print(_table(every, rows_by_name))
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


def _table(every: Sequence[Job], rows: Mapping[str, Mapping[str, Any]]) -> Table:
    names = list(every[0].varied)
    shown = ("accuracy", "accuracy_recurring", "accuracy_novel", "reads", "pairs")
    heads = (name.removeprefix("accuracy_") for name in shown)
    table = Table(*(name.rpartition(".")[2] for name in names), *heads, "steps", "parameters", "seconds", box=None)
    for job in every:
        row = rows.get(job.folder.name, {})
        counts = [f"{row[name]:,.0f}" if row else "–" for name in ("steps", "parameters", "seconds")]
        table.add_row(*job.varied.values(), *(_share(row.get(name)) for name in shown), *counts)
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"
