"""From what users have (arrays with NaN, dicts, `.h5` files, tables of measurements) to a `Series`.

The conventions are those of PyPOTS: `X` [samples, steps, features] with NaN where nothing was measured, and `y`; beside
them, where there are any, the other `KEYS`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchcram.timeseries.series import UNKNOWN, Array, Sample, Series, assemble, on_grid

KEYS = ("X", "y", "time", "lengths", "statics", "groups", "ids", "channels")
"""What a dict or file may hold."""

_COARSE = 1e-3  # of the usual gap between time stamps: what the precision of times must be below


class Placed(NamedTuple):
    """A `Series`, and where it has what a user gave."""

    series: Series
    rows: Array
    """[samples, steps] int64: the row of each step; -1 where there is none."""


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
    return placed(gathered(data, y), classes=classes, per_step=per_step).series


def gathered(data: Any, y: Any = None) -> dict[str, Any]:
    """What is given, by its names (`KEYS`): a dict, the path of an `.h5` file, or an array X; with y beside it."""
    if isinstance(data, str | os.PathLike):
        data = _read(Path(data))
    if not isinstance(data, Mapping):
        return {"X": data, "y": y}
    if y is not None and data.get("y") is not None:
        raise ValueError("y is given twice, in the data and beside them")
    if unknown := [name for name in data if name not in KEYS]:
        raise ValueError(f"the data have {', '.join(map(str, unknown))}; allowed: {', '.join(KEYS)}")
    if "X" not in data:
        raise ValueError("the data have no X")
    return {**data, "y": data.get("y") if y is None else y}


def class_names(given: Mapping[str, Any]) -> list[Any]:
    """The labels that occur, as they are, in their order; those in padding do not count."""
    labels, known = _labels(given.get("y"))
    if labels.ndim == 2 and given.get("lengths") is not None:
        known = known & (np.arange(labels.shape[1]) < np.asarray(given["lengths"])[:, None])
    return list(np.unique(labels[known]).tolist())


def placed(given: Mapping[str, Any], *, classes: Sequence[Any] | None = None, per_step: bool = False) -> Placed:
    """See `as_series`; `given` as `gathered` returns it."""
    values = _floats("X", given["X"])
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(f"X has shape {values.shape}; expected [samples, steps, features], none of them 0")
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    _refuse("X holds an infinite value", np.isinf(values))
    samples, steps, features = values.shape
    lengths = _lengths(given.get("lengths"), samples, steps)
    real = np.arange(steps) < lengths[:, None]
    times = _times(given.get("time"), real)
    statics = _statics(given.get("statics"), samples)
    names = class_names(given) if classes is None and given.get("y") is not None else list(classes or ())
    labels = _numbered(given.get("y"), names, real if per_step else real[:, 0])
    ids = _names("ids", given.get("ids"), samples)
    groups = _names("groups", given.get("groups"), samples) if given.get("groups") is not None else ids
    made, rows, begin = [], np.full((samples, steps), -1), 0
    for sample in range(samples):
        kept = np.arange(lengths[sample])
        if not per_step:
            something = ~np.isnan(values[sample, kept]).all(1)
            kept = np.flatnonzero(something) if something.any() else kept[-1:]
        row, channel = np.nonzero(~np.isnan(values[sample, kept]))
        at = times[sample, kept]
        stamps, place = np.unique(at, return_inverse=True)  # one for each moment, measured or not
        grid = np.full((len(stamps), features), np.nan, dtype=np.float32)
        if len(row):
            found, part = on_grid(at[row], channel, values[sample, kept][row, channel], features)
            grid[np.searchsorted(stamps, found)] = part
        rows[sample, kept] = begin + place
        begin += len(stamps)
        label: Any = _last(labels[sample, kept], place, len(stamps)) if per_step else int(labels[sample])
        made.append(
            Sample(
                id=ids[sample], group=groups[sample], times=stamps, values=grid, label=label, statics=statics[sample]
            )
        )
    series = assemble(
        made,
        channels=_names("channels", given.get("channels"), features, default=str),
        static_names=[str(number) for number in range(statics.shape[1])],
        classes=[str(name) for name in names],
    )
    return Placed(series, rows)


def from_triplets(
    sample: Any,
    time: Any,
    channel: Any,
    value: Any,
    y: Mapping[Any, Any] | None = None,
    *,
    channels: Sequence[Any] | None = None,
    statics: Mapping[Any, Sequence[float]] | None = None,
) -> dict[str, Any]:
    """A table with a row a measurement as a dict for `fit`: whose it is, when, of what, and how much.

    y: the label of each sample; statics: what is known of each besides. channels: their names, in the order they are to
    have; give those of the training data when predicting. Default: those that occur, sorted, as samples always are.
    """
    columns = [np.asarray(_plain(each)).ravel() for each in (sample, time, channel, value)]
    if len({len(each) for each in columns}) > 1:
        counts = ", ".join(str(len(each)) for each in columns)
        raise ValueError(f"the columns have {counts} rows; expected as many each")
    measured = _floats("value", columns[3])
    owners, at, kinds = columns[0], _moments(columns[1]), columns[2]
    names, owner = np.unique(owners, return_inverse=True)
    if not len(names):
        raise ValueError("there are no measurements")
    _refuse("time holds a value that is not finite", ~np.isfinite(at))
    known = np.unique(kinds).tolist() if channels is None else list(channels)
    places = {kind: number for number, kind in enumerate(known)}
    if strange := [kind for kind in np.unique(kinds).tolist() if kind not in places]:
        raise ValueError(f"channel holds {strange[0]!r}, which is not among the channels {known}")
    place = np.asarray([places[kind] for kind in kinds.tolist()])
    order = np.argsort(owner, kind="stable")
    parts = []
    for mine in np.split(order, np.searchsorted(owner[order], np.arange(1, len(names)))):
        kept = mine[~np.isnan(measured[mine])]
        kept = kept if len(kept) else mine[-1:]  # a sample of which nothing is known still is one
        parts.append(on_grid(at[kept], place[kept], measured[kept], len(known)))
    longest = max(len(stamps) for stamps, _ in parts)
    found: dict[str, Any] = {
        "X": np.full((len(names), longest, len(known)), np.nan, dtype=np.float32),
        "time": np.zeros((len(names), longest)),
        "lengths": np.asarray([len(stamps) for stamps, _ in parts]),
        "ids": names.tolist(),
        "channels": [str(kind) for kind in known],
    }
    for number, (stamps, grid) in enumerate(parts):
        found["X"][number, : len(stamps)] = grid
        found["time"][number] = np.append(stamps, np.full(longest - len(stamps), stamps[-1]))
    for key, told in (("y", y), ("statics", statics)):
        if told is None:
            continue
        if not isinstance(told, Mapping):
            raise ValueError(f"{key} must be a dict from sample to what is told of it; got {type(told).__name__}")
        if missing := [name for name in names.tolist() if name not in told]:
            raise ValueError(f"{key} has nothing for {len(missing)} of {len(names)} samples, {missing[0]!r} for one")
        found[key] = np.asarray([told[name] for name in names.tolist()])
    return found


def from_aeon(X: Any, y: Any = None) -> dict[str, Any]:
    """What aeon has as a dict for `fit`: an array [samples, channels, steps], or a list of arrays [channels, steps]."""
    series = [_floats("X", each) for each in X]
    if not series or any(each.ndim != 2 or 0 in each.shape for each in series):
        raise ValueError("X must be an array [samples, channels, steps], or a list of arrays [channels, steps]")
    if len({len(each) for each in series}) > 1:
        raise ValueError("the series have different numbers of channels")
    longest = max(each.shape[1] for each in series)
    found: dict[str, Any] = {
        "X": np.full((len(series), longest, len(series[0])), np.nan, dtype=np.float32),
        "lengths": np.asarray([each.shape[1] for each in series]),
    }
    for number, each in enumerate(series):
        found["X"][number, : each.shape[1]] = each.T
    return found if y is None else {**found, "y": np.asarray(y)}


def _read(path: Path) -> dict[str, Any]:
    try:
        import h5py
    except ImportError:
        raise ValueError("reading .h5 files needs h5py: pip install 'torchcram[timeseries]'") from None
    if not path.is_file():
        raise ValueError(f"{path} is not a file")
    try:
        with h5py.File(path, "r") as file:
            return {name: file[name][()] for name in file}
    except (OSError, TypeError) as error:
        raise ValueError(f"{path} is not an .h5 file of arrays, or is damaged ({error})") from error


def _plain(given: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    return given.detach().cpu().numpy() if hasattr(given, "detach") else given


def _floats(name: str, given: Any) -> Array:
    try:
        return np.asarray(_plain(given), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers in an array of one shape") from None


def _refuse(words: str, bad: Array) -> None:
    """An error that says where, if anything is bad."""
    if bad.any():
        where = ", ".join(str(int(index[0])) for index in np.nonzero(bad))
        raise ValueError(f"{words}, first at [{where}]")


def _lengths(given: Any, samples: int, steps: int) -> Array:
    if given is None:
        return np.full(samples, steps)
    lengths = np.asarray(_plain(given))
    if lengths.shape != (samples,) or lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths has shape {lengths.shape}, dtype {lengths.dtype}; expected {samples} whole numbers")
    if lengths.min() < 1 or lengths.max() > steps:
        raise ValueError(f"lengths go from {lengths.min()} to {lengths.max()}; allowed: 1 to {steps}")
    return lengths


def _moments(given: Any) -> Array:
    """Times as float64; dates in seconds."""
    times = np.asarray(_plain(given))
    if times.dtype.kind == "M":
        seconds = times.astype("datetime64[ns]").astype(np.int64) / 1e9
        return np.where(np.isnat(times), np.nan, seconds)
    return _floats("time", times)


def _times(given: Any, real: Array) -> Array:
    samples, steps = real.shape
    if given is None:
        return np.broadcast_to(np.arange(steps, dtype=np.float64), real.shape)
    times = _moments(given)
    if times.shape not in ((steps,), (samples, steps)):
        raise ValueError(f"time has shape {times.shape}; allowed: {(samples, steps)} or {(steps,)}")
    times = np.broadcast_to(times, real.shape)
    _refuse("time holds a value that is not finite (give lengths if it is padding)", real & ~np.isfinite(times))
    kind = getattr(_plain(given), "dtype", np.dtype(np.float64))
    if kind in (np.float32, np.float16):
        gaps = np.diff(times, axis=1)[real[:, 1:]]
        usual = np.median(gaps[gaps > 0]) if (gaps > 0).any() else 0.0
        if gaps.size and np.spacing(np.abs(times[real]).max().astype(kind)) > _COARSE * usual:
            warnings.warn(
                f"time is {kind}, too coarse for its own gaps: count from a later beginning, or use float64",
                stacklevel=2,
            )
    return times


def _statics(given: Any, samples: int) -> Array:
    if given is None:
        return np.zeros((samples, 0))
    statics = _floats("statics", given)
    if statics.ndim != 2 or len(statics) != samples or np.isinf(statics).any():
        raise ValueError(f"statics has shape {statics.shape}; expected [{samples}, …] of numbers, or NaN for unknown")
    return statics


def _names(name: str, given: Any, count: int, default: type = int) -> list[Any]:
    """Names of samples, groups or channels; numbers if there are none."""
    if given is None:
        return [default(number) for number in range(count)]
    names = [each.decode() if isinstance(each, bytes) else each for each in np.asarray(_plain(given)).tolist()]
    if len(names) != count or (name != "groups" and len(set(names)) < count):
        raise ValueError(f"{name} has {len(set(names))} names for {count}; expected one each")
    return names


def _labels(given: Any) -> tuple[Array, Array]:
    """Labels as they are, and which of them are known: NaN and None are not."""
    if given is None:
        raise ValueError("there are no labels: give y")
    labels = np.asarray(_plain(given))
    if labels.ndim > 1 and labels.shape[-1] == 1:
        labels = labels[..., 0]
    if labels.dtype.kind in "OS":
        flat = [each.decode() if isinstance(each, bytes) else each for each in labels.ravel().tolist()]
        known = np.asarray([each is not None and each == each for each in flat]).reshape(labels.shape)
        some = next((each for each in flat if each is not None and each == each), 0)
        labels = np.asarray([each if ok else some for each, ok in zip(flat, known.ravel(), strict=True)])
        return labels.reshape(known.shape), known
    known = np.ones(labels.shape, dtype=bool)
    if labels.dtype.kind == "f":
        known = ~np.isnan(labels)
        if (labels[known] % 1 != 0).any():
            raise ValueError("y holds fractions; labels are whole numbers, or words")
        labels = np.where(known, labels, 0).astype(np.int64)
    return labels, known


def _numbered(given: Any, names: Sequence[Any], real: Array) -> Array:
    """Numbers of classes, of the shape of `real`; `UNKNOWN` where there is no label, and where nothing is real."""
    found = np.full(real.shape, UNKNOWN)
    if given is None:
        return found
    labels, known = _labels(given)
    if labels.shape != real.shape:
        raise ValueError(f"y has shape {labels.shape}; expected {real.shape}")
    if real.ndim == 1:
        _refuse("y holds NaN, and every sample needs a label", ~known)
    places = {name: number for number, name in enumerate(names)}
    for name in np.unique(labels[known & real]).tolist():
        if name not in places:
            raise ValueError(f"y holds {name!r}, which is not among the classes {list(names)}")
        found[known & real & (labels == name)] = places[name]
    return found


def _last(labels: Array, place: Array, stamps: int) -> Array:
    """The label of each stamp: the last that was given for its moment."""
    found = np.full(stamps, UNKNOWN)
    known = labels != UNKNOWN
    found[place[known]] = labels[known]
    return found
