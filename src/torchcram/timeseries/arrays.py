"""From what users have (arrays with NaN, dicts, `.h5` files, tables of measurements) to a `Series`.

The conventions are those of PyPOTS: `X` [samples, steps, features] with NaN where nothing was measured, and `y`; beside
them `time` (default 0, 1, 2, …), `lengths` and `statics`, where there are any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchcram.timeseries.series import UNKNOWN, Array, Sample, Series, assemble, on_grid

KEYS = ("X", "y", "time", "lengths", "statics")
"""What a dict or file may hold."""


def as_series(data: Any, y: Any = None, *, classes: Sequence[Any] | None = None, per_step: bool = False) -> Series:
    """Anything that a fit takes: a `Series`, a dict, the path of an `.h5` file, or an array X with y beside it.

    classes: the labels that are known, if they are; else those that occur, in their order. A sample's time stamps are
    put in order; several at one moment become one, and what was measured in several of them is averaged. Time stamps
    at which nothing was measured are left out, but for a sample's last one if it has no other, and where each has a
    label.
    """
    if isinstance(data, Series):
        if y is not None:
            raise ValueError("a Series has its labels; y is not needed beside it")
        return data
    given = _given(data, y)
    values = _floats("X", given["X"])
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(f"X has shape {values.shape}; expected [samples, steps, features], none of them 0")
    if np.isinf(values).any():
        raise ValueError("X holds infinite values; allowed: numbers, and NaN where nothing was measured")
    samples, steps, features = values.shape
    lengths = _lengths(given.get("lengths"), samples, steps)
    times = _times(given.get("time"), samples, steps, lengths)
    statics = _statics(given.get("statics"), samples)
    labels, names = _labels(given.get("y"), classes, (samples, steps) if per_step else (samples,))
    made = []
    for sample in range(samples):
        stop = int(lengths[sample])
        kept = np.arange(stop)
        if not per_step:
            something = ~np.isnan(values[sample, :stop]).all(1)
            kept = np.flatnonzero(something) if something.any() else kept[-1:]
        row, channel = np.nonzero(~np.isnan(values[sample, kept]))
        at = times[sample, kept]
        # One stamp for each moment, measured or not.
        stamps, _ = on_grid(at, np.zeros(len(at), dtype=np.int64), at, 1)
        grid = np.full((len(stamps), features), np.nan, dtype=np.float32)
        if len(row):
            found, part = on_grid(at[row], channel, values[sample, kept][row, channel], features)
            grid[np.searchsorted(stamps, found)] = part
        label: Any = int(labels[sample]) if not per_step else _last_at(at, labels[sample, kept], stamps)
        made.append(Sample(id=sample, times=stamps, values=grid, label=label, statics=statics[sample]))
    return assemble(
        made,
        channels=[str(number) for number in range(features)],
        static_names=[str(number) for number in range(statics.shape[1])],
        classes=[str(name) for name in names],
    )


def from_triplets(
    sample: Any, time: Any, channel: Any, value: Any, y: Mapping[Any, Any] | None = None
) -> dict[str, Array]:
    """A table with a row a measurement as a dict for `fit`: whose it is, when, of what, and how much.

    y: the label of each sample. Samples come in the order of their names, channels likewise.
    """
    columns = [np.asarray(each).ravel() for each in (sample, time, channel, value)]
    if len({len(each) for each in columns}) > 1:
        raise ValueError(
            f"the columns have {', '.join(str(len(each)) for each in columns)} rows; expected as many each"
        )
    if not len(columns[0]):
        raise ValueError("there are no measurements")
    names, owner = np.unique(columns[0], return_inverse=True)
    kinds, place = np.unique(columns[2], return_inverse=True)
    at, measured = _floats("time", columns[1]), _floats("value", columns[3])
    if not np.isfinite(at).all():
        raise ValueError("time holds values that are not finite")
    parts = []
    for number in range(len(names)):
        mine = owner == number
        parts.append(on_grid(at[mine], place[mine], measured[mine], len(kinds)))
    longest = max(len(stamps) for stamps, _ in parts)
    found: dict[str, Array] = {
        "X": np.full((len(names), longest, len(kinds)), np.nan, dtype=np.float32),
        "time": np.zeros((len(names), longest)),
        "lengths": np.asarray([len(stamps) for stamps, _ in parts]),
    }
    for number, (stamps, grid) in enumerate(parts):
        found["X"][number, : len(stamps)] = grid
        found["time"][number] = np.append(stamps, np.full(longest - len(stamps), stamps[-1]))
    if y is not None:
        if missing := [name for name in names.tolist() if name not in y]:
            raise ValueError(f"y has no label for {len(missing)} of {len(names)} samples, {missing[0]!r} for one")
        found["y"] = np.asarray([y[name] for name in names.tolist()])
    return found


def from_aeon(X: Any, y: Any = None) -> dict[str, Array]:
    """What aeon has as a dict for `fit`: an array [samples, channels, steps], or a list of arrays [channels, steps]."""
    series = [_floats("X", each) for each in X]
    if not series or any(each.ndim != 2 or 0 in each.shape for each in series):
        raise ValueError("X must be an array [samples, channels, steps], or a list of arrays [channels, steps]")
    if len({len(each) for each in series}) > 1:
        raise ValueError("the series have different numbers of channels")
    longest = max(each.shape[1] for each in series)
    found: dict[str, Array] = {
        "X": np.full((len(series), longest, len(series[0])), np.nan, dtype=np.float32),
        "lengths": np.asarray([each.shape[1] for each in series]),
    }
    for number, each in enumerate(series):
        found["X"][number, : each.shape[1]] = each.T
    return found if y is None else {**found, "y": np.asarray(y)}


def _given(data: Any, y: Any) -> dict[str, Any]:
    if isinstance(data, str | os.PathLike):
        data = _read(Path(data))
    if not isinstance(data, Mapping):
        return {"X": data, "y": y}
    if y is not None and data.get("y") is not None:
        raise ValueError("y is given twice, in the dict and beside it")
    if unknown := [name for name in data if name not in KEYS]:
        raise ValueError(f"the data have {', '.join(map(str, unknown))}; allowed: {', '.join(KEYS)}")
    if "X" not in data:
        raise ValueError("the data have no X")
    return {**data, "y": data.get("y") if y is None else y}


def _read(path: Path) -> dict[str, Any]:
    try:
        import h5py
    except ImportError:
        raise ValueError("reading .h5 files needs h5py: pip install 'torchcram[timeseries]'") from None
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    try:
        with h5py.File(path, "r") as file:
            return {name: file[name][()] for name in file if name in KEYS}
    except OSError as error:
        raise ValueError(f"{path} is not an .h5 file, or is damaged ({error})") from error


def _floats(name: str, given: Any) -> Array:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers in an array of one shape") from None


def _lengths(given: Any, samples: int, steps: int) -> Array:
    if given is None:
        return np.full(samples, steps)
    lengths = np.asarray(given)
    if lengths.shape != (samples,) or lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths has shape {lengths.shape}, dtype {lengths.dtype}; expected {samples} whole numbers")
    if lengths.min() < 1 or lengths.max() > steps:
        raise ValueError(f"lengths go from {lengths.min()} to {lengths.max()}; allowed: 1 to {steps}")
    return lengths


def _times(given: Any, samples: int, steps: int, lengths: Array) -> Array:
    if given is None:
        return np.broadcast_to(np.arange(steps, dtype=np.float64), (samples, steps))
    times = _floats("time", given)
    if times.shape not in ((steps,), (samples, steps)):
        raise ValueError(f"time has shape {times.shape}; allowed: {(samples, steps)} or {(steps,)}")
    times = np.broadcast_to(times, (samples, steps))
    if not np.isfinite(times[np.arange(steps) < lengths[:, None]]).all():
        raise ValueError("time holds values that are not finite; give lengths if they are padding")
    return times


def _statics(given: Any, samples: int) -> Array:
    if given is None:
        return np.zeros((samples, 0))
    statics = _floats("statics", given)
    if statics.ndim != 2 or len(statics) != samples or np.isinf(statics).any():
        raise ValueError(f"statics has shape {statics.shape}; expected [{samples}, …] of numbers, or NaN for unknown")
    return statics


def _labels(given: Any, classes: Sequence[Any] | None, shape: tuple[int, ...]) -> tuple[Array, list[Any]]:
    """Numbers of classes, and the classes."""
    if given is None:
        return np.full(shape, UNKNOWN), list(classes or ())
    labels = np.asarray(given)
    if labels.shape == (*shape, 1):
        labels = labels[..., 0]
    if labels.shape != shape:
        raise ValueError(f"y has shape {labels.shape}; expected {shape}")
    known = np.ones(shape, dtype=bool)
    if labels.dtype.kind == "f":
        known = ~np.isnan(labels)
        if len(shape) == 1 and not known.all():
            raise ValueError(
                f"y holds NaN, first for sample {int(np.flatnonzero(~known)[0])}; every sample needs a label"
            )
        if (labels[known] % 1 != 0).any():
            raise ValueError("y holds fractions; labels are whole numbers, or words")
        labels = np.where(known, labels, 0).astype(np.int64)
    names = np.unique(labels[known]).tolist() if classes is None else list(classes)
    places = {name: number for number, name in enumerate(names)}
    found = np.full(shape, UNKNOWN)
    for name in np.unique(labels[known]).tolist():
        if name not in places:
            raise ValueError(f"y holds {name!r}, which is not among the classes {names}")
        found[known & (labels == name)] = places[name]
    return found, names


def _last_at(times: Array, labels: Array, stamps: Array) -> Array:
    """The label of each stamp: the last that was given for its moment."""
    found = np.full(len(stamps), UNKNOWN)
    for at, label in zip(np.searchsorted(stamps, times), labels, strict=True):
        if label != UNKNOWN:
            found[at] = label
    return found
