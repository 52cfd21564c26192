"""Irregular series as arrays: samples one after another, a row for each time stamp, NaN where nothing was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""The label of a time stamp, or of a sample, that has none."""

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """S samples with T time stamps in all; arrays may be mapped from a file and are not copied until taken from."""

    ids: Array
    """[S]: names of the samples, each once."""
    groups: Array
    """[S]: patient or person a sample is of; what is split or resampled goes by them."""
    offsets: Array
    """[S + 1] int64: sample s has rows offsets[s] up to offsets[s + 1]."""
    times: Array
    """[T] float64: rising within a sample, each once."""
    values: Array
    """[T, C] float32; NaN = not measured."""
    channels: tuple[str, ...]
    """Names of the C channels."""
    statics: Array
    """[S, F] float32: what does not change in time; NaN = unknown."""
    static_names: tuple[str, ...]
    labels: Array
    """[S] int64, or [T] if every time stamp has its own; an index into `classes`, or `UNKNOWN`."""
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        samples, rows = len(self.ids), len(self.times)
        shapes: dict[str, tuple[Array, list[tuple[int, ...]]]] = {
            "ids": (self.ids, [(samples,)]),
            "groups": (self.groups, [(samples,)]),
            "offsets": (self.offsets, [(samples + 1,)]),
            "values": (self.values, [(rows, len(self.channels))]),
            "statics": (self.statics, [(samples, len(self.static_names))]),
            "labels": (self.labels, [(samples,), (rows,)]),
        }
        for name, (array, allowed) in shapes.items():
            if array.shape not in allowed:
                raise ValueError(f"{name} has shape {array.shape}; allowed: {' or '.join(map(str, allowed))}")
        if self.offsets[0] != 0 or self.offsets[-1] != rows or (np.diff(self.offsets) < 1).any():
            raise ValueError(f"offsets must rise from 0 to the number of rows, {rows}; no sample is without any")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Array:
        """[S]: time stamps of each sample."""
        return np.diff(self.offsets)

    @property
    def per_step(self) -> bool:
        """Whether every time stamp has a label of its own."""
        return len(self.labels) == len(self.times) and len(self.times) != len(self.ids)

    def rows(self, sample: int) -> slice:
        """Where a sample's time stamps are."""
        return slice(int(self.offsets[sample]), int(self.offsets[sample + 1]))

    def take(self, samples: Sequence[int] | Array) -> Series:
        """Some samples, in the order given."""
        chosen = np.asarray(samples, dtype=np.int64)
        rows = _spread(self.offsets[chosen], self.lengths[chosen])
        return replace(
            self,
            ids=self.ids[chosen],
            groups=self.groups[chosen],
            offsets=np.concatenate([[0], np.cumsum(self.lengths[chosen])]).astype(np.int64),
            times=self.times[rows],
            values=self.values[rows],
            statics=self.statics[chosen],
            labels=self.labels[rows if self.per_step else chosen],
        )

    def select(self, ids: Sequence[Any] | Array) -> Series:
        """The samples of these names, in the order given."""
        places = {name: place for place, name in enumerate(self.ids.tolist())}
        wanted = np.asarray(ids).tolist()
        if missing := [name for name in wanted if name not in places]:
            raise ValueError(f"{len(missing)} of {len(wanted)} samples are not there, the first is {missing[0]!r}")
        return self.take([places[name] for name in wanted])

    def of(self, groups: Sequence[Any] | Array) -> Series:
        """The samples of these groups, in the order they are in."""
        return self.take(np.flatnonzero(np.isin(self.groups, np.asarray(groups))))

    def by_order(self) -> Series:
        """The same without when things were measured: the times of each sample are 0, 1, 2, …"""
        return replace(
            self, times=np.arange(len(self.times)) - np.repeat(self.offsets[:-1], self.lengths).astype(float)
        )

    def events(self) -> Events:
        """Every measurement by itself, in the order of time, then of channels."""
        measured = ~np.isnan(self.values)
        row, channel = np.nonzero(measured)
        counts = np.concatenate([[0], np.cumsum(measured.sum(1))])
        return Events(
            offsets=counts[self.offsets].astype(np.int64),
            times=np.asarray(self.times[row]),
            channel=channel.astype(np.int64),
            value=self.values[row, channel].astype(np.float32),
            step=row - np.repeat(self.offsets[:-1], np.diff(counts[self.offsets])),
        )

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        """Times and values of each sample."""
        for sample in range(len(self)):
            rows = self.rows(sample)
            yield self.times[rows], self.values[rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class Events:
    """The measurements of a `Series`, one a row."""

    offsets: Array
    """[S + 1] int64."""
    times: Array
    """[E] float64."""
    channel: Array
    """[E] int64."""
    value: Array
    """[E] float32."""
    step: Array
    """[E] int64: which time stamp of its sample a measurement is of."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Samples to learn from, to choose by, and to be judged on; no group is in two of them."""

    train: Series
    val: Series
    test: Series

    def __post_init__(self) -> None:
        parts = [set(part.groups.tolist()) for part in (self.train, self.val, self.test)]
        shared = parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
        if shared:
            raise ValueError(f"{len(shared)} groups are in two parts of the split, {next(iter(shared))!r} for one")


def assemble(
    samples: Sequence[Sample],
    *,
    channels: Sequence[str],
    static_names: Sequence[str] = (),
    classes: Sequence[str],
) -> Series:
    """A `Series` of what a loader read, sample by sample."""
    if not samples:
        raise ValueError("there are no samples")
    per_step = not isinstance(samples[0].label, int)
    labels = [np.atleast_1d(np.asarray(each.label, dtype=np.int64)) for each in samples]
    return Series(
        ids=np.asarray([each.id for each in samples]),
        groups=np.asarray([each.id if each.group is None else each.group for each in samples]),
        offsets=np.concatenate([[0], np.cumsum([len(each.times) for each in samples])]).astype(np.int64),
        times=np.concatenate([np.asarray(each.times, dtype=np.float64) for each in samples]),
        values=np.concatenate([np.asarray(each.values, dtype=np.float32) for each in samples]),
        channels=tuple(channels),
        statics=np.asarray([each.statics for each in samples], dtype=np.float32).reshape(len(samples), -1),
        static_names=tuple(static_names),
        labels=np.concatenate(labels) if per_step else np.concatenate(labels).reshape(len(samples)),
        classes=tuple(classes),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """One sample as a loader reads it."""

    id: str | int
    times: Array
    values: Array
    """[time stamps, C]"""
    label: int | Array
    """Of the sample, or of each time stamp."""
    group: str | int | None = None
    """Default: a group of its own."""
    statics: Sequence[float] = ()


def on_grid(times: Array, channel: Array, value: Array, channels: int) -> tuple[Array, Array]:
    """Measurements [E] as rows of a grid: times [T] and values [T, C].

    What was measured several times at one moment is averaged.
    """
    stamps, row = np.unique(np.asarray(times, dtype=np.float64), return_inverse=True)
    total = np.zeros((len(stamps), channels))
    count = np.zeros((len(stamps), channels))
    np.add.at(total, (row, channel), value)
    np.add.at(count, (row, channel), 1)
    with np.errstate(invalid="ignore"):
        return stamps, (total / count).astype(np.float32)  # 0 / 0 is NaN: not measured


def last_on_grid(times: Array, labels: Array) -> Array:
    """Labels [E] of measurements as labels [T] of the time stamps of `on_grid`; of several at one moment, the last."""
    stamps, row = np.unique(np.asarray(times, dtype=np.float64), return_inverse=True)
    found = np.empty(len(stamps), dtype=np.int64)
    found[row] = labels
    return found


def _spread(starts: Array, lengths: Array) -> Array:
    """Row numbers of stretches that begin at `starts`, one after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(starts - (ends - lengths), lengths))
