"""Surprise as one GPU kernel: what was foretold is compared with what came before it leaves the processor."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import flat, on_device

try:
    from torchcram.ops.surprise import hopper as _hopper
except ImportError:  # the language it is written in is experimental: another Triton may have changed it
    _hopper = None  # type: ignore[assignment]

_ROWS, _COLUMNS, _WARPS, _STAGES = 64, 64, 4, 2


@torch.library.custom_op("torchcram::surprise", mutates_args=())
def surprise(u: Tensor, told: Tensor, carried: Tensor, up: Tensor) -> Tensor:
    batch, length, width = u.shape
    rank, told = up.shape[1], flat(told)
    out = torch.empty(batch, length, dtype=torch.float32, device=u.device)
    if _hopper is not None and _hopper.fits(u, told, up):
        _hopper.surprise(u.contiguous(), told, carried.contiguous(), up.contiguous(), out)
        return out
    with on_device(u):
        _surprise[(triton.cdiv(batch * length, _ROWS),)](
            u.contiguous(),
            told,
            carried.contiguous(),
            up.contiguous(),
            out,
            batch * length,
            length,
            told.stride(0),
            width,
            RANK=rank,
            DEPTH=max(16, triton.next_power_of_2(rank)),
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=_WARPS,
            num_stages=_STAGES,
        )
    return out


@surprise.register_fake
def _(u: Tensor, told: Tensor, carried: Tensor, up: Tensor) -> Tensor:
    return u.new_empty(u.shape[:2], dtype=torch.float32)


@triton.jit
def _surprise(
    U,
    TOLD,
    CARRIED,
    UP,
    OUT,
    rows,
    length,
    told_step,
    width,
    RANK: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Some positions, of whatever sequences: the first of each was foretold by what is CARRIED [B, RANK].

    Rows of TOLD are `told_step` apart in memory.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = tl.arange(0, DEPTH)
    first = row % length == 0
    told = tl.load(
        TOLD + (row - 1)[:, None] * told_step + at[None, :],
        mask=(inside & ~first)[:, None] & (at < RANK)[None, :],
        other=0.0,
    )
    carried = tl.load(
        CARRIED + (row // length)[:, None] * RANK + at[None, :],
        mask=(inside & first)[:, None] & (at < RANK)[None, :],
        other=0.0,
    )
    told = tl.where(first[:, None], carried, told)
    missed = tl.zeros((ROWS,), tl.float32)
    for begin in range(0, width, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        known = column < width
        up = tl.load(UP + column[:, None] * RANK + at[None, :], mask=known[:, None] & (at < RANK)[None, :], other=0.0)
        u = tl.load(U + row[:, None] * width + column[None, :], mask=inside[:, None] & known[None, :], other=0.0)
        apart = u.to(tl.float32) - tl.dot(told, up.T, input_precision="ieee")
        missed += tl.sum(apart * apart, 1)
    tl.store(OUT + row, missed / width, mask=inside)
