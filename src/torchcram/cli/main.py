"""The commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchcram import __version__

app = typer.Typer(
    name="torchcram",
    help="Sequence models whose need for attention falls as they learn.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
bench = typer.Typer(help="Time ours against baselines, both in one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write a result file here; - prints it.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchcram {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Sequence models whose need for attention falls as they learn."""


@app.command()
def demo() -> None:
    """Run a small model whole and as a stream, and show that both agree and what was read."""
    from torchcram.cli.demo import run

    run()


@bench.command()
def cpu(json: JsonFile = None) -> None:
    """On a CPU: gathered read against dense attention, parallel working memory, a long stream in flat memory."""
    from torchcram import results
    from torchcram.bench.cpu import SEED, run
    from torchcram.cli.tables import show_row

    rows = []
    for row in run():
        show_row(row)
        rows.append(row)
    if json is not None:
        results.write(json, name="bench-cpu", rows=rows, seeds=[SEED])
