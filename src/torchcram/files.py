"""Files that are whole or not there, their checksums, and where to keep what can be made anew."""

from __future__ import annotations

import hashlib
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write to the path given out: at the end it takes the place of `path` in one step; on an error nothing changes.

    The name given out differs between processes, so that two writers cannot spoil each other's file: the later wins.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def digest(path: Path, kind: str = "sha256") -> str:
    """Checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def cache() -> Path:
    """Where data sets and models are kept: `TORCHCRAM_CACHE`, or the user's folder for such things."""
    named = os.environ.get("TORCHCRAM_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
    return Path(named) if named else base / "torchcram"


def unpacked(path: str | os.PathLike[str]) -> bytes:
    """What a file holds, one that is packed as `.xz` unpacked."""
    file = Path(path)
    data = file.read_bytes()
    if file.suffix != ".xz":
        return data
    try:
        return lzma.decompress(data)
    except lzma.LZMAError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
