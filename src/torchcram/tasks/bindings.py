"""What a sequence binds to what, and which binding counts when a key is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The store events of some sequences, in any order; all [B, S]."""

    at: Tensor
    """Where the key is stored."""
    told: Tensor
    """Where its value is told: there too, or a little later."""
    key: Tensor
    value: Tensor
    real: Tensor | None = None
    """Which of them take place; None: all."""

    def put(self, row: Tensor, at: Tensor, what: Tensor | int) -> Tensor:
        """`row` [B, N] with something at each store that takes place."""
        if self.real is None:
            return row.scatter(1, at, what)
        spare = row.shape[1]  # takes the others
        wider = torch.nn.functional.pad(row, (0, 1))
        return wider.scatter(1, torch.where(self.real, at, spare), what)[:, :-1]

    def last_before(self, key: Tensor, at: Tensor) -> Tensor:
        """The value stored last under each key [B, Q] before the position `at` [B, Q]; there must be one."""
        fits = (self.key.unsqueeze(1) == key.unsqueeze(2)) & (self.at.unsqueeze(1) < at.unsqueeze(2))
        if self.real is not None:
            fits &= self.real.unsqueeze(1)
        latest = torch.where(fits, self.at.unsqueeze(1), -1).argmax(2)
        return self.value.gather(1, latest)
