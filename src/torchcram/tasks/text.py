"""The next byte of a text: real language, where much recurs and some has to be looked up."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcram.config import InputConfig, OutputConfig, TokenField
from torchcram.draws import Draws
from torchcram.files import unpacked
from torchcram.strict import StrictConfig, check_integer, reject
from torchcram.tasks.task import HELD_OUT, Examples

_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class TextConfig(StrictConfig):
    """Which texts, and how much of them at once."""

    train: str = ""
    """A file to learn from; it may be packed as `.xz`."""
    held_out: str = ""
    """Another one, which nothing is learned from."""
    length: int = 512
    """N, bytes of a sequence."""

    def __post_init__(self) -> None:
        check_integer("task.length", self.length, 2)
        for name in ("train", "held_out"):
            given = getattr(self, name)
            if not isinstance(given, str) or not given:
                reject(f"task.{name}", given, f"a text file: --set task.{name}=FILE")
            if not Path(given).is_file():
                why = "that is no file" if Path(given).exists() else "there is no such file"
                raise ValueError(f"task.{name} = {given!r}: {why}; give a text file: --set task.{name}=FILE")


class Text:
    """Passages of a file, each byte to be told from those before it.

    Kinds are of the byte that comes next: the `first` letter of a word, a letter `inside` one, or what `parts` words.
    """

    name = "text"
    main = "token"
    weights: Mapping[str, float] = {"token": 1.0}
    patterns = 0
    kinds = ("parts", "first", "inside")

    def __init__(self, config: TextConfig) -> None:
        self.config = config
        for path in (config.train, config.held_out):
            if len(_bytes(path)) <= config.length:
                raise ValueError(f"{path} has fewer than the {config.length + 1} bytes that a sequence needs")

    @property
    def inputs(self) -> InputConfig:
        """Bytes."""
        return InputConfig(tokens=(TokenField(name="token", vocabulary=_BYTES),))

    @property
    def outputs(self) -> tuple[OutputConfig, ...]:
        """The next byte."""
        return (OutputConfig(name="token", kind="labels", size=_BYTES),)

    @property
    def length(self) -> int:
        """N"""
        return self.config.length

    def batch(self, *, seed: int, step: int, rows: range, device: torch.device | str = "cpu") -> Examples:
        """Passages from anywhere in the file to learn from; for seeds from `HELD_OUT` on, in the other one."""
        text = _on(self.config.train if seed < HELD_OUT else self.config.held_out, str(device))
        number = torch.arange(rows.start, rows.stop, rows.step, device=device)
        draws = Draws(seed=seed, step=step, rows=number).integers(0, 2)
        begin = (draws[:, :1] * (1 << 20) + draws[:, 1:] % (1 << 20)) % (len(text) - self.length)
        passage = text[begin + torch.arange(self.length + 1, device=device)].long()
        tokens, target = passage[:, :-1], passage[:, 1:]
        letter = _LETTER.to(device)
        kind = letter[target] * (1 + letter[tokens])
        return Examples(
            inputs={"token": tokens},
            dt=torch.ones(tokens.shape, device=device),
            targets={"token": target},
            kind=kind.to(torch.int8),
            pattern=torch.full_like(tokens, -1),
        )

    def losses(self, predictions: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
        """Cross-entropy in nats a byte."""
        logits, target = predictions["token"].flatten(0, 1), examples.targets["token"].flatten()
        return {"token": torch.nn.functional.cross_entropy(logits, target)}

    def asked(self, examples: Examples) -> Tensor:
        """Everywhere."""
        return torch.ones_like(examples.kind, dtype=torch.bool)

    def scored(self, examples: Examples) -> dict[str, Tensor]:
        """All positions."""
        return {
            "token": torch.full((), examples.kind.numel(), device=examples.kind.device)
        }  # recordable, unlike a copy

    def counts(self, predictions: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
        """Positions, right answers and nats."""
        logits, target = predictions["token"].float(), examples.targets["token"]
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        return {
            "positions": torch.tensor(target.numel(), device=target.device),
            "right": (logits.argmax(-1) == target).sum(),
            "nats": nats,
        }

    def metrics(self, counts: Mapping[str, float]) -> dict[str, float | None]:
        """Share of bytes that were told right, and bits a byte; nobody knows the least possible reads."""
        return {
            "accuracy": counts["right"] / counts["positions"],
            "accuracy_recurring": None,
            "accuracy_novel": None,
            "bits_per_byte": counts["nats"] / counts["positions"] / float(np.log(2)),
            "opt": None,
            "static_bound": None,
        }


def _is_letter(byte: int) -> bool:
    return (chr(byte).isascii() and chr(byte).isalpha()) or byte >= 128


_LETTER = torch.tensor([int(_is_letter(byte)) for byte in range(_BYTES)])


@functools.lru_cache(maxsize=4)
def _bytes(path: str | os.PathLike[str]) -> bytes:
    return unpacked(path)


@functools.lru_cache(maxsize=8)
def _on(path: str, device: str) -> Tensor:
    """[bytes] uint8 on a device."""
    return torch.from_numpy(np.frombuffer(_bytes(path), dtype=np.uint8).copy()).to(device)
