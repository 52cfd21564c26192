"""Text files as documents, and these as windows of tokens."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchcram.files import unpacked
from torchcram.pretrained.tokens import Tokenizer

END = "<|endoftext|>"
"""A line that parts documents of a file."""

_END = re.compile(rf"(?m)^{re.escape(END)}[ \r]*$\n?")
_TITLE = re.compile(r"(?m)^(?= = [^=].*[^=] = $)")  # of an article in WikiText's files


@dataclass(frozen=True)
class Document:
    """Text that belongs together."""

    name: str
    text: str


def documents(path: str | os.PathLike[str]) -> list[Document]:
    """Those of a text file, which may be packed as `.xz`: parted by lines `<|endoftext|>`, or by WikiText's titles."""
    file = Path(path)
    try:
        text = unpacked(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not text in UTF-8: {error}") from error
    parts = (_END if _END.search(text) else _TITLE).split(text)
    kept = [part for part in parts if part.strip()]
    if not kept:
        raise ValueError(f"{file} has no text in it")
    return [Document(f"{file.name}:{number}", part) for number, part in enumerate(kept, start=1)]


@dataclass(frozen=True, eq=False)
class Windows:
    """Pieces of documents, all of the same length."""

    tokens: Tensor
    """[W, N] int64"""
    owner: Tensor
    """[W]: the document each is of."""
    names: Sequence[str]
    """Of the documents."""

    def __len__(self) -> int:
        return len(self.tokens)

    def batches(self, size: int, device: torch.device | str) -> Iterator[Tensor]:
        """[B, N] each, in order."""
        for begin in range(0, len(self), size):
            yield self.tokens[begin : begin + size].to(device)


def windows(texts: Iterable[Document], tokenizer: Tokenizer, length: int, most: int | None = None) -> Windows:
    """Documents cut into windows; what is left over at their ends is dropped, and so are windows beyond `most` tokens.

    Every window begins with the tokenizer's first token, if it has one.
    """
    first = [] if tokenizer.first is None else [tokenizer.first]
    size = length - len(first)
    rows: list[list[int]] = []
    owner: list[int] = []
    names: list[str] = []
    for document in texts:
        if most is not None and len(rows) * length >= most:
            break
        found = tokenizer.encode(document.text)
        cut = [first + found[begin : begin + size] for begin in range(0, len(found) - size + 1, size)]
        if cut:
            rows += cut
            owner += itertools.repeat(len(names), len(cut))
            names.append(document.name)
    if not rows:
        raise ValueError(f"no text is as long as one window of {length} tokens; give more, or smaller windows")
    count = len(rows) if most is None else max(1, min(len(rows), most // length))
    return Windows(torch.tensor(rows[:count]), torch.tensor(owner[:count]), tuple(names))
