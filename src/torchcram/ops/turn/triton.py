"""Queries and keys turned as a GPU kernel: what is side by side is read once, and going back it is written once.

A compiler puts gradients side by side where it turns them, and asks of each number which of three it is and where its
pair is: on an H200 that took 671 µs where memory allows 100 (65,536 positions, width 512).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

_TILE, _WARPS = 4096, 4  # pairs that a program turns


def turn_apart(joint: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = _Apart.apply(joint, angles, heads)
    return query, key, value


class _Apart(torch.autograd.Function):
    """Values stay where they are."""

    @staticmethod
    def forward(ctx: Any, joint: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(angles)
        query, key = turn_two(joint, angles, heads)
        value = joint[..., 2 * joint.shape[-1] // 3 :].view(query.shape)
        return query, key, value

    @staticmethod
    def backward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None, None]:
        (angles,) = ctx.saved_tensors
        return turn_back(query, key, value, angles), None, None


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op("torchcram::turn_two", mutates_args=())
def turn_two(joint: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Queries and keys."""
    batch, length, width = joint.shape
    query, key = (joint.new_empty(batch, length, heads, width // (3 * heads)) for _ in range(2))
    joint = joint.contiguous()
    _launch(joint, query, key, query, angles, heads, back=False)
    return query, key


@torch.library.custom_op("torchcram::turn_back", mutates_args=())
def turn_back(query: Tensor, key: Tensor, value: Tensor, angles: Tensor) -> Tensor:
    """The gradient of what was side by side, from those of its parts."""
    batch, length, heads, size = query.shape
    joint = query.new_empty(batch, length, 3 * heads * size)
    _launch(joint, query.contiguous(), key.contiguous(), value.contiguous(), angles, heads, back=True)
    return joint


@turn_two.register_fake
def _(joint: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, length, width = joint.shape
    shape = (batch, length, heads, width // (3 * heads))
    return joint.new_empty(shape), joint.new_empty(shape)


@turn_back.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, angles: Tensor) -> Tensor:
    batch, length, heads, size = query.shape
    return query.new_empty(batch, length, 3 * heads * size)


def _launch(
    joint: Tensor, query: Tensor, key: Tensor, value: Tensor, angles: Tensor, heads: int, *, back: bool
) -> None:
    batch, length, _, size = query.shape
    count, half = batch * length, size // 2
    across, wide = triton.next_power_of_2(heads), triton.next_power_of_2(half)
    rows = max(1, _TILE // (across * wide))
    with on_device(joint):
        _turn[(triton.cdiv(count, rows), 3 if back else 2)](
            joint,
            query,
            key,
            value,
            angles.contiguous(),
            count,
            heads,
            half,
            BACK=back,
            ROWS=rows,
            HEADS=across,
            HALF=wide,
            num_warps=_WARPS,
        )


@triton.jit
def _turn(
    JOINT,
    QUERY,
    KEY,
    VALUE,
    ANGLES,
    count,
    heads,
    half,
    BACK: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Of a few positions the queries, the keys or (only BACK) the values."""
    part = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None, None]
    head, pair = tl.arange(0, HEADS)[None, :, None], tl.arange(0, HALF)[None, None, :]
    inside = (row < count) & (head < heads) & (pair < half)
    side_by_side = JOINT + (row * 3 + part) * heads * 2 * half + head * 2 * half + pair
    own = QUERY if part == 0 else (KEY if part == 1 else VALUE)
    own += (row * heads + head) * 2 * half + pair
    source, target = (own, side_by_side) if BACK else (side_by_side, own)
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    if part < 2:
        known = (row < count) & (pair < half)
        sine = tl.load(ANGLES + row * half + pair, mask=known, other=0.0).to(tl.float32)
        cosine = tl.load(ANGLES + (count + row) * half + pair, mask=known, other=0.0).to(tl.float32)
        if BACK:
            sine = -sine
        low, high = low * cosine - high * sine, high * cosine + low * sine
    tl.store(target, low.to(target.dtype.element_ty), mask=inside)
    tl.store(target + half, high.to(target.dtype.element_ty), mask=inside)
