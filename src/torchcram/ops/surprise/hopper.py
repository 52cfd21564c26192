"""Surprise on Hopper GPUs, where all weights stay on the chip, so that they are not fetched for every few positions.

A program has the weights and goes through tiles of positions. Two groups of warps compare, each its own tiles, and each
is brought these by a warp of its own.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from torchcram.ops.dispatch import on_device, on_hopper, processors
from torchcram.ops.gluon import REGISTERS, barrier, described

_TILE = 64  # positions, and columns of what is brought at a time
_STAGES = 4
_CHIP = 232_448 - 1024  # bytes that a program may have on the chip, less some for barriers
_ALIGNED = 16  # bytes, at whose multiples rows begin


def fits(u: Tensor, told: Tensor, up: Tensor) -> bool:
    """Whether they are on such a GPU, and are neither too much nor cut at odd places; told [rows, R]."""
    width, rank = up.shape
    size = up.element_size()
    even = width % _TILE == 0 and rank % _TILE == 0
    room = size * (width * rank + 2 * _TILE * rank + 2 * _STAGES * _TILE * _TILE) <= _CHIP
    placed = all(x.data_ptr() % _ALIGNED == 0 for x in (u, told, up)) and told.stride(0) * size % _ALIGNED == 0
    return on_hopper(u) and even and room and placed


def surprise(u: Tensor, told: Tensor, carried: Tensor, up: Tensor, out: Tensor) -> None:
    """u [B, N, D], told [B N, R], carried [B, 1, R], up [D, R], out [B, N]; all but `told` contiguous."""
    batch, length, width = u.shape
    rows = batch * length
    programs = min(processors(u), -(-rows // _TILE))
    with on_device(u):
        _surprise_resident[(programs,)](
            *(described(x, [_TILE, _TILE]) for x in (u.view(rows, width), told, up)),
            carried,
            out,
            rows,
            length,
            WIDTH=width,
            RANK=up.shape[1],
            STAGES=_STAGES,
            num_warps=4,
            maxnreg=REGISTERS,
        )


@gluon.jit
def _bring(sources, buffers, barriers, rows, WIDTH: gl.constexpr, RANK: gl.constexpr, WHO: gl.constexpr):
    """What the tiles of one of the two are made of; and, for both, the weights."""
    U, TOLD, UP = sources
    weights, foretold, parts = buffers
    there, told_ready, told_free, ready, free = barriers
    TILE: gl.constexpr = U.block_type.shape[0]
    STAGES: gl.constexpr = parts.type.shape[0] // 2
    columns: gl.constexpr = WIDTH // TILE
    depths: gl.constexpr = RANK // TILE
    if WHO == 0:
        mbarrier.expect(there, columns * depths * UP.block_type.nbytes)
        for part in gl.static_range(columns * depths):
            tma.async_copy_global_to_shared(
                UP, [part // depths * TILE, part % depths * TILE], there, weights.index(part)
            )
    begin = gl.program_id(0) + WHO * gl.num_programs(0)
    for tile in range(begin, gl.cdiv(rows, TILE), 2 * gl.num_programs(0)):
        first, number = tile * TILE, (tile - begin) // (2 * gl.num_programs(0))
        mbarrier.wait(told_free.index(WHO), (number & 1) ^ 1)
        mbarrier.expect(told_ready.index(WHO), depths * TOLD.block_type.nbytes)
        for depth in gl.static_range(depths):
            # Of the position before; before the very first there is nothing, which reads as 0.
            place = foretold.index(WHO * depths + depth)
            tma.async_copy_global_to_shared(TOLD, [first - 1, depth * TILE], told_ready.index(WHO), place)
        for column in gl.static_range(columns):
            at = number * columns + column
            slot = WHO * STAGES + at % STAGES
            mbarrier.wait(free.index(slot), (at // STAGES & 1) ^ 1)
            mbarrier.expect(ready.index(slot), U.block_type.nbytes)
            tma.async_copy_global_to_shared(U, [first, column * TILE], ready.index(slot), parts.index(slot))


@gluon.jit
def _compare(buffers, barriers, CARRIED, OUT, rows, length, WIDTH: gl.constexpr, RANK: gl.constexpr, WHO: gl.constexpr):
    """Every other tile of a program."""
    weights, foretold, parts = buffers
    there, told_ready, told_free, ready, free = barriers
    TILE: gl.constexpr = parts.type.shape[1]
    STAGES: gl.constexpr = parts.type.shape[0] // 2
    columns: gl.constexpr = WIDTH // TILE
    depths: gl.constexpr = RANK // TILE
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, 16])
    plain: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    turn = gl.arange(0, TILE, gl.SliceLayout(1, layout))
    row_of = gl.expand_dims(gl.arange(0, TILE, gl.SliceLayout(1, plain)), 1)
    column_of = gl.expand_dims(gl.arange(0, TILE, gl.SliceLayout(0, plain)), 0)
    mbarrier.wait(there, 0)
    begin = gl.program_id(0) + WHO * gl.num_programs(0)
    for tile in range(begin, gl.cdiv(rows, TILE), 2 * gl.num_programs(0)):
        first, number = tile * TILE, (tile - begin) // (2 * gl.num_programs(0))
        mbarrier.wait(told_ready.index(WHO), number & 1)
        if first % length == 0 or first // length != (first + TILE - 1) // length:
            # The first of a sequence was foretold by what is carried.
            row = first + row_of
            begins = (row % length == 0) & (row < rows)
            for depth in gl.static_range(depths):
                place = foretold.index(WHO * depths + depth)
                source = CARRIED + (row // length) * RANK + depth * TILE + column_of
                carried = gl.load(source, mask=begins & (column_of >= 0), other=0.0)
                place.store(gl.where(begins, carried, place.load(plain)))
            fence_async_shared()
            barrier()
        missed = gl.zeros([TILE, TILE], gl.float32, layout)
        for column in range(columns):
            total = gl.zeros([TILE, TILE], gl.float32, layout)
            for depth in gl.static_range(depths):
                weight = weights.index(column * depths + depth).permute((1, 0))
                total = warpgroup_mma(
                    foretold.index(WHO * depths + depth), weight, total, use_acc=depth > 0, is_async=True
                )
            at = number * columns + column
            slot = WHO * STAGES + at % STAGES
            mbarrier.wait(ready.index(slot), at // STAGES & 1)
            u = parts.index(slot).load(layout).to(gl.float32)
            fence_async_shared()
            total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
            barrier()
            mbarrier.arrive(free.index(slot))
            mbarrier.arrive(told_free.index(WHO), pred=column == columns - 1)
            apart = u - total
            missed += apart * apart
        row = first + turn
        gl.store(OUT + row, gl.sum(missed, 1) / WIDTH, mask=row < rows)


@gluon.jit
def _surprise_resident(
    U, TOLD, UP, CARRIED, OUT, rows, length, WIDTH: gl.constexpr, RANK: gl.constexpr, STAGES: gl.constexpr
):
    """OUT [rows]: |u - UP told|² / D, of what was told at the position before."""
    kind: gl.constexpr = U.dtype
    TILE: gl.constexpr = U.block_type.shape[0]
    depths: gl.constexpr = RANK // TILE
    weights = gl.allocate_shared_memory(kind, [WIDTH // TILE * depths, TILE, TILE], UP.layout)
    foretold = gl.allocate_shared_memory(kind, [2 * depths, TILE, TILE], TOLD.layout)
    parts = gl.allocate_shared_memory(kind, [2 * STAGES, TILE, TILE], U.layout)
    there = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    told_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    told_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(there, count=1)
    for who in gl.static_range(2):
        mbarrier.init(told_ready.index(who), count=1)
        mbarrier.init(told_free.index(who), count=1)
    for slot in gl.static_range(2 * STAGES):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    sources, buffers = (U, TOLD, UP), (weights, foretold, parts)
    barriers = (there, told_ready, told_free, ready, free)
    gl.warp_specialize(
        [
            (_compare, (buffers, barriers, CARRIED, OUT, rows, length, WIDTH, RANK, 0)),
            (_compare, (buffers, barriers, CARRIED, OUT, rows, length, WIDTH, RANK, 1)),
            (_bring, (sources, buffers, barriers, rows, WIDTH, RANK, 0)),
            (_bring, (sources, buffers, barriers, rows, WIDTH, RANK, 1)),
        ],
        [4, 1, 1],
        [216, 40, 40],
    )
