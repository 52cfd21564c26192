"""Attention of one query a sequence to a long cache, as a GPU is kept busy by it: keys are cut into parts.

For benchmarks: what a Transformer decodes with has to be as fast as memory is.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_KEYS = 64  # of a tile
_STAGES = 4  # tiles on their way at a time
_PROGRAMS = 132 * 3  # that run side by side
_WARPS = 4


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B, H, 1, d] from query [B, H, 1, d], key and value [B, H, T, d]: softmax attention to all of them."""
    batch, heads, length, size = key.shape
    rows = batch * heads
    part = _part(rows, length)
    parts = triton.cdiv(length, part)
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    found = torch.empty(rows, parts, size, dtype=torch.float32, device=key.device)
    most, total = (torch.empty(rows, parts, dtype=torch.float32, device=key.device) for _ in range(2))
    out = torch.empty_like(query)
    _parts[(rows, parts)](
        query,
        key,
        value,
        found,
        most,
        total,
        length,
        part,
        size**-0.5,
        SIZE=size,
        KEYS=_KEYS,
        STAGES=_STAGES,
        num_warps=_WARPS,
    )
    _join[(rows,)](found, most, total, out, parts, SIZE=size, PARTS=triton.next_power_of_2(parts), num_warps=4)
    return out


def _part(rows: int, length: int) -> int:
    """Keys of a part: all parts run at once; or, where rows are too many to fill a GPU evenly, in many rounds."""
    parts = _PROGRAMS // rows if 8 * rows <= _PROGRAMS else triton.cdiv(8 * _PROGRAMS, rows)
    tiles: int = triton.cdiv(triton.cdiv(length, parts), _KEYS)
    return tiles * _KEYS


@triton.jit
def _parts(
    QUERY,
    KEY,
    VALUE,
    FOUND,
    MOST,
    TOTAL,
    length,
    part,
    scale,
    SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """What a part of the keys gives, not yet divided by the sum of its weights; that sum; and the highest score."""
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel, place = tl.arange(0, SIZE), tl.arange(0, KEYS)
    query = tl.load(QUERY + row * SIZE + channel).to(tl.float32) * scale
    most = tl.full((KEYS,), float("-inf"), tl.float32)  # each place of a tile by itself, joined once at the end
    total = tl.zeros((KEYS,), tl.float32)
    found = tl.zeros((KEYS, SIZE), tl.float32)
    end = tl.minimum((number + 1) * part, length)
    for begin in tl.range(number * part, end, KEYS, num_stages=STAGES):
        at = begin + place
        inside = (at < end)[:, None]
        here = (row * length + at[:, None]) * SIZE + channel[None, :]
        key = tl.load(KEY + here, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(VALUE + here, mask=inside, other=0.0).to(tl.float32)
        score = tl.where(at < end, tl.sum(key * query[None, :], 1), float("-inf"))
        higher = tl.maximum(most, score)
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        before, weight = tl.exp(most - safe), tl.exp(score - safe)
        total = total * before + weight
        found = found * before[:, None] + weight[:, None] * value
        most = higher
    highest = tl.max(most, 0)
    share = tl.exp(most - highest)
    own = row * tl.num_programs(1) + number
    tl.store(FOUND + own * SIZE + channel, tl.sum(found * share[:, None], 0))
    tl.store(TOTAL + own, tl.sum(total * share, 0))
    tl.store(MOST + own, highest)


@triton.jit
def _join(FOUND, MOST, TOTAL, OUT, parts, SIZE: tl.constexpr, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel, number = tl.arange(0, SIZE), tl.arange(0, PARTS)
    there = number < parts
    most = tl.load(MOST + row * parts + number, mask=there, other=float("-inf"))
    share = tl.exp(most - tl.max(most, 0))
    total = tl.sum(tl.load(TOTAL + row * parts + number, mask=there, other=0.0) * share, 0)
    here = (row * parts + number[:, None]) * SIZE + channel[None, :]
    found = tl.load(FOUND + here, mask=there[:, None], other=0.0)
    tl.store(OUT + row * SIZE + channel, (tl.sum(found * share[:, None], 0) / total).to(OUT.dtype.element_ty))
