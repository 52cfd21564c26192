"""PhysioNet/Computing in Cardiology Challenge 2012: the first 48 hours of stays in intensive care, and who died.

The data are described at physionet.org ("Predicting Mortality of ICU Patients", version 1.0.0; Silva et al. 2012) and
free to download under the Open Data Commons Attribution License.
"""

from __future__ import annotations

import csv
import math
import os
from importlib import resources
from pathlib import Path

import numpy as np

from torchcram.strict import reject
from torchcram.timeseries import archives, cache
from torchcram.timeseries.series import UNKNOWN, Sample, Series, Split, assemble, on_grid

SENSORS = (
    *("ALP", "ALT", "AST", "Albumin", "BUN", "Bilirubin", "Cholesterol", "Creatinine", "DiasABP", "FiO2", "GCS"),
    *("Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP", "MechVent", "Mg", "NIDiasABP", "NIMAP", "NISysABP", "Na"),
    *("PaCO2", "PaO2", "Platelets", "RespRate", "SaO2", "SysABP", "Temp", "TroponinI", "TroponinT", "Urine", "WBC"),
    "pH",
)
"""What is measured over time, as in the Raindrop protocol."""

STATICS = ("Age", "Gender=0", "Gender=1", "Height", "ICUType=1", "ICUType=2", "ICUType=3", "ICUType=4", "Weight")
"""What is known on admission."""

_ADMISSION = ("RecordID", "Age", "Gender", "Height", "ICUType", "Weight")
_PLACE = {name: number for number, name in enumerate(SENSORS)}
_DESCRIBED = "physionet.org, challenge-2012 1.0.0"
_OFFICIAL = {
    "Outcomes-a.txt": "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2",
    "Outcomes-b.txt": "1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5",
    "Outcomes-c.txt": "0b32dcb7753c0f18f2f5fde498a28618b8879c5e527ce0dae8ad120dd7e205c9",
}


def load(folder: str | os.PathLike[str], *, sets: str = "abc", kept: Path | None = None) -> Series:
    """All stays of some sets in which something was measured, in the order of their RecordIDs; times in hours.

    folder: holds `set-a.tar.gz` (or the unpacked `set-a`) and `Outcomes-a.txt`, and so for `b` and `c`. The label is
    death in hospital; the other outcomes are never read. A value of -1 is unknown on admission; rows without the
    name of a parameter are dropped; what was measured twice in a minute is averaged. A weight that is measured again
    later is left out, as in the Raindrop protocol.
    """
    if not sets or set(sets) - set("abc") or len(set(sets)) < len(sets):
        reject("sets", sets, "some of the letters a, b and c, each once")
    places = []
    for letter in sets:
        for names, what in (
            ((f"set-{letter}.tar.gz", f"set-{letter}.zip", f"set-{letter}"), f"the records of set {letter}"),
            ((f"Outcomes-{letter}.txt",), f"the outcomes of set {letter}"),
        ):
            places.append(archives.find(folder, names, what=what, described=_DESCRIBED))
    pairs = list(zip(places[::2], places[1::2], strict=True))
    return cache.kept("physionet2012", places, sets, lambda: _read(pairs), kept)


def raindrop(series: Series, number: int) -> Split:
    """One of the five splits by RecordID of Raindrop (Zhang et al. 2022, MIT licence), of all three sets."""
    if number not in range(1, 6):
        reject("split", number, "1 to 5")
    with (
        resources.as_file(resources.files("torchcram.timeseries") / "data" / "raindrop-p12.npz") as file,
        np.load(file, allow_pickle=False) as data,
    ):
        val, test = data[f"val{number}"], data[f"test{number}"]
    rest = np.setdiff1d(series.ids, np.concatenate([val, test]))
    return Split(train=series.select(rest), val=series.select(val), test=series.select(test))


