"""Text files as documents, and these as windows of tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
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


def read(path: str | os.PathLike[str]) -> str:
    """All of a text file, which may be packed as `.xz`."""
    try:
        return unpacked(path).decode("utf-8")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no text file {os.fspath(path)}") from error
    except IsADirectoryError as error:
        raise IsADirectoryError(f"{os.fspath(path)} is a folder; give the text files in it one by one") from error
    except OSError as error:
        raise OSError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)} is not text in UTF-8: {error}") from error


def documents(path: str | os.PathLike[str]) -> list[Document]:
    """Those of a text file: parted by lines `<|endoftext|>`, or by WikiText's titles."""
    file, text = Path(path), read(path)
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
    """[W]: the document each is of, in rising order."""
    chosen: Tensor | None = None
    """[W]: which of its document's windows each is, in rising order; None: all of them are there."""

    @property
    def place(self) -> Tensor:
        """[W]: which of its document's windows each is."""
        if self.chosen is not None:
            return self.chosen
        return torch.arange(len(self)) - torch.searchsorted(self.owner, self.owner)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, which: Tensor) -> Windows:
        """Those that a mask or numbers name."""
        return Windows(self.tokens[which], self.owner[which], self.place[which])

    def batches(self, size: int, device: torch.device | str) -> Iterator[Tensor]:
        """[B, N] each, in order."""
        for begin in range(0, len(self), size):
            yield self.tokens[begin : begin + size].to(device)

    def some(self, tokens: int | None, seed: int = 0) -> Windows:
        """Windows of so many tokens at most, or one: drawn evenly from all of them, so from every long document."""
        count = len(self) if tokens is None else max(1, tokens // self.tokens.shape[1])
        if count >= len(self):
            return self
        edges = torch.arange(count + 1) * len(self) // count
        chance = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return self[edges[:-1] + (chance * edges.diff()).long()]


def windows(
    texts: Sequence[Document], tokenizer: Tokenizer, length: int, most: int | None = None, seed: int = 0
) -> Windows:
    """Documents cut into windows, of which some are drawn if they have more than `most` tokens.

    What is left over at the end of a document is dropped. Every window begins with the tokenizer's first token, if it
    has one.
    """
    first = torch.tensor([] if tokenizer.first is None else [tokenizer.first], dtype=torch.long)
    size = length - len(first)
    cut = []
    for numbers in tokenizer.encode_all([document.text for document in texts]):
        # Byte by byte, as numbers of Python, a large file would take minutes.
        found = torch.frombuffer(bytearray(numbers), dtype=torch.uint8) if isinstance(numbers, bytes) else numbers
        found = torch.as_tensor(found, dtype=torch.long)
        cut.append(found[: len(found) // size * size].view(-1, size))
    counts = torch.tensor([len(rows) for rows in cut])
    if not counts.sum():
        files = ", ".join(dict.fromkeys(document.name.rpartition(":")[0] or document.name for document in texts))
        raise ValueError(
            f"no text is as long as one window of {length} tokens in {files}; give more of it, or a smaller --window"
        )
    rows = torch.cat([first.expand(int(counts.sum()), -1), torch.cat(cut)], dim=1)
    return Windows(rows, torch.arange(len(cut)).repeat_interleave(counts)).some(most, seed)
