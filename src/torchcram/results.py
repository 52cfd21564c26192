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

from torchcram.files import replacing
from torchcram.strict import reject

Row = Mapping[str, str | int | float | bool | None]

_PACKAGES = ("torchcram", "torch", "numpy", "scipy", "triton", "transformers")


def write(
    path: str | os.PathLike[str],
    *,
    name: str,
    rows: Sequence[Row],
    seeds: Sequence[int] = (),
    machine: str | None = None,
    commits: Sequence[str] = (),
    used: Mapping[str, str] | None = None,
) -> None:
    """Write rows with where they came from to `path`, whole or not at all; `-` prints them.

    commits: Earlier ones that had a part in it, such as those that trained what the rows tell of.
    used: Versions of Python and packages; None: those of this process.
    """
    data = {
        "name": name,
        "command": command(),
        "commit": ", ".join(dict.fromkeys([*commits, commit()])),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seeds": list(seeds),
        "machine": machine or f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": dict(used or versions()),
        "rows": [dict(row) for row in rows],
    }
    save(path, data)


def save(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """Write what a result file holds, as it is, a row a line."""
    about = {name: value for name, value in data.items() if name != "rows"}
    head = json.dumps(about, indent=1, allow_nan=False).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in data["rows"])
    text = f'{head},\n "rows": [\n{lines}\n ]\n}}\n'
    if os.fspath(path) == "-":
        sys.stdout.write(text)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


KINDS = {
    "final": "a model at its best setting",
    "rate": "at another learning rate",
    "curve": "at another setting of what trades attention for quality",
    "cost": "what it costs (`torchcram bench steps`)",
    "timed": "a run that costs were taken of",
}
"""What rows of a comparison can be."""


def collect(
    name: str,
    setting: str,
    parts: Sequence[tuple[str, Mapping[str, Any]]],
    onto: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One result file of several of the same machine, with all their commands; `setting` says what they share.

    Each part is given with `what` its rows are, which they then say, and which commit they are of. What a sweep varied
    in a row becomes its `setting`, but for its model, seed and learning rate; so does routing that was not its own.

    onto: What an earlier call returned; its rows come first, as they are.
    """
    if unknown := sorted({what for what, _ in parts} - KINDS.keys()):
        reject("what", ", ".join(unknown), ", ".join(KINDS))
    before = [] if onto is None else [onto]
    datas = [*before, *(data for _, data in parts)]
    rows = [
        *(row for data in before for row in data["rows"]),
        *(_labelled(what, data["commit"], row) for what, data in parts for row in data["rows"]),
    ]
    return {"name": name, "setting": setting, **_together(datas), "rows": _once(rows)}


def join(name: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One result file of several of the same machine, with all their commands, and their rows as they are."""
    rows = [row for part in parts for row in part["rows"]]
    return {"name": name, **_together(parts), "rows": _once(rows)}


def _together(datas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the rows of several result files came from."""
    if len(machines := {data["machine"] for data in datas}) > 1:
        raise ValueError(f"results of several machines: {', '.join(sorted(machines))}")
    return {
        "command": "\n".join(
            dict.fromkeys(_without_file(line) for data in datas for line in data["command"].splitlines())
        ),
        "commit": ", ".join(dict.fromkeys(commit for data in datas for commit in data["commit"].split(", "))),
        "date": max(data["date"] for data in datas),
        "seeds": sorted({seed for data in datas for seed in data["seeds"]}),
        "machine": datas[0]["machine"],
        "versions": datas[-1]["versions"],
    }


def _once(rows: Sequence[Row]) -> list[Row]:
    """The same rows, none of them twice."""
    told = [json.dumps(row, sort_keys=True) for row in rows]
    if len(set(told)) < len(told):
        twice = next(row for number, row in enumerate(rows) if told[number] in told[:number])
        raise ValueError(f"the same result is given twice: {twice.get('model')}, seed {twice.get('seed')}")
    return list(rows)


VARIED = "set "
"""Begins the names of what a sweep varied, in a row of results."""

ROUTED = "routed"
"""Of a row: tokens chose for themselves whether to read."""

_ALWAYS = ("model", "seed", "optimizer.rate")  # varied or not, a row says them by other names


def _without_file(command: str) -> str:
    """A command but for the file it wrote, which was one of many."""
    words = shlex.split(command)
    written = {place + part for place, word in enumerate(words) if word == "--json" for part in (0, 1)}
    return shlex.join(word for place, word in enumerate(words) if place not in written)


def _labelled(what: str, commit: str, row: Row) -> dict[str, Any]:
    varied = {name.removeprefix(VARIED): value for name, value in row.items() if name.startswith(VARIED)}
    told = [f"{name.rpartition('.')[2]}={value}" for name, value in varied.items() if name not in _ALWAYS]
    if row.get("routing", ROUTED) != ROUTED:
        told.append(f"reads {row['routing']}")
    own = {name: value for name, value in row.items() if not name.startswith(VARIED)}
    rate = {"rate": float(str(varied["optimizer.rate"]))} if "optimizer.rate" in varied else {}
    return {**own, **rate, "what": what, "setting": ", ".join(told), "commit": commit}


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a result file."""
    try:
        data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{os.fspath(path)} is not a result file: {error}") from error
    return data


def refuse_export(config: object, folder: str | os.PathLike[str]) -> None:
    """Say so if what should be the config of a run is that of an exported model."""
    if isinstance(config, dict) and config.get("format") == "torchcram":
        raise ValueError(f"{os.fspath(folder)} is a model folder (an export), not the folder of a run")


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run's metrics, in the order of steps: the later ones after a resume or a way back.

    A line cut short by a crash is left out.
    """
    file = Path(path)
    by_step: dict[int, dict[str, Any]] = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            # A run that went back has no later steps any more.
            by_step = {step: kept for step, kept in by_step.items() if step < entry["step"]}
            by_step[entry["step"]] = entry
    return list(by_step.values())


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
    here = Path(__file__)
    try:
        # Installed into someone else's checkout, this file is not one of theirs, and their commit not ours.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, without importing them."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
