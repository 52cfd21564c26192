"""What does not change in time, beside what does."""

from __future__ import annotations

import torch
from torch import Tensor


def with_statics(hidden: Tensor, statics: Tensor) -> Tensor:
    """hidden [B, H] or [B, N, H] and statics [B, F] with NaN where unknown: to [..., H + 2 F].

    Behind the statics come flags that tell which of them are known.
    """
    known = ~statics.isnan()
    told = torch.cat([statics.nan_to_num(), known], dim=-1).to(hidden.dtype)
    if hidden.dim() == 3:
        told = told.unsqueeze(1).expand(-1, hidden.shape[1], -1)
    return torch.cat([hidden, told], dim=-1)
