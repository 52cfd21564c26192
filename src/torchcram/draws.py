"""Random numbers by counting: a hash of (seed, stream, step, row, column), the same on every device.

Nothing is drawn in sequence, so any process can make any rows of any batch, and nothing has to be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_Bits = TypeVar("_Bits", int, Tensor)


def mix(x: _Bits) -> _Bits:
    """A bijection of 32-bit integers (tensors: held in int64) that spreads every input bit over all output bits.

    The constants are those of Chris Wellons' search for integer hashes of low bias ("lowbias32", 2018).
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _LOW
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The random numbers of some rows of one batch. Each `stream` is another, independent table of them."""

    seed: int
    step: int
    rows: Tensor
    """[B] int64: numbers of the rows in the global batch."""

    def integers(self, stream: int, columns: int) -> Tensor:
        """[B, columns] int64, uniform in 0..2³²-1."""
        key = 0  # on the host: as tensors, these few numbers would cost a GPU more launches than all the rest
        for part in (self.seed & _LOW, self.seed >> 32, stream, self.step & _LOW, self.step >> 32):
            key = mix((key + part + 0x9E3779B9) & _LOW)
        per_row = mix((key + self.rows * 0x85EBCA6B) & _LOW).unsqueeze(1)
        column = mix(torch.arange(columns, device=self.rows.device))
        return mix(mix(per_row ^ column) ^ per_row)

    def uniform(self, stream: int, columns: int) -> Tensor:
        """[B, columns] float64, uniform in (0, 1), never 0 or 1."""
        return (self.integers(stream, columns).double() + 0.5) / 2**32

    def normal(self, stream: int, columns: int) -> Tensor:
        """[B, columns] float64, standard normal."""
        normal: Tensor = torch.special.ndtri(self.uniform(stream, columns))
        return normal

    def order(self, stream: int, columns: int) -> Tensor:
        """[B, columns]: a random order of 0..columns-1 a row. The column breaks ties, so every device agrees."""
        key = (self.integers(stream, columns) << 24) | torch.arange(columns, device=self.rows.device)
        return key.argsort(dim=1)
