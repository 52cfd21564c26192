"""The estimate as one GPU kernel: what the hidden layer makes of a token never leaves the processor."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import flat, on_device

_ROWS, _COLUMNS, _WARPS, _STAGES = 128, 64, 4, 2


@torch.library.custom_op("torchcram::estimate", mutates_args=())
def estimate(own: Tensor, thought: Tensor, weight: Tensor, shift: Tensor, score: Tensor, bias: Tensor) -> Tensor:
    batch, length, hidden = own.shape
    rank, own, thought = weight.shape[1], flat(own), flat(thought)
    out = torch.empty(batch, length, dtype=torch.float32, device=own.device)
    with on_device(own):
        _estimate[(triton.cdiv(batch * length, _ROWS),)](
            own,
            thought,
            weight.contiguous(),
            shift.contiguous(),
            score.contiguous(),
            bias,
            out,
            batch * length,
            own.stride(0),
            thought.stride(0),
            hidden,
            RANK=rank,
            DEPTH=max(16, triton.next_power_of_2(rank)),
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=_WARPS,
            num_stages=_STAGES,
        )
    return out


@estimate.register_fake
def _(own: Tensor, thought: Tensor, weight: Tensor, shift: Tensor, score: Tensor, bias: Tensor) -> Tensor:
    return own.new_empty(own.shape[:2], dtype=torch.float32)


@triton.jit
def _estimate(
    OWN,
    THOUGHT,
    WEIGHT,
    SHIFT,
    SCORE,
    BIAS,
    OUT,
    rows,
    own_step,
    thought_step,
    hidden,
    RANK: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Some tokens; those of OWN are `own_step` apart in memory, those of THOUGHT `thought_step`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = tl.arange(0, DEPTH)
    mask = inside[:, None] & (at < RANK)[None, :]
    thought = tl.load(THOUGHT + row[:, None] * thought_step + at[None, :], mask=mask, other=0.0)
    active = tl.maximum(thought, 0.0, propagate_nan=tl.PropagateNan.ALL).to(WEIGHT.dtype.element_ty)
    total = tl.zeros((ROWS,), tl.float32) + tl.load(BIAS).to(tl.float32)
    for begin in range(0, hidden, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        known = column < hidden
        weight = tl.load(
            WEIGHT + column[:, None] * RANK + at[None, :], mask=known[:, None] & (at < RANK)[None, :], other=0.0
        )
        own = tl.load(OWN + row[:, None] * own_step + column[None, :], mask=inside[:, None] & known[None, :], other=0.0)
        seen = own.to(tl.float32) + tl.dot(active, weight.T, input_precision="ieee")
        seen += tl.load(SHIFT + column, mask=known, other=0.0).to(tl.float32)[None, :]
        score = tl.load(SCORE + column, mask=known, other=0.0).to(tl.float32)
        total += tl.sum(tl.maximum(seen, 0.0, propagate_nan=tl.PropagateNan.ALL) * score[None, :], 1)
    tl.store(OUT + row, total, mask=inside)
