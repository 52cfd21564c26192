"""Data sets kept as plain arrays once they were read: opened at once, and read from disk only where used."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from torchcram import files
from torchcram.timeseries.series import Series

_VERSION = 1  # of what loaders make of files; raised whenever that changes
_LARGE = 1 << 28  # bytes beyond which reading a file whole takes too long
_ARRAYS = tuple(f.name for f in dataclasses.fields(Series) if f.type == "Array")
_WORDS = tuple(f.name for f in dataclasses.fields(Series) if f.name not in _ARRAYS)


def kept(
    name: str, sources: Iterable[Path], settings: object, make: Callable[[], Series], folder: Path | None = None
) -> Series:
    """What `make` returns, kept in a folder under a name that depends on the files and settings it is made of.

    Arrays come back mapped from their files. A folder appears whole or not at all.
    """
    base = folder if folder is not None else files.cache()
    told = json.dumps([_VERSION, settings, [[path.name, _fingerprint(path)] for path in sources]])
    place = base / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    if not place.is_dir():
        made = make()
        base.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=base))
        try:
            _write(made, temporary)
            os.rename(temporary, place)
        except OSError:
            if not place.is_dir():  # else another process was first, with the same
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return _read(place)


def _fingerprint(path: Path) -> str:
    """What tells a file from another: its content; of a folder or of a large file, sizes and times of change."""
    if path.is_file() and path.stat().st_size <= _LARGE:
        return files.digest(path)
    found = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    told = [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in found]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _write(series: Series, place: Path) -> None:
    for name in _ARRAYS:
        np.save(place / f"{name}.npy", getattr(series, name), allow_pickle=False)
    words = {name: list(getattr(series, name)) for name in _WORDS}
    (place / "names.json").write_text(json.dumps(words), encoding="utf-8")


def _read(place: Path) -> Series:
    try:
        arrays: dict[str, Any] = {
            name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS
        }
        words = json.loads((place / "names.json").read_text(encoding="utf-8"))
        return Series(**arrays | {name: tuple(words[name]) for name in _WORDS})
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise ValueError(f"{place} is damaged ({error}); delete it, and it is made anew") from error
