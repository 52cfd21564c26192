"""MIMIC-III: who dies in hospital, told from the first 48 hours of a stay in intensive care.

The data are described at physionet.org ("MIMIC-III Clinical Database", version 1.4; Johnson et al. 2016). The full set
of 46 thousand patients needs credentials there. The open demo has the same files for 100 patients who all die sooner or
later: it tests that everything works and is never a benchmark.
"""

from __future__ import annotations

import csv
import math
import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from pathlib import Path

import numpy as np

from torchcram.timeseries import archives, cache
from torchcram.timeseries.series import Sample, Series, Split, assemble, on_grid

HOURS = 48
"""From the start of a stay: what is read, and how long a stay lasts at least."""

_CHARTED = {
    "heart rate": (211, 220045),
    "systolic pressure": (51, 442, 455, 6701, 220050, 220179, 224167, 225309, 227243),
    "diastolic pressure": (8368, 8440, 8441, 8555, 220051, 220180, 224643, 225310, 227242),
    "mean pressure": (52, 443, 456, 6702, 220052, 220181, 225312),
    "respiratory rate": (615, 618, 220210, 224690),
    "temperature": (676, 678, 223761, 223762),
    "oxygen saturation": (646, 220277),
    "inspired oxygen": (190, 3420, 223835),
    "eye opening": (184, 220739),
    "verbal response": (723, 223900),
    "motor response": (454, 223901),
    "glucose": (807, 811, 1529, 3744, 3745, 220621, 225664, 226537),
    "pH": (780, 860, 1126, 3839, 4202, 4753, 220274, 223830),
    "weight": (762, 763, 224639, 226512),
}
_MEASURED = {
    "glucose": (50809, 50931),
    "pH": (50820,),
    "creatinine": (50912,),
    "urea nitrogen": (51006,),
    "sodium": (50983,),
    "potassium": (50971,),
    "bicarbonate": (50882,),
    "lactate": (50813,),
    "white blood cells": (51300, 51301),
    "platelets": (51265,),
    "haematocrit": (51221,),
    "bilirubin": (50885,),
}
_PASSED = {
    "urine": (
        *(40055, 40056, 40057, 40069, 40085, 40094, 40096, 40405, 40428, 40473, 40651, 40715, 43175),
        *(226557, 226558, 226559, 226560, 226561, 226563, 226564, 226565, 226567, 226584),
    )
}
_POSSIBLE = {
    "heart rate": (1, 350),
    "systolic pressure": (1, 375),
    "diastolic pressure": (1, 375),
    "mean pressure": (14, 330),
    "respiratory rate": (1, 300),
    "temperature": (26, 45),
    "oxygen saturation": (1, 100),
    "inspired oxygen": (0.21, 1),
    "eye opening": (1, 4),
    "verbal response": (1, 5),
    "motor response": (1, 6),
    "glucose": (33, 2000),
    "pH": (6.3, 8.4),
    "weight": (20, 300),
    "creatinine": (0.1, 60),
    "urea nitrogen": (1, 250),
    "sodium": (50, 225),
    "potassium": (0.5, 12),
    "bicarbonate": (1, 60),
    "lactate": (0.1, 30),
    "white blood cells": (0, 1000),
    "platelets": (0, 2000),
    "haematocrit": (1, 75),
    "bilirubin": (0, 60),
    "urine": (0, 5000),
}
"""What a living adult can have; all else is a slip of the pen. Mostly as in Harutyunyan et al. 2019."""

CHANNELS = tuple(_POSSIBLE)
"""Pressures in mmHg, temperature in °C, inspired oxygen as a share, weight in kg, urine in ml; the rest as charted."""

_UNITS = ("CCU", "CSRU", "MICU", "SICU", "TSICU")
_ADMISSIONS = ("ELECTIVE", "EMERGENCY", "URGENT")

STATICS = (
    *("Age", "Sex=F", "Sex=M"),
    *(f"Unit={unit}" for unit in _UNITS),
    *(f"Admission={kind}" for kind in _ADMISSIONS),
)
"""What is known on admission."""

