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
    """What a result file says of where it comes from; many commands are folded away."""
    count = len(data["command"].splitlines())
    commands = f"```sh\n{data['command']}\n```"
    if count > _SHOWN:
        commands = f"<details><summary>{count} commands</summary>\n\n{commands}\n\n</details>"
    return f"{data['machine']}; commit {data['commit']}.\n\n{commands}"
