"""Time to quality: how long training took until a task was solved, the dense phase included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchcram.results import Row


def solved(entries: Sequence[Mapping[str, Any]], accuracy: float, measure: str) -> Mapping[str, Any] | None:
    """The first evaluation of a run from which on it is never below `accuracy` again; None: it ends below."""
    found = None
    for entry in entries:
        value = entry.get(measure)
        if value is None:
            raise ValueError(f"the run's evaluations have no {measure}")
        found = (found or entry) if value >= accuracy else None
    return found


def row(entries: Sequence[Mapping[str, Any]], accuracy: float, measure: str) -> Row:
    """When a run was solved, and when it also read little: at most a tenth more than its last evaluation."""
    first, last = solved(entries, accuracy, measure), entries[-1]
    few = None
    for entry in entries:
        good = first is not None and entry["step"] >= first["step"] and entry["reads"] <= 1.1 * last["reads"]
        few = (few or entry) if good else None
    return {
        "measure": measure,
        "wanted": accuracy,
        "solved_at": None if first is None else first["step"],
        "seconds_to_solved": None if first is None else first["seconds"],
        "few_reads_at": None if few is None else few["step"],
        "seconds_to_few_reads": None if few is None else few["seconds"],
        "steps": last["step"],
        "seconds": last["seconds"],
        measure: last[measure],
        "reads": last["reads"],
        "released_at": last.get("released_at"),
    }


def alone(row: Mapping[str, Any], times: Sequence[Mapping[str, Any]]) -> Row:
    """Seconds of a run's steps up to where it was solved, and read little, by what a step of such a run takes alone.

    That is what runs have that were trained side by side. times: rows of `bench steps`, of which the first of the same
    model and length counts. All steps before release are dense, all after it settled; evaluations are left out.
    """
    same = [each for each in times if all(each[name] == row[name] for name in ("model", "length"))]
    if not same:
        raise ValueError(f"the times have no {row['model']} at {row['length']} positions")
    settled = same[0]["step_ms"] / 1000
    dense = same[0].get("dense_step_ms", same[0]["step_ms"]) / 1000

    def spent(step: int | None) -> float | None:
        if step is None:
            return None
        released = row["released_at"]
        before = 0 if released is None else min(step, released)
        return float(before * dense + (step - before) * settled)

    return {
        "alone_seconds_to_solved": spent(row["solved_at"]),
        "alone_seconds_to_few_reads": spent(row["few_reads_at"]),
        "alone_seconds": spent(row["steps"]),
    }
