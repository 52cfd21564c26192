"""The hash as one GPU kernel: in torch's own operations it is thirty, and a batch needs a dozen hashes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

_BLOCK = 1024


def hashed(key: int | Tensor, rows: Tensor, columns: int) -> Tensor:
    out = torch.empty(len(rows), columns, dtype=torch.int64, device=rows.device)
    if out.numel():
        with on_device(rows):
            # Beyond 32 bits whatever the key, which changes nothing: one compiled kernel serves all keys.
            given = key + (1 << 40) if isinstance(key, int) else key
            grid = len(rows), triton.cdiv(columns, _BLOCK)
            _kernel[grid](rows.contiguous(), out, given, columns, _BLOCK, isinstance(key, Tensor))
    return out


@triton.jit
def _mix(x):
    """`reference.mix`: unsigned 32-bit products wrap by themselves."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit(do_not_specialize=["key"])
def _kernel(ROWS, OUT, key, columns, BLOCK: tl.constexpr, KEPT: tl.constexpr):
    if KEPT:
        key = tl.load(key)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    number = key + tl.load(ROWS + row) * 0x85EBCA6B
    per_row = _mix((number & 0xFFFFFFFF).to(tl.uint32))
    value = _mix(_mix(per_row ^ _mix(column.to(tl.uint32))) ^ per_row)
    tl.store(OUT + row * columns + column, value.to(tl.int64), mask=column < columns)
