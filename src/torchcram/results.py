"""Result files: one JSON format for every number that the project reports."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

Row = Mapping[str, str | int | float | bool | None]

_PACKAGES = ("torchcram", "torch", "numpy", "triton", "transformers")


def write(
    path: str | os.PathLike[str],
    *,
    name: str,
    rows: Sequence[Row],
    seeds: Sequence[int] = (),
    machine: str | None = None,
) -> None:
    """Write rows with where they came from to `path`, whole or not at all; `-` prints them."""
    data = {
        "name": name,
        "command": command(),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seeds": list(seeds),
        "machine": machine or f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(),
        "rows": [dict(row) for row in rows],
    }
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if os.fspath(path) == "-":
        sys.stdout.write(text)
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.partial")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, target)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a result file."""
    data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return data


def command() -> str:
    """The command that runs now, as one would type it again."""
    program = Path(sys.argv[0]).name
    words = ["torchcram" if program == "__main__.py" else program, *sys.argv[1:]]
    return shlex.join(words)


def commit() -> str:
    """The commit of the source tree, with `+` if it was changed since; `unknown` outside a checkout.

    `TORCHCRAM_COMMIT` names it where the tree travels without its history.
    """
    named = os.environ.get("TORCHCRAM_COMMIT")
    if named:
        return named
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, without importing them."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
