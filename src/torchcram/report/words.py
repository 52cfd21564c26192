"""Numbers in words: how a report writes them, and what it concludes from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torchcram.report.runs import Entry, Run, number

SPACE = "\u00a0"  # between a number and its unit, so that they stay on one line
LOW = 0.9
"""Accuracy on novel keys below which a report warns."""


def percent(share: float | None, digits: int = 2) -> str:
    """A share as a percentage: a whole number if it is one, else with digits after the point."""
    if share is None:
        return "–"
    whole = abs(100 * share - round(100 * share)) < 1e-9
    return f"{100 * share:.{0 if whole else digits}f}{SPACE}%"


def plain(value: float | None, digits: int = 2) -> str:
    """A number without needless zeros."""
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def short(value: float | None) -> str:
    """A number of any size, to three digits."""
    return "–" if value is None else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{plain(seconds, 1)}{SPACE}s"
    if seconds < 6000:
        return f"{plain(seconds / 60, 1)}{SPACE}min"
    return f"{plain(seconds / 3600, 1)}{SPACE}h"


def milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{short(1000 * seconds)}{SPACE}ms"


def times(value: float | None) -> str:
    return "–" if value is None else f"{plain(value)}{SPACE}×"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Time of a training step while every position read, and once settled; over one or several runs."""

    dense: float | None
    """Median seconds of the evaluations in `acquire`."""
    settled: float | None
    """Median seconds of those in `settle`."""

    @classmethod
    def of(cls, *runs: Run) -> Speed:
        def middle(phase: str) -> float | None:
            entries = [entry for run in runs for entry in run.entries if entry.get("phase") == phase]
            found = [number(entry.get("step_seconds")) for entry in entries]
            times = [seconds for seconds in found if seconds is not None]
            return statistics.median(times) if times else None

        return cls(dense=middle("acquire"), settled=middle("settle"))

    @property
    def ratio(self) -> float | None:
        """How many times faster a settled step is than a dense one."""
        if self.dense is None or not self.settled:
            return None
        return self.dense / self.settled

    def __str__(self) -> str:
        if self.ratio is not None:
            return (
                f"A step took {milliseconds(self.dense)} while every position read and {milliseconds(self.settled)} "
                f"once settled, {plain(self.ratio)}{SPACE}× as fast"
            )
        missing = [name for name, t in (("acquire", self.dense), ("settle", self.settled)) if t is None]
        return f"No ratio of step times: no evaluation in phase {' or '.join(missing)}"


def multiple(entry: Entry) -> float | None:
    """Reads as a multiple of OPT."""
    reads, opt = number(entry.get("reads")), number(entry.get("opt"))
    return None if reads is None or not opt else reads / opt


def verdict(run: Run) -> str:
    """What became of attention, in a sentence or two."""
    reads, opt = number(run.last.get("reads")), number(run.last.get("opt"))
    if run.plain:
        return f"The model looks back at {percent(reads)} of the positions; the least possible is {percent(opt)}."
    if run.released_at is None:
        if run.finished:
            return f"The model still reads at {percent(reads)} of the positions: attention was never released."
        return f"The model is still learning to read: at step {run.step} of {run.steps} every position reads."
    first = number(run.entries[0].get("reads"))
    fall = f"fell from {percent(first)} to" if first is not None and reads is not None and first > reads else "is at"
    least = f"; the least possible is {percent(opt)}." if opt is not None else "."
    now = "" if run.finished else f" (Step {run.step} of {run.steps}.)"
    return f"Attention {fall} {percent(reads)} of the positions{least}{now}"


def warnings(run: Run) -> list[str]:
    """What a reader must not overlook."""
    found = []
    if run.released_at is None and run.finished and not run.plain:
        found.append(
            f"Never released: in {run.step:,} steps reads did not become clearly useful, so the model still reads "
            "everywhere. Give it more steps, shorter sequences or another learning rate."
        )
    novel = number(run.last.get("accuracy_novel"))
    if novel is not None and novel < LOW and run.finished:
        found.append(
            f"Only {percent(novel)} of the novel queries are answered right: "
            + (
                "retrieval was not learned."
                if run.released_at is None
                else "few reads mean little while retrieval is not learned, or is lost."
            )
        )
    skipped = number(run.last.get("skipped"))
    if skipped:
        found.append(f"{skipped:.0f} steps were left out because their loss was not finite.")
    return found


def trained(run: Run) -> str:
    """What was trained on what."""
    preset = run.setting("preset")
    layers, width = run.setting("model.layers"), run.setting("model.block.width")
    length = run.setting("settings.length")
    size = f"{layers} layers of width {width}" if layers and width else ""
    named = f"A {preset} model" if preset else "A model"
    task = str(run.config.get("task", "an unnamed task"))
    task = "SRCD" if task == "srcd" else f"the task {task}"
    long = f", {length} positions a sequence" if length else ""
    return f"{named}{f' ({size})' if size else ''} trained on {task}{long}, batches of {run.config.get('batch', '?')}."


def spread(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Mean and standard deviation (of a sample) of those that are there."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    return statistics.fmean(there), statistics.stdev(there) if len(there) > 1 else 0.0
