"""Long series cut into windows of equal length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchcram.strict import check_integer
from torchcram.timeseries.series import Array, Series


def windows(series: Series, length: int = 50, step: int = 25, *, rest: bool = False) -> Series:
    """Windows of `length` time stamps, one every `step`; times count from the start of a window.

    The window of sample A01 that begins at its 25th time stamp is named A01:25; it is of the same group and has the
    same statics. What is left over at the end of a sample, or a sample that is too short, is dropped, as in the
    experiments of Latent ODE (Rubanova et al. 2019); with `rest` it is a shorter window.
    """
    check_integer("length", length, 1)
    check_integer("step", step, 1)
    cuts = _cuts(series, length, step, rest=rest)
    if not len(cuts):
        raise ValueError(f"no sample has {length} time stamps; the longest has {series.lengths.max(initial=0)}")
    return _cut(series, cuts)


def overlapping(series: Series, length: int) -> tuple[Series, Array]:
    """Windows that overlap by half; and which of their time stamps no window before holds: each of a sample's once.

    So a time stamp is seen with those before it, `length` at most with itself, and half as many at least where a sample
    has them.
    """
    check_integer("length", length, 2)
    cuts = _cuts(series, length, length - length // 2, rest=True)
    _, start, stop = cuts.T
    held = np.where(start == 0, 0, length // 2)
    size = stop - start
    place = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    return _cut(series, cuts), place >= np.repeat(held, size)


def _cuts(series: Series, length: int, step: int, *, rest: bool) -> Array:
    """[windows, 3]: of which sample, from which of its time stamps, up to which."""
    cuts = [
        (sample, start, min(start + length, rows))
        for sample, rows in enumerate(series.lengths.tolist())
        for start in range(0, rows if rest else rows - length + 1, step)
        if start == 0 or start - step + length < rows  # else the window before holds all that is left
    ]
    return np.asarray(cuts, dtype=np.int64).reshape(-1, 3)


def _cut(series: Series, cuts: Array) -> Series:
    sample, start, stop = cuts.T
    first = series.offsets[sample] + start
    rows = np.concatenate([np.arange(a, a + n) for a, n in zip(first, stop - start, strict=True)])
    return replace(
        series,
        ids=np.asarray([f"{series.ids[s]}:{a}" for s, a in zip(sample, start, strict=True)]),
        groups=series.groups[sample],
        offsets=np.concatenate([[0], np.cumsum(stop - start)]).astype(np.int64),
        times=series.times[rows] - np.repeat(series.times[first], stop - start),
        values=series.values[rows],
        statics=series.statics[sample],
        labels=series.labels[rows if series.per_step else sample],
    )
