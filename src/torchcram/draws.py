"""Random numbers by counting: a hash of (seed, stream, step, row, column), the same on every device.

Nothing is drawn in sequence, so any process can make any rows of any batch, and nothing has to be stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcram.ops import hashed
from torchcram.ops.hashed import fast, reference

_LOW = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The random numbers of some rows of one batch. Each `stream` is another, independent table of them."""

    seed: int
    step: int | Tensor
    """A tensor [] int64 on the device of `rows` is read whenever numbers are made, as a recorded step needs it."""
    rows: Tensor
    """[B] int64: numbers of the rows in the global batch."""

    def integers(self, stream: int, columns: int) -> Tensor:
        """[B, columns] int64, uniform in 0..2³²-1."""
        key: int | Tensor = 0  # on the host: as tensors, these few numbers would cost a GPU more launches than the rest
        for part in (self.seed & _LOW, self.seed >> 32, stream, self.step & _LOW, self.step >> 32):
            key = (key + part + 0x9E3779B9) & _LOW
            key = reference.mix(key) if isinstance(key, int) else fast.mix(key)
        return hashed(key, self.rows, columns)

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
