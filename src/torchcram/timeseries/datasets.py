"""The data sets by name, each with its splits into what is learned from, chosen by and judged on."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchcram.strict import reject
from torchcram.timeseries import activity, mimic, physionet, uea, wearable
from torchcram.timeseries.series import Split
from torchcram.timeseries.windows import windows

Folder = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set and its protocol."""

    about: str
    splits: int
    """How many there are; they are numbered from 1."""
    make: Callable[[Folder, int, Path | None], Split]
    """Of a folder with its files, one split; the path says where to keep what was read (default: `files.cache`)."""


def _uea(name: str) -> DataSet:
    def make(folder: Folder, number: int, kept: Path | None) -> Split:
        parts = uea.load(folder, name, kept=kept)
        return Split(
            train=uea.drop(parts.train, 0.5, seed=number),
            val=uea.drop(parts.val, 0.5, seed=number),
            test=uea.drop(parts.test, 0.5, seed=number),
        )

    return DataSet(about=f"UEA {name}, half of the time stamps dropped at random", splits=5, make=make)


DATASETS: Mapping[str, DataSet] = types.MappingProxyType(
    {
        "p12": DataSet(
            about="PhysioNet 2012, death in hospital, the Raindrop protocol",
            splits=5,
            make=lambda folder, number, kept: physionet.raindrop(physionet.load(folder, kept=kept), number),
        ),
        "p12-mtand": DataSet(
            about="PhysioNet 2012, set a, death in hospital, the mTAND protocol",
            splits=1,
            make=lambda folder, number, kept: physionet.mtand(physionet.load(folder, sets="a", kept=kept)),
        ),
        "wearable": DataSet(
            about="what older people do, reading by reading of a batteryless sensor; stretches of trials left out",
            splits=5,
            make=lambda folder, number, kept: wearable.split(wearable.load(folder, kept=kept), number),
        ),
        "wearable-sex": DataSet(
            about="the same; women left out, then men, so that nobody is in two parts",
            splits=2,
            make=lambda folder, number, kept: wearable.by_sex(wearable.load(folder, kept=kept), "FM"[number - 1]),
        ),
        "activity": DataSet(
            about="what people do, time stamp by time stamp; windows at random, as in the literature",
            splits=1,
            make=lambda folder, number, kept: activity.window_split(windows(activity.load(folder, kept=kept))),
        ),
        "activity-person": DataSet(
            about="the same; one person left out",
            splits=5,
            make=lambda folder, number, kept: activity.leave_one_person_out(
                activity.load(folder, kept=kept), "ABCDE"[number - 1]
            ),
        ),
        "mimic3": DataSet(
            about="MIMIC-III, death in hospital after 48 hours; patients left out",
            splits=1,
            make=lambda folder, number, kept: mimic.split(mimic.load(folder, kept=kept)),
        ),
        "japanese-vowels": _uea("JapaneseVowels"),
        "basic-motions": _uea("BasicMotions"),
    }
)
"""By name."""


def split(name: str, folder: Folder, number: int = 1, kept: Path | None = None) -> Split:
    """One split of a data set, from the folder that holds its files."""
    if name not in DATASETS:
        reject("data set", name, ", ".join(DATASETS))
    if number not in range(1, DATASETS[name].splits + 1):
        reject("split", number, f"1 to {DATASETS[name].splits} for {name}")
    return DATASETS[name].make(folder, number, kept)
