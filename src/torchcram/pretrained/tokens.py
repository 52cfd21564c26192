"""From text to tokens, for models that come without a Hugging Face tokenizer."""

from __future__ import annotations

import functools
import heapq
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torchcram.pretrained.gguf import Gguf


class Tokenizer(Protocol):
    """Turns text into tokens."""

    first: int | None
    """What a text begins with, for models that need it."""

    def encode(self, text: str) -> Sequence[int]:
        """The tokens of a text, without any that it does not itself have."""
        ...

    def encode_all(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """Those of several texts, one after the other."""
        ...


class Bytes:
    """A token a byte."""

    first: int | None = None

    def encode(self, text: str) -> bytes:
        """The bytes of a text."""
        return text.encode()

    def encode_all(self, texts: Sequence[str]) -> Iterator[bytes]:
        """Those of several texts."""
        return map(self.encode, texts)


class Pieces:
    """A vocabulary of pieces with scores: of neighbours, those merge first whose piece has the highest score."""

    def __init__(self, pieces: Sequence[bytes], scores: Sequence[float], first: int | None = 1) -> None:
        self.first = first
        self.scores = scores
        self.numbers = {piece: number for number, piece in reversed(list(enumerate(pieces)))}
        # Where a space only ever begins a piece, words merge by themselves.
        self._parts = re.compile(rb" ?[^ ]+| " if not any(b" " in piece[1:] for piece in pieces) else rb"(?s).+")
        self._merged = functools.lru_cache(maxsize=1 << 16)(self._merge)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, before which a space is put."""
        if not text:
            return []
        return [number for part in self._parts.findall(b" " + text.encode()) for number in self._merged(part)]

    def encode_all(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Those of several texts."""
        return map(self.encode, texts)

    def _merge(self, text: bytes) -> tuple[int, ...]:
        pieces = [piece for letter in text.decode() for piece in self._letter(letter.encode())]
        after = list(range(1, len(pieces) + 1))  # the place of the next piece
        before = list(range(-1, len(pieces) - 1))
        best: list[tuple[float, int, bytes]] = []  # pairs that could merge: the highest score first, then the leftmost

        def offer(place: int) -> None:
            if place >= 0 and after[place] < len(pieces):
                both = pieces[place] + pieces[after[place]]
                if (number := self.numbers.get(both)) is not None:
                    heapq.heappush(best, (-self.scores[number], place, both))

        for place in range(len(pieces)):
            offer(place)
        while best:
            _, place, both = heapq.heappop(best)
            gone = after[place]
            # A pair of which a part has merged since is no longer there.
            if not pieces[place] or gone == len(pieces) or pieces[place] + pieces[gone] != both:
                continue
            pieces[place], pieces[gone] = both, b""
            after[place] = after[gone]
            if after[place] < len(pieces):
                before[after[place]] = place
            offer(before[place])
            offer(place)
        return tuple(self._number(piece) for piece in pieces if piece)

    def _letter(self, letter: bytes) -> list[bytes]:
        return [letter] if letter in self.numbers else [bytes([byte]) for byte in letter]

    def _number(self, piece: bytes) -> int:
        return self.numbers.get(piece, 3 + piece[0])


def read_pieces(path: str | os.PathLike[str], size: int) -> Pieces:
    """A llama2.c vocabulary of `size` pieces."""
    data = Path(path).read_bytes()
    at, pieces, scores = 4, [], []
    try:
        for _ in range(size):
            score, length = struct.unpack_from("<fi", data, at)
            pieces.append(data[at + 8 : at + 8 + length])
            scores.append(score)
            at += 8 + length
    except struct.error as error:
        raise ValueError(f"{path} is damaged, or not a vocabulary of {size} pieces; get it again") from error
    if at != len(data):
        raise ValueError(f"{path} is damaged, or not a vocabulary of {size} pieces; get it again")
    return Pieces(pieces, scores)


_TOGETHER = 32  # texts


class Merges:
    """A Hugging Face tokenizer, or one made of what a GGUF file says."""

    def __init__(self, tokenizer: Any, first: int | None) -> None:
        self.tokenizer, self.first = tokenizer, first

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; what looks like a special token in it is text as well."""
        (found,) = self.encode_all([text])
        return found

    def encode_all(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Those of several texts, some at a time: the library then uses all cores."""
        for begin in range(0, len(texts), _TOGETHER):
            some = list(texts[begin : begin + _TOGETHER])
            if hasattr(self.tokenizer, "encode_batch"):
                yield from (list(found.ids) for found in self.tokenizer.encode_batch(some, add_special_tokens=False))
            else:
                apart = {"split_special_tokens": True} if hasattr(self.tokenizer, "split_special_tokens") else {}
                yield from self.tokenizer(some, add_special_tokens=False, **apart)["input_ids"]


_DIGITS_APART = {"smollm", "refact", "command-r", "codeshell", "starcoder"}


def from_gguf(file: Gguf) -> Merges:
    """The tokenizer that a file has in its metadata: merges of bytes."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    told: Mapping[str, Any] = file.metadata
    kind, before = told.get("tokenizer.ggml.model"), told.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or before not in _DIGITS_APART | {"default", "gpt-2"}:
        raise ValueError(
            f"{file.path} has a tokenizer ({kind}, {before}) that is not known; give a Hugging Face folder instead"
        )
    try:
        vocabulary = {word: number for number, word in enumerate(told["tokenizer.ggml.tokens"])}
        pairs = [tuple(merge.split(" ", 1)) for merge in told["tokenizer.ggml.merges"]]
        tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    except Exception as error:  # the library's own are of no other kind
        raise ValueError(f"{file.path} has a damaged tokenizer ({error}); get it again") from error
    digits = [pre_tokenizers.Digits(individual_digits=True)] if before in _DIGITS_APART else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    first = told.get("tokenizer.ggml.bos_token_id") if told.get("tokenizer.ggml.add_bos_token") else None
    if first is not None:
        word = tokenizer.id_to_token(first)
        if word is None:
            raise ValueError(
                f"{file.path} is damaged: texts begin with the token {first}, which it has not; get it again"
            )
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{word} $A", special_tokens=[(word, first)])
    return Merges(tokenizer, first)
