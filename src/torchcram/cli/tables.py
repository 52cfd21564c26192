"""Rows of results on a terminal."""

from rich.console import Console

from torchcram.results import Row


def show_row(row: Row) -> None:
    """One result, its name first, then what was measured."""
    facts = ", ".join(f"{key} {_short(value)}" for key, value in row.items() if key != "what")
    Console(highlight=False).print(f"[bold]{row['what']}[/bold]: {facts}", soft_wrap=True)


def _short(value: str | int | float | bool | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
