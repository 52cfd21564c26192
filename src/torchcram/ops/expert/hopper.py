"""Euler steps on Hopper GPUs, whose weights stay on the chip.

A program keeps the weights of 128 channels and goes through tiles of positions; all of them together read h once for
each such stretch of channels, and never the weights again. Of its three groups of warps one brings tiles to the chip.
The other two take turns: while one multiplies, the other makes of its product the next h, in place of what it was made
of. So memory, products and tanh are busy at the same time.
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

COLUMNS = 128
_ROWS, _DEPTH, _STAGES = 64, 64, 4
_WIDEST = 512  # whose weights leave room for what else has to be on the chip


def fits(x: Tensor, width: int) -> bool:
    """Whether x [.., D] is on such a GPU, and its weights are neither too many nor cut at odd places."""
    return on_hopper(x) and width % COLUMNS == 0 and width <= _WIDEST


def euler_step(
    h: Tensor,
    into: Tensor,
    log_gap: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    weight: Tensor,
    after: Tensor,
    slope: Tensor | None,
    squares: Tensor | None,
    share: float,
) -> None:
    """h, after, slope [rows, D]; into [rows, 2D], of which the second half drives; squares [rows, D / 128]."""
    rows, width = h.shape
    across = width // COLUMNS
    programs = min(processors(h) // across, -(-rows // _ROWS))
    whole, part, weights = [_ROWS, COLUMNS], [_ROWS, _DEPTH], [COLUMNS, _DEPTH]
    with on_device(h):
        _euler_step_resident[(programs * across,)](
            described(h, part),
            described(h, whole),
            described(into, whole),
            described(weight, weights),
            described(after, whole),
            described(after if slope is None else slope, whole),
            log_gap,
            gate_weight,
            gate_bias,
            after if squares is None else squares,
            rows,
            share,
            WIDTH=width,
            LEARNS=slope is not None,
            LAST=squares is not None,
            STAGES=_STAGES,
            num_warps=4,
            maxnreg=REGISTERS,
        )


@gluon.jit
def _tanh(x):
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _bring(sources, buffers, barriers, rows, WIDTH: gl.constexpr):
    """All that tiles are made of, in the order in which it is used."""
    H, BEFORE, INTO, WEIGHT = sources
    weights, parts, before, drive = buffers
    there, ready, free, all_ready, all_free, _ = barriers
    ROWS: gl.constexpr = BEFORE.block_type.shape[0]
    COLUMNS: gl.constexpr = BEFORE.block_type.shape[1]
    DEPTH: gl.constexpr = H.block_type.shape[1]
    STAGES: gl.constexpr = parts.type.shape[0]
    across: gl.constexpr = WIDTH // COLUMNS
    count: gl.constexpr = WIDTH // DEPTH
    column = gl.program_id(0) % across * COLUMNS
    mbarrier.expect(there, count * WEIGHT.block_type.nbytes)
    for k in gl.static_range(count):
        tma.async_copy_global_to_shared(WEIGHT, [column, k * DEPTH], there, weights.index(k))
    own, apart = gl.program_id(0) // across, gl.num_programs(0) // across
    for tile in range(own, gl.cdiv(rows, ROWS), apart):
        first, number = tile * ROWS, (tile - own) // apart
        who = number % 2
        for k in gl.static_range(count):
            if k == count // 2:
                mbarrier.wait(all_free.index(who), (number // 2 & 1) ^ 1)
                mbarrier.expect(all_ready.index(who), BEFORE.block_type.nbytes + INTO.block_type.nbytes)
                tma.async_copy_global_to_shared(INTO, [first, WIDTH + column], all_ready.index(who), drive.index(who))
                tma.async_copy_global_to_shared(BEFORE, [first, column], all_ready.index(who), before.index(who))
            at = number * count + k
            mbarrier.wait(free.index(at % STAGES), (at // STAGES & 1) ^ 1)
            mbarrier.expect(ready.index(at % STAGES), H.block_type.nbytes)
            tma.async_copy_global_to_shared(H, [first, k * DEPTH], ready.index(at % STAGES), parts.index(at % STAGES))


@gluon.jit
def _product(number, buffers, barriers, layout: gl.constexpr, WHO: gl.constexpr):
    """Of a tile, the `number`-th of the program: what was brought times the weights.

    Whoever is not in turn must not even look whether something was brought: of a place that is filled for the others
    meanwhile, nobody could tell how many times it has been.
    """
    weights, parts, _, _ = buffers
    _, ready, free, _, _, turns = barriers
    STAGES: gl.constexpr = parts.type.shape[0]
    ROWS: gl.constexpr = parts.type.shape[1]
    count: gl.constexpr = weights.type.shape[0]
    COLUMNS: gl.constexpr = weights.type.shape[1]
    total = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
    mbarrier.wait(turns.index(WHO), (number // 2 & 1) ^ (1 - WHO))
    for k in gl.static_range(count):
        at = number * count + k
        mbarrier.wait(ready.index(at % STAGES), at // STAGES & 1)
        weight = weights.index(k).permute((1, 0))
        total = warpgroup_mma(parts.index(at % STAGES), weight, total, use_acc=k > 0, is_async=True)
        if k > 0:
            total = warpgroup_mma_wait(num_outstanding=1, deps=(total,))
            barrier()  # all warps are done with it
            mbarrier.arrive(free.index((at - 1) % STAGES))
            if k == count - 1:
                mbarrier.arrive(turns.index(1 - WHO))
    total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
    barrier()
    mbarrier.arrive(free.index((number * count + count - 1) % STAGES))
    return total


@gluon.jit
def _use(
    results,
    buffers,
    barriers,
    given,
    rows,
    share,
    WIDTH: gl.constexpr,
    LEARNS: gl.constexpr,
    LAST: gl.constexpr,
    WHO: gl.constexpr,
):
    """Every other tile: its product, then its end."""
    AFTER, SLOPE, SQUARES = results
    LOG_GAP, GATE_WEIGHT, GATE_BIAS = given
    _, _, before, drive = buffers
    there, _, _, all_ready, all_free, _ = barriers
    ROWS: gl.constexpr = AFTER.block_type.shape[0]
    COLUMNS: gl.constexpr = AFTER.block_type.shape[1]
    across: gl.constexpr = WIDTH // COLUMNS
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, 16]
    )
    column = gl.program_id(0) % across * COLUMNS
    channel = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    turn = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    mine, theirs = drive.index(WHO), before.index(WHO)
    mbarrier.wait(there, 0)
    own, apart = gl.program_id(0) // across, gl.num_programs(0) // across
    for tile in range(own + WHO * apart, gl.cdiv(rows, ROWS), 2 * apart):
        first, number = tile * ROWS, (tile - own) // apart
        total = _product(number, buffers, barriers, layout, WHO)
        at = first + turn
        log_gap = gl.load(LOG_GAP + at, mask=at < rows, other=0.0).to(gl.float32)
        weight = 0.5 * gl.load(GATE_WEIGHT + channel).to(gl.float32)
        bias = 0.5 * gl.load(GATE_BIAS + channel).to(gl.float32)
        turned = _tanh(gl.expand_dims(bias, 0) + gl.expand_dims(weight, 0) * gl.expand_dims(log_gap, 1))
        mbarrier.wait(all_ready.index(WHO), number // 2 & 1)
        slope = _tanh(total + mine.load(layout).to(gl.float32))
        after = theirs.load(layout).to(gl.float32) + share * (0.5 + 0.5 * turned) * slope
        if LEARNS:
            mine.store(slope.to(SLOPE.dtype))
        theirs.store(after.to(AFTER.dtype))
        fence_async_shared()
        barrier()
        if LEARNS:
            tma.async_copy_shared_to_global(SLOPE, [first, column], mine)
        tma.async_copy_shared_to_global(AFTER, [first, column], theirs)
        if LAST:
            squares = gl.sum(after * after, 1)  # 0 outside, as all that is brought from there
            gl.store(SQUARES + at.to(gl.int64) * across + column // COLUMNS, squares, mask=at < rows)
        tma.store_wait(pendings=0)
        barrier()
        mbarrier.arrive(all_free.index(WHO))


@gluon.jit
def _on_chip(H, BEFORE, INTO, WEIGHT, WIDTH: gl.constexpr, STAGES: gl.constexpr):
    """Places for weights and tiles, and barriers that say of each when it is there, and when it is free again."""
    kind: gl.constexpr = H.dtype
    count: gl.constexpr = WIDTH // H.block_type.shape[1]
    weights = gl.allocate_shared_memory(kind, [count] + WEIGHT.block_type.shape, WEIGHT.layout)
    parts = gl.allocate_shared_memory(kind, [STAGES] + H.block_type.shape, H.layout)
    before = gl.allocate_shared_memory(kind, [2] + BEFORE.block_type.shape, BEFORE.layout)
    drive = gl.allocate_shared_memory(kind, [2] + INTO.block_type.shape, INTO.layout)
    there = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    all_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    all_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(there, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    for who in gl.static_range(2):
        mbarrier.init(all_ready.index(who), count=1)
        mbarrier.init(all_free.index(who), count=1)
        mbarrier.init(turns.index(who), count=1)
    return (weights, parts, before, drive), (there, ready, free, all_ready, all_free, turns)


@gluon.jit
def _euler_step_resident(
    H,
    BEFORE,
    INTO,
    WEIGHT,
    AFTER,
    SLOPE,
    LOG_GAP,
    GATE_WEIGHT,
    GATE_BIAS,
    SQUARES,
    rows,
    share,
    WIDTH: gl.constexpr,
    LEARNS: gl.constexpr,
    LAST: gl.constexpr,
    STAGES: gl.constexpr,
):
    """AFTER = H + share · gate ⊙ tanh(H Wᵀ + drive); see `_euler_step`."""
    buffers, barriers = _on_chip(H, BEFORE, INTO, WEIGHT, WIDTH, STAGES)
    sources, given, results = (H, BEFORE, INTO, WEIGHT), (LOG_GAP, GATE_WEIGHT, GATE_BIAS), (AFTER, SLOPE, SQUARES)
    gl.warp_specialize(
        [
            (_use, (results, buffers, barriers, given, rows, share, WIDTH, LEARNS, LAST, 0)),
            (_use, (results, buffers, barriers, given, rows, share, WIDTH, LEARNS, LAST, 1)),
            (_bring, (sources, buffers, barriers, rows, WIDTH)),
        ],
        [4, 1],
        [232, 40],
    )
