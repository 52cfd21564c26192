"""Pieces of Markdown pages that are made from result files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SHOWN = 6  # commands; more are folded away


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table."""
    written = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in written)


def source(data: Mapping[str, Any]) -> str:
    """What a result file says of where it comes from."""
    return f"{place(data)}\n\n{commands(data)}"


def place(data: Mapping[str, Any]) -> str:
    """The machine, and the version of the code."""
    return f"{data['machine']}; commit {data['commit']}."


def commands(data: Mapping[str, Any]) -> str:
    """The commands of a result file; many are folded away."""
    count = len(data["command"].splitlines())
    told = f"```sh\n{data['command']}\n```"
    return told if count <= _SHOWN else f"<details><summary>{count} commands</summary>\n\n{told}\n\n</details>"
