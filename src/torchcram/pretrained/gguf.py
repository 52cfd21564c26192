"""GGUF files: what they say of a model, and its weights as float32.

The format (github.com/ggml-org/ggml, docs/gguf.md): a header, metadata, where each tensor lies, and then the tensors,
most of them in blocks of a few bits a weight that share scales.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
_MOST = 1 << 32  # entries of a list, or bytes of a word: more is damage


class _Kind(NamedTuple):
    """How the weights of a tensor are written: so many in a block of so many bytes, and how to read these."""

    name: str
    weights: int
    size: int
    decode: Callable[[Array], Array]
    """[blocks, size] uint8 to [blocks, weights] float32."""


class _Place(NamedTuple):
    shape: tuple[int, ...]
    kind: _Kind
    begin: int


@dataclass(frozen=True, eq=False)
class Gguf(Mapping[str, Array]):
    """Weights by name, read when they are asked for, in PyTorch's order of dimensions; and metadata."""

    path: Path
    metadata: Mapping[str, Any]
    places: Mapping[str, _Place]
    data: mmap.mmap

    def __getitem__(self, name: str) -> Array:
        shape, kind, begin = self.places[name]
        blocks = math.prod(shape) // kind.weights
        raw = np.frombuffer(self.data, dtype=np.uint8, count=blocks * kind.size, offset=begin)
        with np.errstate(over="ignore", invalid="ignore"):  # damage shows in the numbers, where it is looked for
            return kind.decode(raw.reshape(blocks, kind.size)).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def read(path: str | os.PathLike[str]) -> Gguf:
    """Open a file; a damaged one is refused."""
    file = Path(path)
    with file.open("rb") as handle:
        if handle.read(4) != _MAGIC:
            raise ValueError(
                f"{file} is not a GGUF file: it does not begin with {_MAGIC.decode()}; get it again, or give "
                "another file"
            )
        data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _read(file, data)
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{file} is damaged or cut short: its header cannot be read; get it again") from error


def _read(path: Path, data: mmap.mmap) -> Gguf:
    reader = _Reader(data, len(_MAGIC))
    version = reader.scalar("I")
    if version not in _VERSIONS:
        raise ValueError(
            f"{path} is of GGUF version {version}; known: {', '.join(map(str, _VERSIONS))}. If it is damaged, get it "
            "again; else give the model as a Hugging Face folder"
        )
    tensors, entries = reader.scalar("Q"), reader.scalar("Q")
    metadata = {}
    for _ in range(entries):
        name = reader.word()
        metadata[name] = reader.value(reader.scalar("I"))
    found = []
    for _ in range(tensors):
        name, dimensions = reader.word(), reader.scalar("I")
        shape = tuple(reader.scalar("Q") for _ in range(dimensions))[::-1]
        number, offset = reader.scalar("I"), reader.scalar("Q")
        if number not in _KINDS:
            known = ", ".join(kind.name for kind in _KINDS.values())
            raise ValueError(
                f"{path}: {name} is written in a way (type {number}) that is not known; known: {known}. "
                "Get it written in one of these, or as a Hugging Face folder"
            )
        found.append((name, shape, _KINDS[number], offset))
    align = metadata.get("general.alignment", 32)
    if not isinstance(align, int) or align < 1:
        raise ValueError(f"{path} is damaged: its alignment is {align!r}; get it again")
    begin = math.ceil(reader.at / align) * align
    places = {}
    for name, shape, kind, offset in found:
        count = math.prod(shape)
        size = count // kind.weights * kind.size
        if not shape or shape[-1] % kind.weights or begin + offset + size > len(data):
            raise ValueError(f"{path} is damaged or cut short: {name} {list(shape)} is not whole; get it again")
        places[name] = _Place(shape, kind, begin + offset)
    return Gguf(path, metadata, places, data)