def mtand(series: Series) -> Split:
    """Four fifths of set a to learn from, a fifth of those to choose by, and a fifth to be judged on: 800 patients.

    As in the experiments of mTAND (Shukla and Marlin 2021), shuffled as scikit-learn's `train_test_split` does with
    their seeds; they shuffled records in the order of their own files, so the patients are not the same.
    """
    order = np.random.RandomState(42).permutation(len(series))
    judged = -(-len(series) // 5)
    learned = order[judged:]
    again = np.random.RandomState(11).permutation(len(learned))
    chosen = -(-len(learned) // 5)
    return Split(
        train=series.take(learned[again[chosen:]]),
        val=series.take(learned[again[:chosen]]),
        test=series.take(order[:judged]),
    )


def _read(pairs: list[tuple[Path, Path]]) -> Series:
    samples: list[Sample] = []
    for records, outcomes in pairs:
        archives.check(outcomes, _OFFICIAL)
        died = _outcomes(outcomes)
        found = set()
        for name, data in archives.members(records):
            if name.suffix != ".txt" or not name.stem.isdigit():
                continue
            record = int(name.stem)
            if record not in died:
                raise ValueError(f"{outcomes} has no outcome for record {record} of {records}")
            found.add(record)
            sample = _record(record, died[record], archives.text(data, f"{records}: {name}"), f"{records}: {name}")
            if sample is not None:
                samples.append(sample)
        if missing := died.keys() - found:
            raise ValueError(f"{records} lacks {len(missing)} of {len(died)} records, {min(missing)} for one")
    samples.sort(key=lambda sample: int(sample.id))
    return assemble(samples, channels=SENSORS, static_names=STATICS, classes=("survived", "died"))


def _outcomes(path: Path) -> dict[int, int]:
    """RecordID to whether the patient died in hospital."""
    rows = csv.DictReader(archives.text(path.read_bytes(), path).splitlines())
    wanted = {"RecordID", "In-hospital_death"}
    if missing := wanted - set(rows.fieldnames or ()):
        raise ValueError(f"{path} has no column {', '.join(sorted(missing))}")
    found = {}
    for number, row in enumerate(rows, start=2):
        record, label = row["RecordID"], row["In-hospital_death"]
        if not record.isdigit():
            raise ValueError(f"{path}, line {number}: RecordID is {record!r}; expected a number")
        if label not in ("0", "1"):
            raise ValueError(f"{path}, line {number}: In-hospital_death is {label!r}; allowed: 0 and 1")
        found[int(record)] = int(label)
    return found


def _record(record: int, label: int, text: str, name: str) -> Sample | None:
    """A stay; None if nothing was measured in it."""
    rows = text.splitlines()
    if not rows or rows[0].strip() != "Time,Parameter,Value":
        raise ValueError(f"{name} begins with {rows[0] if rows else 'nothing'!r}; expected Time,Parameter,Value")
    admission = dict.fromkeys(_ADMISSION, np.nan)
    times, channel, value = [], [], []
    for number, row in enumerate(rows[1:], start=2):
        try:
            clock, parameter, written = row.split(",")
            hours, _, minutes = clock.partition(":")
            hour, measured = int(hours) + int(minutes) / 60, float(written)
        except ValueError:
            measured = math.nan
        if not math.isfinite(measured):
            raise ValueError(f"{name}, line {number}: {row!r} is not Time,Parameter,Value")
        if parameter in _PLACE:
            times.append(hour)
            channel.append(_PLACE[parameter])
            value.append(measured)
        elif parameter in admission and hour == 0:
            admission[parameter] = np.nan if measured == UNKNOWN else measured
        elif parameter not in ("", "Weight"):
            raise ValueError(f"{name}, line {number}: {parameter!r} is not a parameter of this data set")
    if not times:
        return None
    stamps, grid = on_grid(np.asarray(times), np.asarray(channel), np.asarray(value), len(SENSORS))
    return Sample(id=record, times=stamps, values=grid, label=label, statics=_statics(admission))


def _statics(admission: dict[str, float]) -> list[float]:
    def whether(name: str, number: int) -> float:
        return np.nan if np.isnan(admission[name]) else float(admission[name] == number)

    return [
        admission["Age"],
        *(whether("Gender", number) for number in (0, 1)),
        admission["Height"],
        *(whether("ICUType", number) for number in (1, 2, 3, 4)),
        admission["Weight"],
    ]
