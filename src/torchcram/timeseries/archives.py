"""Files of a data set, from a folder or an archive, read without ever unpacking anything to disk."""

from __future__ import annotations

import gzip
import os
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from torchcram.files import digest

LARGEST = 1 << 30
"""Bytes that a member of an archive may have: far more than any of these data sets' files."""

_NOT_TEXT = "{name} is not UTF-8 text ({error}); it is damaged, or another kind of file"
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, gzip.BadGzipFile, OSError)


def find(folder: str | os.PathLike[str], names: tuple[str, ...], *, what: str, described: str) -> Path:
    """The first of `names` that is in the folder; if none is, an error that says what to get and where it is told of.

    what: in words, what the files are; described: where a user finds them described.
    """
    base = Path(folder)
    if not base.is_dir():
        raise ValueError(f"{base} is not a folder; it should hold {what} ({described})")
    for name in names:
        if (base / name).exists():
            return base / name
    wanted = " or ".join(names)
    raise ValueError(f"{base} has no {wanted}: {what}, described at {described}; download it and put it there")


def check(path: Path, official: Mapping[str, str]) -> None:
    """Warn if a file is not the official one: copies are often packed anew, so nothing is refused.

    official: SHA-256 by the name of a file, or MD5 where no other was published.
    """
    wanted = official.get(path.name)
    if wanted is not None and digest(path, "md5" if len(wanted) == 32 else "sha256") != wanted:
        warnings.warn(
            f"{path} is not, byte for byte, the official file (its checksum is another); it is read all the same",
            stacklevel=2,
        )


def members(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Name and content of every file in a folder, a tar archive or a zip archive.

    Refused: names that lead outside, links and devices, files beyond any reason, archives that are cut short.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file():
                yield PurePosixPath(file.relative_to(path).as_posix()), file.read_bytes()
        return
    try:
        if zipfile.is_zipfile(path):
            yield from _zipped(path)
        else:
            yield from _tarred(path)
    except _BROKEN as error:
        why = str(error).partition("\n")[0].rstrip(":")  # what every kind of archive says of it would be many lines
        raise ValueError(f"{path} is damaged or cut short ({why}); download it again") from error


def content(path: Path) -> bytes:
    """A file, unpacked if its name says that it is gzipped."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except _BROKEN as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); download it again") from error


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, gzipped or not, one at a time: the file may be larger than memory."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8-sig", newline="")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig", newline="")
        ) as file:
            yield from file
    except UnicodeDecodeError as error:
        raise ValueError(_NOT_TEXT.format(name=path, error=error)) from error
    except _BROKEN as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); download it again") from error


def text(data: bytes, name: object) -> str:
    """UTF-8 text; anything else is an error that names the file."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(_NOT_TEXT.format(name=name, error=error)) from error


def _tarred(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isdir():
                continue
            name = _safe(path, member.name)
            if not member.isreg():
                raise ValueError(f"{path} holds {member.name}, a link or a device; it is not what it should be")
            _bounded(path, member.name, member.size)
            file = archive.extractfile(member)
            assert file is not None
            yield name, file.read()
        assert archive.fileobj is not None
        archive.fileobj.seek(archive.offset)  # where tarfile saw the end: in a whole archive, an empty block
        if len(archive.fileobj.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
            raise EOFError("it has no end")


def _zipped(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            name = _safe(path, member.filename)
            _bounded(path, member.filename, member.file_size)
            yield name, archive.read(member)


def _safe(path: Path, name: str) -> PurePosixPath:
    found = PurePosixPath(name)
    if found.is_absolute() or ".." in found.parts or "\\" in name:
        raise ValueError(f"{path} holds a file named {name!r}, which leads outside the archive; it is not read")
    return found


def _bounded(path: Path, name: str, size: int) -> None:
    if size > LARGEST:
        raise ValueError(f"{path} holds {name} of {size:,} bytes, more than {LARGEST:,}; it is not what it should be")
