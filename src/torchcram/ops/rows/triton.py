"""Counts along rows as GPU kernels: torch's own takes one thread block a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

_CHUNK = 2048  # positions of a program


def running_count(chosen: Tensor) -> Tensor:
    batch, length = chosen.shape
    chosen = chosen.contiguous()
    out = torch.empty(batch, length, dtype=torch.int64, device=chosen.device)
    if out.numel() == 0:
        return out
    chunk = min(_CHUNK, triton.next_power_of_2(length))
    chunks = triton.cdiv(length, chunk)
    counts = torch.empty(batch, chunks, dtype=torch.int32, device=chosen.device)
    with on_device(chosen):
        if chunks > 1:
            _count[(batch, chunks)](chosen, counts, length, CHUNK=chunk)
        _run[(batch, chunks)](chosen, counts, out, length, CHUNK=chunk, SOME=triton.next_power_of_2(chunks))
    return out


@triton.jit
def _chosen(CHOSEN, length, CHUNK: tl.constexpr):
    """Where this program's positions are, which there are, and which of them are chosen."""
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = at < length
    place = tl.program_id(0).to(tl.int64) * length + at
    return place, inside, (tl.load(CHOSEN + place, mask=inside, other=0) != 0).to(tl.int32)


@triton.jit
def _count(CHOSEN, COUNTS, length, CHUNK: tl.constexpr):
    """How many are chosen in each chunk."""
    _, _, chosen = _chosen(CHOSEN, length, CHUNK)
    tl.store(COUNTS + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(chosen, 0))


@triton.jit
def _run(CHOSEN, COUNTS, OUT, length, CHUNK: tl.constexpr, SOME: tl.constexpr):
    """How many are chosen up to each position of a chunk; COUNTS of the chunks before it are there if there are any."""
    place, inside, chosen = _chosen(CHOSEN, length, CHUNK)
    chunk = tl.arange(0, SOME)
    before = tl.load(COUNTS + tl.program_id(0) * tl.num_programs(1) + chunk, mask=chunk < tl.program_id(1), other=0)
    tl.store(OUT + place, (tl.cumsum(chosen, 0) + tl.sum(before, 0)).to(tl.int64), mask=inside)
