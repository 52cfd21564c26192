"""Localization Data for Person Activity: where four tags worn by a person are, and what the person does.

The data are described at archive.ics.uci.edu ("Localization Data for Person Activity"; Kaluza et al. 2010) and free to
download under CC BY 4.0. Five people, A to E, each repeat a scenario five times.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchcram.strict import reject
from torchcram.timeseries import archives, cache
from torchcram.timeseries.series import Sample, Series, Split, assemble, last_on_grid, on_grid

TAGS = {
    "010-000-024-033": "left ankle",
    "010-000-030-096": "right ankle",
    "020-000-033-111": "chest",
    "020-000-032-221": "belt",
}
"""Where the tags are worn."""

CHANNELS = tuple(f"{place} {axis}" for place in TAGS.values() for axis in "xyz")
"""Coordinates in metres."""

CLASSES = ("walking", "falling", "lying", "sitting", "standing up", "on all fours", "sitting on the ground")
"""The eleven activities of the files, alike ones taken together, as in Latent ODE (Rubanova et al. 2019)."""

_CLASS = {
    "walking": 0,
    "falling": 1,
    "lying down": 2,
    "lying": 2,
    "sitting down": 3,
    "sitting": 3,
    "standing up from lying": 4,
    "standing up from sitting": 4,
    "standing up from sitting on the ground": 4,
    "on all fours": 5,
    "sitting on the ground": 6,
}
_PLACE = {tag: number for number, tag in enumerate(TAGS)}
_NAMES = (
    "ConfLongDemo_JSI.txt",
    "ConfLongDemo_JSI.txt.gz",
    "ConfLongDemo_JSI_first16486rows.txt",
    "ConfLongDemo_JSI_first16486rows.txt.gz",
)
_DESCRIBED = "archive.ics.uci.edu, Localization Data for Person Activity"
_OFFICIAL = {"ConfLongDemo_JSI.txt": "280a677ae0d673ec9a50ada480d8a529"}
_TICKS = 10_000_000  # a second


def load(folder: str | os.PathLike[str], *, kept: Path | None = None) -> Series:
    """All sequences, in the order of their names; times in seconds from the start of each, a label a time stamp.

    folder: holds `ConfLongDemo_JSI.txt`, gzipped or not. A reading is of one tag, so most time stamps have three of the
    twelve values. Each reading keeps its own time, where Latent ODE rounds to hundredths of a second; only readings of
    exactly the same time share a time stamp. The group of a sequence is its person, the first letter of its name.
    """
    path = archives.find(folder, _NAMES, what="the readings of all sequences", described=_DESCRIBED)
    return cache.kept("person-activity", [path], None, lambda: _read(path), kept)


def window_split(series: Series, seed: int = 0) -> Split:
    """Windows at random: a fifth to be judged on, a fifth of the others to choose by.

    series: of `windows`. As in Latent ODE and the papers that compare with it, and only for such comparisons: the same
    people are in all three parts, and half of the readings of a window are in the next one, which may be in another
    part. Each window is therefore a group of its own here. For an honest figure, use `leave_one_person_out`.
    """
    order = np.random.default_rng(seed).permutation(len(series))
    judged = len(series) // 5
    chosen = (len(series) - judged) // 5
    alone = replace(series, groups=series.ids)
    return Split(
        train=alone.take(order[judged + chosen :]),
        val=alone.take(order[judged : judged + chosen]),
        test=alone.take(order[:judged]),
    )


def leave_one_person_out(series: Series, person: str) -> Split:
    """One person to be judged on, the next one to choose by, the others to learn from."""
    people = sorted(set(series.groups.tolist()))
    if len(people) < 3:
        raise ValueError(f"a split by person needs three people; there are {len(people)}: {', '.join(people)}")
    if person not in people:
        reject("person", person, ", ".join(people))
    following = people[(people.index(person) + 1) % len(people)]
    rest = [other for other in people if other not in (person, following)]
    return Split(train=series.of(rest), val=series.of([following]), test=series.of([person]))


def _read(path: Path) -> Series:
    archives.check(path, _OFFICIAL)
    sequences: dict[str, list[tuple[int, int, list[float], int]]] = {}
    for number, row in enumerate(archives.text(archives.content(path), path).splitlines(), start=1):
        try:
            sequence, tag, ticks, _, *position, activity = row.split(",")
            moment, where = int(ticks), [float(value) for value in position]
        except ValueError:
            moment, where = 0, []
        if len(where) != 3 or not sequence or not all(map(math.isfinite, where)):
            raise ValueError(f"{path}, line {number}: {row!r} is not sequence, tag, time, date, x, y, z, activity")
        if tag not in _PLACE:
            raise ValueError(f"{path}, line {number}: there is no tag {tag!r}; known: {', '.join(_PLACE)}")
        if activity not in _CLASS:
            raise ValueError(f"{path}, line {number}: there is no activity {activity!r}; known: {', '.join(_CLASS)}")
        sequences.setdefault(sequence, []).append((moment, _PLACE[tag], where, _CLASS[activity]))
    if not sequences:
        raise ValueError(f"{path} is empty; expected readings as described at {_DESCRIBED}")
    samples = [_sample(name, sequences[name]) for name in sorted(sequences)]
    return assemble(samples, channels=CHANNELS, classes=CLASSES)


def _sample(name: str, readings: list[tuple[int, int, list[float], int]]) -> Sample:
    start = min(moment for moment, *_ in readings)
    times = np.asarray([(moment - start) / _TICKS for moment, *_ in readings])
    channel = np.asarray([[3 * tag, 3 * tag + 1, 3 * tag + 2] for _, tag, *_ in readings])
    value = np.asarray([where for *_, where, _ in readings])
    stamps, grid = on_grid(times.repeat(3), channel.ravel(), value.ravel(), len(CHANNELS))
    label = last_on_grid(times, np.asarray([activity for *_, activity in readings]))
    return Sample(id=name, group=name[0], times=stamps, values=grid, label=label)
