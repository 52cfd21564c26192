"""A batteryless sensor worn by older people: accelerations and radio measurements, and what the person does.

The data are described at archive.ics.uci.edu ("Activity recognition with healthy older people using a batteryless
wearable sensor"; Shinmoto Torres et al. 2013) and free to download under CC BY 4.0. Readings are irregular: the sensor
answers when a radio wave gives it the energy to.

Fourteen people made 87 trials, ten of them in room 1 and five in room 2, so one of them in both. A file is a trial, and
its number the trial's: of who made it, only the sex is told. Trials that follow each other show the same way of wearing
the sensor, of sitting and of lying, until these change at once. The stretches between such changes are the groups here;
where a change is not clear, there is none. They were found from the accelerations and the rates of the readings, not
told by the authors: twelve stretches, each of one person or of a few.
"""

from __future__ import annotations

import bisect
import os
import re
from pathlib import Path

import numpy as np

from torchcram.strict import reject
from torchcram.timeseries import archives, cache
from torchcram.timeseries.series import Sample, Series, Split, assemble, last_on_grid, on_grid

ANTENNAS = (1, 2, 3, 4)
"""Room 1 has all four, room 2 the first three."""

CHANNELS = (
    *("frontal acceleration", "vertical acceleration", "lateral acceleration"),
    *("signal strength", "phase", "frequency"),
    *(f"antenna={number}" for number in ANTENNAS),
)
"""Accelerations in g; signal strength, phase and frequency as the reader tells them; the antenna that was answered."""

STATICS = ("Sex=F", "Sex=M", "Room=1", "Room=2")

CLASSES = ("sit on bed", "sit on chair", "lying", "ambulating")
"""In the order of the files' labels, 1 to 4."""

_FIRST = {"1": (1, 8, 13, 36, 44, 49, 54), "2": (1, 6, 13, 18, 23)}
"""By room: trials that begin another stretch."""

_TRIAL = re.compile(r"d([12])p([0-9]{2})([FM])")
_NAMES = ("Datasets_Healthy_Older_People.zip", "Datasets_Healthy_Older_People", "S1_Dataset")
_DESCRIBED = "archive.ics.uci.edu, Activity recognition with healthy older people using a batteryless wearable sensor"
_COLUMNS = "time, three accelerations, antenna, signal strength, phase, frequency, label"
_FOLDS = 5


def load(folder: str | os.PathLike[str], *, kept: Path | None = None) -> Series:
    """All trials, in the order of their names; times in seconds, a label a time stamp.

    folder: holds `Datasets_Healthy_Older_People.zip`, or that unpacked. Readings of exactly the same time are averaged;
    the last of them gives the label. Trials have 7 to 4638 readings: see `windows`.
    """
    path = archives.find(folder, _NAMES, what="the trials in both rooms", described=_DESCRIBED)
    if path.name == "S1_Dataset":
        path = path.parent
    return cache.kept("wearable", [path], None, lambda: _read(path), kept)


def split(series: Series, number: int) -> Split:
    """One of five splits: fold `number` to be judged on, the next one to choose by, the others to learn from.

    Stretches of trials stay whole, and folds hold about as much of every class as these allow. The one person who was
    in both rooms may be in two parts, since nobody knows which trials are theirs. With `by_sex`, nobody can be.
    """
    if number not in range(1, _FOLDS + 1):
        reject("split", number, f"1 to {_FOLDS}")
    folds = _folds(series)
    judged, chosen = folds[number - 1], folds[number % _FOLDS]
    rest = [name for fold in folds if fold not in (judged, chosen) for name in fold]
    return Split(train=series.of(rest), val=series.of(chosen), test=series.of(judged))


def by_sex(series: Series, tested: str) -> Split:
    """All of one sex, `F` or `M`, to be judged on; of the other, the last stretch to choose by, the rest to learn from.

    Nobody who is judged on is in the other parts, whoever made which trial.
    """
    if tested not in ("F", "M"):
        reject("tested", tested, "'F' or 'M'")
    whether = series.statics[:, STATICS.index(f"Sex={tested}")] == 1
    others = sorted(set(series.groups[~whether].tolist()))
    if len(others) < 2 or not whether.any():
        raise ValueError("a split by sex needs trials of both, and two stretches of those who are not judged on")
    return Split(train=series.of(others[:-1]), val=series.of(others[-1:]), test=series.take(np.flatnonzero(whether)))


def _folds(series: Series) -> list[list[str]]:
    """Stretches, the largest first, each to the fold that has least; a reading counts more if its class is rarer."""
    names = sorted(set(series.groups.tolist()))
    if len(names) < _FOLDS:
        raise ValueError(f"{_FOLDS} folds need as many stretches of trials; there are {len(names)}: {'; '.join(names)}")
    counts = np.asarray([np.bincount(series.of([name]).labels, minlength=len(CLASSES)) for name in names])
    weights = (counts / counts.sum(0).clip(1)).sum(1)
    folds: list[list[str]] = [[] for _ in range(_FOLDS)]
    filled = np.zeros(_FOLDS)
    for place in np.argsort(-weights, kind="stable"):
        least = int(filled.argmin())
        folds[least].append(names[place])
        filled[least] += weights[place]
    return folds


def _read(path: Path) -> Series:
    samples = []
    for name, data in archives.members(path):
        if trial := _TRIAL.fullmatch(name.name):
            samples.append(_sample(trial, archives.text(data, f"{path}: {name}"), f"{path}: {name}"))
    if not samples:
        raise ValueError(f"{path} holds no trial, such as S1_Dataset/d1p01M; they are described at {_DESCRIBED}")
    samples.sort(key=lambda sample: str(sample.id))
    return assemble(samples, channels=CHANNELS, static_names=STATICS, classes=CLASSES)


def _sample(trial: re.Match[str], text: str, name: str) -> Sample:
    room, number, sex = trial.groups()
    rows = np.asarray([_row(row, f"{name}, line {line}") for line, row in enumerate(text.splitlines(), start=1)])
    if not len(rows):
        raise ValueError(f"{name} is empty; expected {_COLUMNS}")
    times, antenna = rows[:, 0], rows[:, 4:5] == ANTENNAS
    value = np.concatenate([rows[:, 1:4], rows[:, 5:8], antenna], axis=1)
    channel = np.tile(np.arange(len(CHANNELS)), len(rows))
    stamps, grid = on_grid(times.repeat(len(CHANNELS)), channel, value.ravel(), len(CHANNELS))
    return Sample(
        id=trial.group(),
        group=f"room {room}, stretch {bisect.bisect(_FIRST[room], int(number))}",
        times=stamps,
        values=grid,
        label=last_on_grid(times, rows[:, 8] - 1),
        statics=[*(float(sex == other) for other in "FM"), *(float(room == other) for other in "12")],
    )


def _row(text: str, place: str) -> list[float]:
    try:
        row = [float(value) for value in text.split(",")]
    except ValueError:
        row = []
    if len(row) != 9 or not np.isfinite(row).all():
        raise ValueError(f"{place}: {text!r} is not {_COLUMNS}")
    if row[4] not in ANTENNAS:
        raise ValueError(f"{place}: there is no antenna {text.split(',')[4]}; known: {', '.join(map(str, ANTENNAS))}")
    if row[8] not in range(1, len(CLASSES) + 1):
        raise ValueError(f"{place}: the label is {text.split(',')[8]}; allowed: 1 to {len(CLASSES)}")
    return row
