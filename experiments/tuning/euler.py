"""Times Euler steps of programs that take tiles one after the other; on a GPU.

A step is a product whose result is used at once, and what it is used with has to come from memory: whether the one
goes on while the other does is what these differ in. The kernel that is used, in `ops/expert/triton.py`, is the one of
264 programs with the drive first.
"""

import importlib
from itertools import product

import torch
import triton
import triton.language as tl
from expert import WIDTH, off, timed
from triton.tools.tensor_descriptor import TensorDescriptor

from torchcram.ops.instructions import tanh

expert = importlib.import_module("torchcram.ops.expert.triton")
SHARE = 1 / 3
_WAIT = tl.constexpr("""{
    .reg .u32 begun, now;
    .reg .pred more;
    mov.u32 begun, %clock;
    AGAIN:
    mov.u32 now, %clock;
    sub.u32 now, now, begun;
    setp.lt.u32 more, now, $1;
    @more bra AGAIN;
    mov.u32 $0, now;
}""")


@triton.jit
def wait(cycles):
    """Until so many cycles have passed."""
    tl.inline_asm_elementwise(_WAIT, "=r,r", [cycles], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def tiles(
    H,
    BEFORE,
    INTO,
    LOG_GAP,
    GATE_WEIGHT,
    GATE_BIAS,
    WEIGHT,
    AFTER,
    SLOPE,
    rows,
    width,
    share,
    cycles,
    LEARNS: tl.constexpr,
    EARLY: tl.constexpr,
    FLAT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """`_euler_step` of every so manieth tile. EARLY: the drive is what the product begins with.

    Those that share a processor begin some cycles after each other.
    """
    first_tile = tl.program_id(0)
    if (cycles > 0) & (first_tile >= 132) & (first_tile < 264):
        wait(tl.full((1,), cycles, tl.int32))
    across = tl.cdiv(width, COLUMNS)
    for tile in tl.range(first_tile, across * tl.cdiv(rows, ROWS), tl.num_programs(0), flatten=FLAT):
        column, first = tile % across * COLUMNS, tile // across * ROWS
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        if EARLY:
            total = INTO.load([first, width + column]).to(tl.float32)
        for begin in range(0, width, DEPTH):
            h, weight = H.load([first, begin]), WEIGHT.load([column, begin])
            total = tl.dot(h, weight.T, total, input_precision="ieee")
        at = first + tl.arange(0, ROWS)
        log_gap = tl.load(LOG_GAP + at, mask=at < rows, other=0.0).to(tl.float32)
        halves = tl.split(tl.permute(tl.reshape(total, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))
        for half in tl.static_range(2):
            begin = column + half * (COLUMNS // 2)
            slope = halves[half]
            if not EARLY:
                slope += INTO.load([first, width + begin]).to(tl.float32)
            slope = tanh(slope)
            if LEARNS:
                SLOPE.store([first, begin], slope.to(SLOPE.dtype))
            channel = begin + tl.arange(0, COLUMNS // 2)
            step = share * expert._gate(log_gap, GATE_WEIGHT, GATE_BIAS, channel, channel < width)
            before = BEFORE.load([first, begin]).to(tl.float32)
            AFTER.store([first, begin], (before + step * slope).to(AFTER.dtype))


def main(rows: int = 65_536) -> None:
    h, into = torch.randn(rows, WIDTH, device="cuda").bfloat16(), torch.randn(rows, 2 * WIDTH, device="cuda").bfloat16()
    weight = (torch.randn(WIDTH, WIDTH, device="cuda") / 22).bfloat16()
    gap, (a, b) = torch.rand(rows, device="cuda"), torch.randn(2, WIDTH, device="cuda")
    after, slope = torch.empty_like(h), torch.empty_like(h)
    drive = into[:, WIDTH:].double()
    gate = torch.sigmoid(b.double() + a.double() * gap.double()[:, None])
    expected = h.double() + SHARE * gate * torch.tanh(h.double() @ weight.double().T + drive)
    print(f"the product alone: {timed(lambda: torch.mm(h, weight.T, out=after)):.1f} us")
    one_each, in_turn, large, broad = (
        (128, 128, 64, 4, 3, 2048),
        (128, 128, 64, 4, 3, 264),
        (256, 128, 64, 8, 3, 132),
        (128, 256, 64, 8, 3, 132),
    )
    choices = [
        *product((one_each,), (False, True), (False,), (0, 2000, 4000, 6000, 8000)),
        *product((in_turn,), (False, True), (False, True), (0, 4000)),
        *product((large, broad), (False,), (False, True), (0,)),
    ]
    for (shape, early, flat, cycles), learns in product(choices, (False, True)):
        rows_, columns, *_ = shape
        name = f"{shape} {'drive first' if early else ''} {'flat' if flat else ''} {cycles} cycles"
        part = [rows_, columns // 2]

        def run(shape=shape, early=early, flat=flat, cycles=cycles, learns=learns, part=part) -> None:
            rows_, columns, depth, warps, stages, programs = shape
            tiles[(programs,)](
                TensorDescriptor.from_tensor(h, [rows_, depth]),
                TensorDescriptor.from_tensor(h, part),
                TensorDescriptor.from_tensor(into, [rows_, columns] if early else part),
                gap,
                a,
                b,
                TensorDescriptor.from_tensor(weight, [columns, depth]),
                TensorDescriptor.from_tensor(after, part),
                TensorDescriptor.from_tensor(slope, part),
                rows,
                WIDTH,
                SHARE,
                cycles,
                LEARNS=learns,
                EARLY=early,
                FLAT=flat,
                ROWS=rows_,
                COLUMNS=columns,
                DEPTH=depth,
                num_warps=warps,
                num_stages=stages,
            )

        try:
            run()
            wrong = off(after, expected.float())
            print(f"{name}{' learns' if learns else ''}: {timed(run):.1f} us, off by {wrong:.0e}", flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__} {str(error)[:100]}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
