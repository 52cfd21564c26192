"""All numbers at once; 32-bit arithmetic in int64, which torch has everywhere."""

import torch
from torch import Tensor

from torchcram.ops.hashed.reference import STRIDE

_LOW = 0xFFFFFFFF


def hashed(key: int | Tensor, rows: Tensor, columns: int) -> Tensor:
    per_row = mix((key + rows * STRIDE) & _LOW).unsqueeze(1)
    column = mix(torch.arange(columns, device=rows.device))
    return mix(mix(per_row ^ column) ^ per_row)


def mix(x: Tensor) -> Tensor:
    """`reference.mix` of each."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _LOW
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _LOW
    return x ^ (x >> 16)
