"""Samples to learn from and to choose by: of the same kind, and nobody in both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchcram.timeseries.series import UNKNOWN, Series

_HELD_OUT = 0.15  # share of the groups to choose by, where a user gives none


def alike(series: Series, other: Series, what: str) -> None:
    """Refuse samples that are not of the same kind."""
    if len(other.channels) != len(series.channels):
        raise ValueError(f"{what} has {len(other.channels)} features, training {len(series.channels)}")
    same_names(other.channels, series.channels)
    if other.classes != series.classes:
        raise ValueError(f"{what} has the classes {', '.join(other.classes)}, training {', '.join(series.classes)}")
    if not (other.labels != UNKNOWN).any():
        raise ValueError(f"the samples for {what} have no labels")


def same_names(channels: Sequence[str], fitted: Sequence[str]) -> None:
    """Refuse channels of other names; those that are but numbers have none."""
    numbers = [str(number) for number in range(len(fitted))]
    if numbers not in (list(channels), list(fitted)) and list(channels) != list(fitted):
        raise ValueError(f"the data have the channels {', '.join(channels)}; expected {', '.join(fitted)}")


def parted(series: Series, seed: int) -> tuple[Series, Series]:
    """To learn from and to choose by; no group is in both, and where groups allow it every class is in each."""
    names, number = np.unique(series.groups, return_inverse=True)
    if len(names) < 2:
        raise ValueError("there are too few samples to keep some apart; give val")
    counts = np.zeros((len(names), len(series.classes)))
    owner = np.repeat(number, series.lengths) if series.per_step else number
    known = series.labels != UNKNOWN
    np.add.at(counts, (owner[known], series.labels[known]), 1)
    # A group goes by the rarest class that it has.
    rarity = np.where(counts > 0, counts.sum(0), np.inf)
    kind = rarity.argmin(1)
    rng, kept = np.random.default_rng(seed), np.zeros(len(names), dtype=bool)
    for each in np.unique(kind):
        mine = rng.permutation(np.flatnonzero(kind == each))
        kept[mine[: round(_HELD_OUT * len(mine))]] = True
    if not kept.any():
        kept[rng.integers(len(names))] = True
    chosen = kept[number]
    learned = series.take(np.flatnonzero(~chosen))
    if len(np.unique(learned.labels[learned.labels != UNKNOWN])) < 2:
        raise ValueError("there are too few samples to keep some apart and still tell classes apart; give val")
    return learned, series.take(np.flatnonzero(chosen))