_PLACE = {name: number for number, name in enumerate(CHANNELS)}
_FAHRENHEIT = ("678", "223761")
_DESCRIBED = "physionet.org, mimiciii 1.4 (or the open mimiciii-demo 1.4)"
_TABLES = ("ADMISSIONS", "PATIENTS", "ICUSTAYS", "CHARTEVENTS", "LABEVENTS", "OUTPUTEVENTS")
_YEAR = 365.25 * 24 * 3600


@dataclass
class _Stay:
    """A stay, and what was measured in its first hours; arrays of plain numbers, since there are millions of these."""

    id: int
    admission: str
    patient: int
    start: datetime
    label: int
    statics: list[float]
    times: array[float] = field(default_factory=lambda: array("d"))
    channel: array[int] = field(default_factory=lambda: array("b"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, hour: float, channel: str, value: float) -> None:
        low, high = _POSSIBLE[channel]
        if low <= value <= high:
            self.times.append(hour)
            self.channel.append(_PLACE[channel])
            self.value.append(value)


def load(folder: str | os.PathLike[str], *, kept: Path | None = None) -> Series:
    """Stays of at least 48 hours, in the order of their ICUSTAY_IDs; times in hours, the patient is the group.

    folder: holds `ADMISSIONS.csv`, `PATIENTS.csv`, `ICUSTAYS.csv`, `CHARTEVENTS.csv`, `LABEVENTS.csv` and
    `OUTPUTEVENTS.csv`, gzipped or not. The label is death in hospital, HOSPITAL_EXPIRE_FLAG of the admission. As in the
    benchmark of Harutyunyan et al. (2019), patients are at least 18 years old, and admissions with several stays in
    intensive care are left out, as are stays with a move between wards or units and stays without any measurement.

    An age beyond 120 stands for 90: the dates of the oldest are shifted. Items of the two charting systems are taken
    together; entries marked as errors and values that nobody can have are dropped. What was measured several times at
    one moment is averaged, and urine is added up. Reading the full set takes a while; its charts are never in memory.
    """
    paths = {}
    for table in _TABLES:
        names = (f"{table}.csv", f"{table}.csv.gz")
        paths[table] = archives.find(folder, names, what=f"the table {table}", described=_DESCRIBED)
    return cache.kept("mimic3", paths.values(), None, lambda: _read(paths), kept)


def split(series: Series, seed: int = 0) -> Split:
    """By patient, at random: 70 % to learn from, 15 % to choose by, 15 % to be judged on."""
    patients = np.random.default_rng(seed).permutation(np.unique(series.groups))
    part = round(0.15 * len(patients))
    return Split(
        train=series.of(patients[2 * part :]), val=series.of(patients[part : 2 * part]), test=series.of(patients[:part])
    )


def _read(paths: dict[str, Path]) -> Series:
    stays = _stays(paths)
    for stay, item, hour, value, channel in _events(paths["CHARTEVENTS"], stays, _CHARTED, "valuenum", "error"):
        stay.add(hour, channel, _converted(item, channel, value))
    for stay, _, hour, value, channel in _events(paths["LABEVENTS"], stays, _MEASURED, "valuenum"):
        stay.add(hour, channel, value)
    passed: defaultdict[tuple[str, float], float] = defaultdict(float)
    for stay, _, hour, value, _ in _events(paths["OUTPUTEVENTS"], stays, _PASSED, "value", "iserror"):
        passed[stay.admission, hour] += value
    for (admission, hour), value in passed.items():
        stays[admission].add(hour, "urine", value)
    samples = [_sample(stay) for stay in sorted(stays.values(), key=lambda stay: stay.id) if stay.times]
    if not samples:
        raise ValueError(f"{paths['ICUSTAYS'].parent} has no stay of an adult of {HOURS} hours with measurements")
    return assemble(samples, channels=CHANNELS, static_names=STATICS, classes=("survived", "died"))


def _sample(stay: _Stay) -> Sample:
    times, grid = on_grid(np.asarray(stay.times), np.asarray(stay.channel), np.asarray(stay.value), len(CHANNELS))
    return Sample(id=stay.id, group=stay.patient, times=times, values=grid, label=stay.label, statics=stay.statics)


def _stays(paths: dict[str, Path]) -> dict[str, _Stay]:
    """The stays to be read, by HADM_ID: an admission has one at most."""
    admissions, patients, stays = (paths[table] for table in ("ADMISSIONS", "PATIENTS", "ICUSTAYS"))
    admitted: dict[str, tuple[str, int]] = {}
    for line, (admission, kind, died) in _rows(admissions, "hadm_id", "admission_type", "hospital_expire_flag"):
        if died not in ("0", "1"):
            raise ValueError(f"{admissions}, line {line}: hospital_expire_flag is {died!r}; allowed: 0 and 1")
        admitted[admission] = (kind, int(died))
    known: dict[str, tuple[str, datetime]] = {}
    for line, (patient, sex, born) in _rows(patients, "subject_id", "gender", "dob"):
        known[patient] = (sex, _moment(born, patients, line))
    rows = list(
        _rows(
            stays,
            *("hadm_id", "subject_id", "icustay_id", "intime", "los"),
            *("first_careunit", "last_careunit", "first_wardid", "last_wardid"),
        )
    )
    several = Counter(admission for _, (admission, *_) in rows)
    found = {}
    for line, (admission, patient, stay, begun, days, unit, last_unit, ward, last_ward) in rows:
        if admission not in admitted:
            raise ValueError(f"{stays}, line {line}: {admissions} has no admission {admission!r}")
        if patient not in known:
            raise ValueError(f"{stays}, line {line}: {patients} has no patient {patient!r}")
        if several[admission] > 1 or unit != last_unit or ward != last_ward:
            continue
        if not days or 24 * _number(days, stays, line) < HOURS:
            continue
        kind, label = admitted[admission]
        sex, birth = known[patient]
        start = _moment(begun, stays, line)
        age = (start - birth).total_seconds() / _YEAR
        if age < 18:
            continue
        statics = [90.0 if age > 120 else age, *_one_hot(sex, ("F", "M"))]
        statics += [*_one_hot(unit, _UNITS), *_one_hot(kind, _ADMISSIONS)]
        found[admission] = _Stay(int(stay), admission, int(patient), start, label, statics)
    return found


def _events(
    path: Path, stays: dict[str, _Stay], items: Mapping[str, tuple[int, ...]], number: str, *error: str
) -> Iterator[tuple[_Stay, str, float, float, str]]:
    """Stay, item, hour, value and channel of every entry that is wanted.

    number: the column of the value; an entry without one is dropped. error: the column that marks an entry as wrong.
    """
    channel = {str(item): name for name, of_channel in items.items() for item in of_channel}
    columns = ("itemid", "hadm_id", "charttime", number, *error)
    for line, (item, admission, moment, value, *wrong) in _rows(path, *columns):
        if item not in channel or admission not in stays or not value or wrong == ["1"]:
            continue
        stay = stays[admission]
        hour = (_moment(moment, path, line) - stay.start).total_seconds() / 3600
        if 0 <= hour <= HOURS:
            yield stay, item, hour, _number(value, path, line), channel[item]


def _rows(path: Path, *columns: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Some columns of a table, row by row, each with the number of its line; names may be in capitals."""
    reader = csv.reader(archives.lines(path))
    try:
        header = [name.lower() for name in next(reader, [])]
        if missing := [name for name in columns if name not in header]:
            raise ValueError(f"{path} has no column {', '.join(missing)}; the tables are described at {_DESCRIBED}")
        chosen = itemgetter(*map(header.index, columns))
        for row in reader:
            if len(row) != len(header):
                raise ValueError(f"{path}, line {reader.line_num}: {len(row)} columns; expected {len(header)}")
            yield reader.line_num, chosen(row)
    except csv.Error as error:
        raise ValueError(f"{path} is not a table of comma-separated values ({error})") from error


def _moment(text: str, path: Path, line: int) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{path}, line {line}: {text!r} is not a date and time") from None


def _number(text: str, path: Path, line: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{path}, line {line}: {text!r} is not a number")
    return number


def _converted(item: str, channel: str, value: float) -> float:
    if item in _FAHRENHEIT:
        return (value - 32) / 1.8
    if channel == "inspired oxygen" and value > 1:  # in per cent
        return value / 100
    return value


def _one_hot(value: str, allowed: tuple[str, ...]) -> list[float]:
    """NaN if the value is none of those: it is unknown."""
    return [float(value == each) for each in allowed] if value in allowed else [math.nan] * len(allowed)
