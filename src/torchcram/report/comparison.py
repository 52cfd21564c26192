"""Rows of a comparison of models (`torchcram collect`): runs by model and setting, and what each costs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcram.report.words import SPACE, percent

Row = Mapping[str, Any]

SOLVED = 0.999
"""Accuracy from which on a model counts as one that solves SRCD."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of a model at one setting, which differ by their seeds."""

    model: str
    setting: str
    rows: Sequence[Row]

    @property
    def name(self) -> str:
        """The model, and what is unusual about it."""
        return called(self.model, self.setting)

    @property
    def timed(self) -> tuple[str, str]:
        """What its time depends on: not on how long it was trained."""
        return self.model, _without_steps(self.setting)

    def median(self, key: str) -> float | None:
        """Over seeds; None where nothing was measured."""
        values = [row[key] for row in self.rows if row.get(key) is not None]
        return statistics.median(values) if values else None

    def worst(self, key: str) -> float:
        """The least over seeds."""
        return min(float(row[key]) for row in self.rows)

    @property
    def reads(self) -> float:
        """Share of positions that read: median over seeds."""
        return statistics.median(float(row["reads"]) for row in self.rows)

    @property
    def solves(self) -> bool:
        """With every seed."""
        return self.worst("accuracy") >= SOLVED

    @property
    def solved(self) -> dict[int, float]:
        """Reads with each seed that solves SRCD."""
        return {row["seed"]: float(row["reads"]) for row in self.rows if row["accuracy"] >= SOLVED}

    @property
    def error(self) -> float | None:
        """Dynamics: mean squared error in units of the least possible."""
        errors = [row["dynamics_mse"] / row["dynamics_floor"] for row in self.rows if row.get("dynamics_floor")]
        return statistics.median(errors) if errors else None


def groups(rows: Iterable[Row], what: str) -> list[Group]:
    """Rows of one kind, by task, model and setting, in their order."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["what"] == what:
            found.setdefault((row["task"], row["model"], row["setting"]), []).append(row)
    return [Group(model=model, setting=setting, rows=each) for (_, model, setting), each in found.items()]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a model costs at one setting, however long it was trained."""

    rows: Sequence[Row]
    """All that was measured, the newest last."""
    shared: str = ""
    """The commit that most models were timed at."""

    @property
    def commit(self) -> str:
        """Where its times are from: the commit that most models share, so that they can be compared, or the newest."""
        mine = [str(row["commit"]) for row in self.rows]
        return self.shared if self.shared in mine else mine[-1]

    def speed(self, key: str, commit: str | None = None) -> float | None:
        """A time or speed at one commit, by default `commit`; None if there is none."""
        commit = self.commit if commit is None else commit
        values = [row[key] for row in self.rows if row["commit"] == commit and row.get(key) is not None]
        return statistics.median(values) if values else None

    @property
    def state(self) -> float | None:
        """Bytes, which no clock has a part in: the newest number there is."""
        return next((row["state_bytes"] for row in reversed(self.rows) if row.get("state_bytes") is not None), None)


Costs = Mapping[tuple[str, str], Cost]
"""By what time depends on, see `Group.timed`."""


def costs(rows: Iterable[Row]) -> Costs:
    """What each model costs. Rows are in the order in which they were collected."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["what"] == "cost":
            found.setdefault((row["model"], _without_steps(row["setting"])), []).append(row)
    timed = Counter(commit for each in found.values() for commit in dict.fromkeys(str(row["commit"]) for row in each))
    shared = max(timed, key=lambda commit: timed[commit], default="")
    return {key: Cost(rows=each, shared=shared) for key, each in found.items()}


def called(model: str, setting: str) -> str:
    """A model in words, with what is unusual about it."""
    return f"`{model}`" + (f" {setting}" if setting else "")


def _without_steps(setting: str) -> str:
    return ", ".join(part for part in setting.split(", ") if not part.startswith("steps="))


def share(value: float | None) -> str:
    """As a percentage, in plain text."""
    return percent(value).replace(SPACE, " ")


def size(value: float | None) -> str:
    """Of a number of bytes."""
    if value is None:
        return "–"
    return f"{value / 2**20:.1f} MiB" if value >= 2**20 else f"{value / 2**10:.0f} KiB"


def thousands(value: float | None) -> str:
    return "–" if value is None else f"{value / 1000:.0f}k"
