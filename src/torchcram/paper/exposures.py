"""Read decisions by exposure: how often a pattern that had been seen so many times was asked for, and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Exposures:
    """Decisions, one row for each pattern and time that it was asked for; [rows] each."""

    pattern: Counts
    """Its number, another one in each seed: what is drawn together."""
    seed: Counts
    k: Counts
    """1 for the first time that it is seen."""
    asked: Counts
    read: Counts

    def __post_init__(self) -> None:
        shapes = {name: getattr(self, name).shape for name in ("pattern", "seed", "k", "asked", "read")}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"shapes differ: {shapes}")
        if (self.k < 1).any() or (self.read < 0).any() or (self.read > self.asked).any():
            raise ValueError("k counts from 1, and no more can be read than asked for")

    @property
    def decisions(self) -> int:
        return int(self.asked.sum())

    def where(self, rows: npt.NDArray[np.bool_]) -> Exposures:
        """Some of the rows."""
        return Exposures(
            pattern=self.pattern[rows],
            seed=self.seed[rows],
            k=self.k[rows],
            asked=self.asked[rows],
            read=self.read[rows],
        )


def from_steps(asked: Counts, read: Counts, *, seed: int = 0, most: int | None = None) -> Exposures:
    """What one run recorded, [steps, patterns] each, in the order of steps (`training.decisions`).

    Weights change between steps only, so all that is asked for in a step has the k of its beginning.

    most: The largest k to keep; default: all.
    """
    before = np.cumsum(asked, axis=0) - asked
    step, pattern = np.nonzero(asked)
    found = Exposures(
        pattern=pattern + seed * asked.shape[1],
        seed=np.full(len(step), seed),
        k=before[step, pattern] + 1,
        asked=asked[step, pattern],
        read=read[step, pattern],
    )
    return found if most is None else found.where(found.k <= most)


def by_step(asked: Counts, read: Counts, *, seed: int = 0, steps: Counts | None = None) -> Exposures:
    """The same with training steps in the place of k: what decides, how often or how long?

    steps: Of each row, from 0 on; default: one after the other.
    """
    step, pattern = np.nonzero(asked)
    return Exposures(
        pattern=pattern + seed * asked.shape[1],
        seed=np.full(len(step), seed),
        k=(step if steps is None else steps[step]) + 1,
        asked=asked[step, pattern],
        read=read[step, pattern],
    )


def grouped(asked: Counts, read: Counts, *, exact: int = 200, growth: float = 0.02) -> tuple[Counts, Counts, Counts]:
    """Steps put together where there are many, and the first step of each group: fits take minutes instead of hours.

    The first `exact` stay as they are; after that a group is as long as `growth` of the steps before it, and k in it is
    that of its beginning. For a pattern that is asked for throughout, that is less than it could be by no more than
    that share; for one that begins late and often, by more.
    """
    starts, at = list(range(min(exact, len(asked)))), float(exact)
    while at < len(asked):
        starts.append(int(at))
        at += max(1.0, growth * at)
    first = np.array(starts, dtype=np.int64)
    return np.add.reduceat(asked, first), np.add.reduceat(read, first), first


def joined(parts: Sequence[Exposures]) -> Exposures:
    """Runs of several seeds together."""
    names = ("pattern", "seed", "k", "asked", "read")
    return Exposures(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
