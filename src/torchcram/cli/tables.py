"""Rows of results on a terminal."""

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from torchcram import results
from torchcram.cli.settings import machine
from torchcram.results import Row


def show_row(row: Row) -> None:
    """One result, its name first, then what was measured."""
    facts = ", ".join(f"{key} {_short(value)}" for key, value in row.items() if key != "what")
    Console(highlight=False).print(f"[bold]{row['what']}[/bold]: {facts}", soft_wrap=True)


def show_evaluation(what: str, row: Row) -> None:
    """What a run came to, in a few lines; `--json` has it all."""

    def share(name: str) -> str:
        value = row.get(name)
        return f"{value:.2%}" if isinstance(value, float) else "-"

    kinds = [key for key in row if key.startswith("accuracy_")]
    parts = ", ".join(f"{key.removeprefix('accuracy_')} {share(key)}" for key in kinds)
    reads, least = row.get("reads"), row.get("opt")
    times = ""
    if isinstance(reads, float) and isinstance(least, float):
        times = f", {reads / least:.2f} × the least possible" if least > 0 else "; none is needed"
    lines: tuple[str, ...] = (
        f"[bold]{what}[/bold]: {row['model']} {row['preset']}, {row['task']}, N = {row['length']}, seed {row['seed']}",
        f"  accuracy  {share('accuracy')} ({parts})",
        f"  reads     {share('reads')} of the positions{times}; {share('layer_reads')} in a layer",
        *(
            [f"  dynamics  error {_short(row['dynamics_mse'])}, at least {_short(row['dynamics_floor'])}"]
            if "dynamics_mse" in row
            else []
        ),
        f"  training  {row['steps']} steps{_about_release(row)}",
    )
    gained, missed = row.get("nats_per_read"), row.get("nats_per_skip")
    if "nats_per_read" in row:
        lines += (f"  worth     {_short(gained)} nats gained by a read; {_short(missed)} would be by one not made",)
    excess, tolerance = row.get("excess"), row.get("tolerance")
    if isinstance(excess, float) and isinstance(tolerance, float):
        verdict = "within" if excess <= tolerance else "more than"
        worse = "worse" if excess > 0 else "better"
        against = f"{abs(excess):.4f} nats a scored position {worse} than {row['against']}"
        lines += (f"  kept      {against}, {verdict} the {tolerance:g} allowed",)
    Console(highlight=False).print("\n".join(lines), soft_wrap=True)


def _about_release(row: Row) -> str:
    if row.get("schedule") == "plain":
        return ""
    released = row.get("released_at")
    return ", never released" if released is None else f", released at step {released}"


def _short(value: str | int | float | bool | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_and_write(name: str, rows: Iterable[Row], json: Path | None, device: str) -> None:
    """Show each row of a benchmark as soon as it is there, and write the file anew; or print JSON at the end instead.

    Benchmarks take long, and what they have found is there even if the rest fails.
    """
    found: list[Row] = []

    def write(to: Path) -> None:
        results.write(to, name=name, rows=found, seeds=[0], machine=machine(device))

    printed = str(json) == "-"
    for row in rows:
        found.append(row)
        if not printed:
            show_row(row)
        if json is not None and not printed:
            write(json)
    if json is not None and printed:
        write(json)
