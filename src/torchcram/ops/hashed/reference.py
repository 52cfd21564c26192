"""One number at a time, with Python's integers: the specification."""

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
STRIDE = 0x85EBCA6B
"""Between the keys of neighbouring rows."""


def mix(x: int) -> int:
    """A bijection of 32-bit integers that spreads every input bit over all output bits.

    The constants are those of Chris Wellons' search for integer hashes of low bias ("lowbias32", 2018).
    """
    x ^= x >> 16
    x = (x * 0x7FEB352D) & _LOW
    x ^= x >> 15
    x = (x * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


def hashed(key: int | Tensor, rows: Tensor, columns: int) -> Tensor:
    key = int(key)
    out = torch.empty(len(rows), columns, dtype=torch.int64)
    for b, row in enumerate(rows.tolist()):
        per_row = mix((key + row * STRIDE) & _LOW)
        for column in range(columns):
            out[b, column] = mix(mix(per_row ^ mix(column)) ^ per_row)
    return out.to(rows.device)
