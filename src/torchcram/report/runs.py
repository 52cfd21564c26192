"""Run folders as data for a report: what a run was, and what each evaluation found."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcram import results

Entry = Mapping[str, Any]
"""A line of the metrics."""
Points = Sequence[tuple[float, float]]
"""(step, value)."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run; it may be under way still."""

    name: str
    config: Mapping[str, Any]
    entries: Sequence[Entry]
    """At least one, by step."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run's folder; a last line cut short is left out, and after a resume the later lines count."""
        folder = Path(path)
        file = folder / "config.json"
        if not file.is_file():
            raise ValueError(f"{folder} is not a run folder: it has no config.json; `torchcram train` writes one")
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} is not valid JSON: {error}") from None
        results.refuse_export(config, folder)
        if not isinstance(config, dict):
            raise ValueError(f"{file} holds no settings, but {config!r}")
        entries = results.read_metrics(folder / "metrics.jsonl")
        if not entries:
            every = config.get("evaluate_every", "some")
            raise ValueError(
                f"{folder} has no evaluation to report: its metrics.jsonl is missing or empty; "
                f"the first line comes after {every} steps"
            )
        return cls(name=folder.resolve().name, config=config, entries=entries)

    @property
    def last(self) -> Entry:
        """The newest evaluation."""
        return self.entries[-1]

    @property
    def step(self) -> int:
        """How far the run has come."""
        return int(self.last["step"])

    @property
    def steps(self) -> int:
        """How far it is to go."""
        planned = self.config.get("steps")
        return planned if isinstance(planned, int) else self.step

    @property
    def finished(self) -> bool:
        return self.step >= self.steps

    @property
    def plain(self) -> bool:
        """Whether it is of a model that gives up no reads in training, or not by ours."""
        return self.last.get("phase") == "train"

    @property
    def released_at(self) -> int | None:
        """The step from which the router chose; None if it never did."""
        step = self.last.get("released_at")
        return step if isinstance(step, int) else None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of positions, in the order of the task."""
        found = self.last.get("kind_reads")
        return tuple(found) if isinstance(found, dict) else ()

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting by its dotted name."""
        part: Any = self.config
        for key in name.split("."):
            if not isinstance(part, Mapping) or key not in part:
                return default
            part = part[key]
        return part

    def points(self, value: str | Callable[[Entry], object]) -> Points:
        """A quantity over training, by key or by a function of an entry; no point where it is missing or not finite."""
        get = (lambda entry: entry.get(value)) if isinstance(value, str) else value
        found = ((entry["step"], number(get(entry))) for entry in self.entries)
        return [(step, y) for step, y in found if y is not None]


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def item(entry: Entry, key: str, *path: str | int) -> Any:
    """A nested value of an entry; None where it is not there."""
    value: Any = entry.get(key)
    for step in path:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, Sequence) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def read_all(paths: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Several runs, under names that differ."""
    runs = [Run.read(path) for path in paths]
    names = [run.name for run in runs]
    return [
        Run(name=str(path), config=run.config, entries=run.entries) if names.count(run.name) > 1 else run
        for run, path in zip(runs, paths, strict=True)
    ]


def median(curves: Sequence[Points]) -> Points:
    """The median of several curves, at the steps that at least half of them have."""
    by_step: dict[float, list[float]] = {}
    for curve in curves:
        for step, value in curve:
            by_step.setdefault(step, []).append(value)
    return [
        (step, statistics.median(values)) for step, values in sorted(by_step.items()) if 2 * len(values) >= len(curves)
    ]


def typical(runs: Sequence[Run], key: str, *path: str | int) -> float | None:
    """The median over runs of a number of their last evaluations."""
    found = [number(item(run.last, key, *path)) for run in runs]
    there = [value for value in found if value is not None]
    return statistics.median(there) if there else None


def moments(run: Run) -> list[tuple[str, Entry]]:
    """A few evaluations that tell the story: before and after release, midway, and the last."""
    entries = run.entries
    after = [entry for entry in entries if entry.get("released_at") is not None]
    before = [entry for entry in entries if entry.get("released_at") is None]
    if after and before:
        chosen = [("before release", before[-1]), ("after release", after[0]), ("midway", after[len(after) // 2])]
    else:
        chosen = [("begin", entries[0]), ("midway", entries[len(entries) // 2])]
    chosen.append(("end" if run.finished else "now", run.last))
    steps = [entry["step"] for _, entry in chosen]
    return [pair for i, pair in enumerate(chosen) if pair[1]["step"] not in steps[i + 1 :]]