class _Reader:
    """Reads what comes next."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data, self.at = data, at

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def word(self) -> str:
        size = self._count()
        if self.at + size > len(self.data):
            raise struct.error(f"a word of {size} bytes at {self.at}")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.word()
        if kind == _LIST:
            inner, count = self.scalar("I"), self._count()
            if inner in _SCALARS:
                form = f"<{count}{_SCALARS[inner]}"
                values = struct.unpack_from(form, self.data, self.at)
                self.at += struct.calcsize(form)
                return list(values)
            return [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise struct.error(f"a value of type {kind} at {self.at}")
        return self.scalar(_SCALARS[kind])

    def _count(self) -> int:
        count: int = self.scalar("Q")
        if count > _MOST:
            raise struct.error(f"a length of {count} at {self.at}")
        return count


def _halves(block: Array, first: int) -> Array:
    """[blocks, 1] float32: a half-precision number that begins at a byte."""
    return np.ascontiguousarray(block[:, first : first + 2]).view(np.float16).astype(np.float32)


def _nibbles(block: Array) -> Array:
    """[blocks, 2 n]: of n bytes the low halves, then the high ones."""
    return np.concatenate([block & 15, block >> 4], axis=1)


def _bits(block: Array, first: int) -> Array:
    """[blocks, 32]: of four bytes every bit, the lowest first, as 0 or 16."""
    return np.unpackbits(block[:, first : first + 4], axis=1, bitorder="little") << 4


def _plain(dtype: npt.DTypeLike) -> Callable[[Array], Array]:
    return lambda block: np.ascontiguousarray(block).view(dtype).astype(np.float32)


def _bfloat16(block: Array) -> Array:
    wide = np.ascontiguousarray(block).view(np.uint16).astype(np.uint32) << 16
    return wide.view(np.float32)


def _q4_0(block: Array) -> Array:
    return _halves(block, 0) * (_nibbles(block[:, 2:]).astype(np.float32) - 8)


def _q4_1(block: Array) -> Array:
    return _halves(block, 0) * _nibbles(block[:, 4:]) + _halves(block, 2)


def _q5_0(block: Array) -> Array:
    return _halves(block, 0) * ((_nibbles(block[:, 6:]) | _bits(block, 2)).astype(np.float32) - 16)


def _q5_1(block: Array) -> Array:
    return _halves(block, 0) * (_nibbles(block[:, 8:]) | _bits(block, 4)) + _halves(block, 2)


def _q8_0(block: Array) -> Array:
    return _halves(block, 0) * np.ascontiguousarray(block[:, 2:]).view(np.int8)


def _scales(packed: Array) -> tuple[Array, Array]:
    """[blocks, 8] each: scales and offsets of six bits, out of twelve bytes."""
    low, high, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([low & 63, (rest & 15) | ((low >> 6) << 4)], axis=1)
    offset = np.concatenate([high & 63, (rest >> 4) | ((high >> 6) << 4)], axis=1)
    return scale.astype(np.float32), offset.astype(np.float32)


def _by_eight(block: Array, weights: Array) -> Array:
    """Eight groups of 32 weights, [blocks, 8, 32], with a scale and an offset each."""
    scale, offset = _scales(block[:, 4:16])
    scaled = (_halves(block, 0) * scale)[..., None] * weights - (_halves(block, 2) * offset)[..., None]
    return np.asarray(scaled.reshape(len(block), -1), dtype=np.float32)


def _paired(block: Array) -> Array:
    """[blocks, 8, 32]: of each 32 bytes the low halves, then the high ones."""
    four = block.reshape(len(block), 4, 1, 32)
    return np.concatenate([four & 15, four >> 4], axis=2).reshape(len(block), 8, 32)


def _q4_k(block: Array) -> Array:
    return _by_eight(block, _paired(block[:, 16:]))


def _q5_k(block: Array) -> Array:
    fifth = (block[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return _by_eight(block, _paired(block[:, 48:]) | (fifth << 4))


def _q6_k(block: Array) -> Array:
    # Two halves of 128 weights: four groups of 32, two bits of each in the same 32 bytes.
    low = block[:, :128].reshape(-1, 2, 2, 32)
    low = np.concatenate([low & 15, low >> 4], axis=2)
    high = block[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    weights = (low | (high << 4)).astype(np.float32).reshape(len(block), 16, 16) - 32
    scale = np.ascontiguousarray(block[:, 192:208]).view(np.int8) * _halves(block, 208)
    return np.asarray((scale[..., None] * weights).reshape(len(block), 256), dtype=np.float32)


_KINDS = {
    0: _Kind("F32", 1, 4, _plain(np.float32)),
    1: _Kind("F16", 1, 2, _plain(np.float16)),
    2: _Kind("Q4_0", 32, 18, _q4_0),
    3: _Kind("Q4_1", 32, 20, _q4_1),
    6: _Kind("Q5_0", 32, 22, _q5_0),
    7: _Kind("Q5_1", 32, 24, _q5_1),
    8: _Kind("Q8_0", 32, 34, _q8_0),
    12: _Kind("Q4_K", 256, 144, _q4_k),
    13: _Kind("Q5_K", 256, 176, _q5_k),
    14: _Kind("Q6_K", 256, 210, _q6_k),
    30: _Kind("BF16", 1, 2, _bfloat16),
}
