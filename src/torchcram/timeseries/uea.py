"""Data sets of the UEA archive of multivariate series, in the `.ts` format, with their official split.

The archive is described at timeseriesclassification.com (Bagnall et al. 2018). Its series are regular, and `drop` makes
them irregular. A worked example, two samples of two dimensions:

    @problemName Tiny
    @timeStamps false
    @univariate false
    @dimensions 2
    @equalLength false
    @classLabel true calm wild
    @data
    0.5,0.6,0.7:1,?,3:calm
    0.1,0.9:4,5:wild
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchcram.strict import check_integer, check_number, reject
from torchcram.timeseries import archives, cache
from torchcram.timeseries.series import Array, Sample, Series, Split, assemble

_KEYS = (
    *("problemname", "timestamps", "missing", "univariate", "dimension", "dimensions", "equallength", "serieslength"),
    *("classlabel", "targetlabel"),
)
_DESCRIBED = "timeseriesclassification.com"


def load(
    folder: str | os.PathLike[str], name: str, *, val: float = 0.2, seed: int = 0, kept: Path | None = None
) -> Split:
    """The official training and test samples; a share `val` of the training samples of each class is to choose by.

    folder: holds `NAME/NAME_TRAIN.ts` and `NAME/NAME_TEST.ts`, or these files themselves. Times are 0, 1, 2 and so on;
    a `?` is not measured. Every sample is a group of its own.
    """
    if not re.fullmatch(r"\w+", name):
        reject("name", name, "the name of a data set, such as JapaneseVowels")
    check_number("val", val, 0, 0.5)
    official, test = (_part(folder, name, part, kept) for part in ("TRAIN", "TEST"))
    if (official.channels, official.classes) != (test.channels, test.classes):
        raise ValueError(f"the training and the test samples of {name} differ in their dimensions or classes")
    chosen = _stratified(official.labels, val, seed)
    return Split(train=official.take(np.flatnonzero(~chosen)), val=official.take(np.flatnonzero(chosen)), test=test)


def drop(series: Series, share: float, seed: int = 0) -> Series:
    """The same samples without that share of their time stamps, drawn at random for each; at least one stays.

    What is drawn depends on the seed and on the name and length of a sample, not on the other samples.
    """
    check_number("share", share, 0, 1)
    check_integer("seed", seed, 0)
    rows = []
    for sample, length in enumerate(series.lengths.tolist()):
        random = np.random.default_rng([seed, zlib.crc32(str(series.ids[sample]).encode())])
        stay = max(1, length - round(share * length))
        rows.append(series.offsets[sample] + np.sort(random.permutation(length)[:stay]))
    left = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
    return replace(
        series,
        offsets=np.concatenate([[0], np.cumsum([len(each) for each in rows])]).astype(np.int64),
        times=series.times[left],
        values=series.values[left],
        labels=series.labels[left] if series.per_step else series.labels,
    )


def _part(folder: str | os.PathLike[str], name: str, part: str, kept: Path | None) -> Series:
    file = f"{name}_{part}.ts"
    what = f"the samples of {name} in the .ts format"
    path = archives.find(folder, (f"{name}/{file}", file), what=what, described=_DESCRIBED)
    return cache.kept(f"uea-{name}-{part.lower()}", [path], None, lambda: _read(path, part.lower()), kept)


def _stratified(labels: Array, share: float, seed: int) -> Array:
    """Which samples are chosen: of each class that share, so up to a half never all of a class."""
    chosen = np.zeros(len(labels), dtype=bool)
    random = np.random.default_rng(seed)
    for label in np.unique(labels):
        of_class = random.permutation(np.flatnonzero(labels == label))
        chosen[of_class[: round(share * len(of_class))]] = True
    return chosen


def _read(path: Path, part: str) -> Series:
    lines = archives.text(archives.content(path), path).splitlines()
    header, begin = _header(lines, path)
    classes = _classes(header, path)
    dimensions = _dimensions(header, path)
    length = _length(header, path)
    samples: list[Sample] = []
    for number, line in enumerate(lines[begin:], start=begin + 1):
        if not line.strip() or line.startswith(("#", "%")):
            continue
        place = f"{path}, line {number}"
        *columns, label = line.strip().split(":")
        if len(columns) != dimensions:
            raise ValueError(f"{place}: {len(columns)} dimensions and a label; the header tells of {dimensions}")
        if label.strip() not in classes:
            raise ValueError(f"{place}: the label is {label.strip()!r}; the header tells of {', '.join(classes)}")
        values = _values(columns, length, place)
        measured = np.flatnonzero(~np.isnan(values).all(1))
        if not len(measured):
            raise ValueError(f"{place}: nothing was measured in this sample")
        samples.append(
            Sample(
                id=f"{part}:{len(samples)}",
                times=measured.astype(np.float64),
                values=values[measured],
                label=classes.index(label.strip()),
            )
        )
    if not samples:
        raise ValueError(f"{path} has no samples after @data")
    return assemble(samples, channels=[f"dimension {number}" for number in range(dimensions)], classes=classes)


def _header(lines: list[str], path: Path) -> tuple[dict[str, list[str]], int]:
    """Words after each @key, in small letters but for names of classes, and the number of lines up to @data."""
    header: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith(("#", "%")):
            continue
        key = words[0].lower().removeprefix("@")
        if not words[0].startswith("@") or key not in (*_KEYS, "data"):
            raise ValueError(f"{path}, line {number}: {line[:40]!r} is not part of a .ts header; see {_DESCRIBED}")
        if key == "data":
            return header, number
        header[key] = words[1:] if key == "classlabel" else line.lower().split()[1:]
    raise ValueError(f"{path} has no @data; it is cut short, or not a .ts file as described at {_DESCRIBED}")


def _classes(header: dict[str, list[str]], path: Path) -> list[str]:
    if header.get("timestamps", ["false"]) != ["false"]:
        raise ValueError(f"{path} has time stamps of its own (@timeStamps), which are not read")
    told, *classes = header.get("classlabel", ["false"]) or ["false"]
    if told.lower() != "true" or not classes:
        raise ValueError(f"{path} tells of no classes (@classLabel true ...); only those to be classified are read")
    return classes


def _dimensions(header: dict[str, list[str]], path: Path) -> int:
    written = header.get("dimensions") or header.get("dimension")
    if written is None and header.get("univariate") == ["true"]:
        return 1
    return _whole(written, "@dimensions", path)


def _length(header: dict[str, list[str]], path: Path) -> int | None:
    """What every sample has, if the header tells."""
    if header.get("equallength") != ["true"] or "serieslength" not in header:
        return None
    return _whole(header["serieslength"], "@seriesLength", path)


def _whole(words: list[str] | None, name: str, path: Path) -> int:
    if words is None or len(words) != 1 or not words[0].isdecimal() or int(words[0]) < 1:
        raise ValueError(f"{path}: {name} is {' '.join(words or ['not there'])}; expected a number of at least 1")
    return int(words[0])


def _values(columns: list[str], length: int | None, place: str) -> Array:
    """[time stamps, C] of the text of each dimension."""
    found: list[list[float]] = []
    for number, column in enumerate(columns):
        try:
            values = [np.nan if text.strip() == "?" else float(text) for text in column.split(",")]
        except ValueError as error:
            raise ValueError(f"{place}: dimension {number} has something that is not a number ({error})") from None
        if np.isinf(values).any():
            raise ValueError(f"{place}: dimension {number} has a value that is not finite")
        expected = length or (len(found[0]) if found else len(values))
        if len(values) != expected:
            raise ValueError(f"{place}: dimension {number} has {len(values)} values; expected {expected}")
        found.append(values)
    return np.asarray(found).T
