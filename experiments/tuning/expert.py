"""Times the scan, the Euler steps and their gradients for each choice of constants, one line each; on a GPU.

Run it twice: compiling disturbs the first time.
"""

import importlib
import statistics
from collections.abc import Callable, Iterator
from itertools import product

import torch

decay = importlib.import_module("torchcram.ops.decay.triton")
expert = importlib.import_module("torchcram.ops.expert.triton")
WIDTH, STEPS = 512, 3


def timed(run: Callable[[], object], calls: int = 10) -> float:
    """Microseconds of a call, of several recorded together."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end) / calls)
    return statistics.median(times)


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def given(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    """into, rate, gap (far at resets) and the initial state; see `ops.expert.Given`."""
    into = torch.randn(batch, length, 2 * WIDTH, device="cuda").bfloat16()
    gap = torch.rand(batch, length, device="cuda")
    reset = torch.rand(batch, length, device="cuda") < 0.001
    gap = decay.far_at_resets(gap, reset)
    return into, torch.rand(WIDTH, device="cuda"), gap, torch.randn(batch, WIDTH, device="cuda")


def scans(batch: int, length: int) -> Iterator[str]:
    into, *rest = given(batch, length)
    x, grad_into = into[..., :WIDTH], torch.empty_like(into)
    grad = torch.randn_like(x, memory_format=torch.contiguous_format)
    last = torch.randn(batch, WIDTH, device="cuda")
    states, _ = decay.scan_rows(x, *rest)
    decay.scan_rows_backward(grad, last, states, *rest, grad_into[..., :WIDTH])
    before = grad_into[..., :WIDTH].clone()
    for block, stretch, ahead, programs in product((128, 256), (8, 16), (1, 3, 4), (512, 1024, 2048)):
        decay._BLOCK, decay._STRETCH, decay._AHEAD, decay._PROGRAMS = block, stretch, ahead, programs
        wrong = off(decay.scan_rows(x, *rest)[0], states)
        forward = timed(lambda: decay.scan_rows(x, *rest))
        backward = timed(lambda: decay.scan_rows_backward(grad, last, states, *rest, grad_into[..., :WIDTH]))
        wrong = max(wrong, off(grad_into[..., :WIDTH], before))
        name = f"scan {batch} x {length}: {block} channels, {stretch} positions, {ahead} ahead, {programs} programs"
        yield f"{name}: forward {forward:.1f} us, backward {backward:.1f} us, off by {wrong:.0e}"


def euler(batch: int = 8, length: int = 8192) -> Iterator[str]:
    into, rate, gap, initial = given(batch, length)
    gate_weight, gate_bias = torch.randn(2, WIDTH, device="cuda")
    weight = (torch.randn(WIDTH, WIDTH, device="cuda") / 22).bfloat16()
    inputs = into, rate, gap, initial, gap.log1p(), gate_weight, gate_bias, weight
    scan = timed(lambda: decay.scan_rows(into[..., :WIDTH], rate, gap, initial))
    expected, *_ = expert.advance(*inputs, STEPS, False)
    usual = expert._STEP
    for tile in (usual, usual._replace(warps=8, registers=128), usual._replace(rows=256, warps=8)):
        expert._STEP = tile
        wrong = off(expert.advance(*inputs, STEPS, False)[0], expected)
        each = [
            (timed(lambda learns=learns: expert.advance(*inputs, STEPS, learns), 4) - scan) / STEPS
            for learns in (False, True)
        ]
        yield f"Euler step {tuple(tile)}: {each[0]:.1f} us, {each[1]:.1f} us if it learns, off by {wrong:.0e}"
    expert._STEP = usual
    _, _, _, *kept = expert.advance(*inputs, STEPS, True)
    grad, last = torch.randn_like(expected), torch.zeros_like(initial)
    for stretch, channels, warps, ahead in product((8, 16, 32), (128, 256), (4, 8), (2, 4)):
        expert._STRETCH, expert._CHANNELS, expert._WARPS, expert._AHEAD = stretch, channels, warps, ahead
        name = f"gradients, {stretch} x {channels} at a time, {warps} warps, {ahead} ahead"
        try:
            whole = timed(lambda: expert.advance_backward(grad, last, *kept, *inputs[1:], True), 3)
            yield f"{name}: {whole:.1f} us in all"
        except Exception as error:
            yield f"{name}: {type(error).__name__} {str(error)[:100]}"


if __name__ == "__main__":
    torch.manual_seed(0)
    for batch, length in ((32, 2048), (8, 8192), (2, 32_768), (1, 131_072)):
        for line in scans(batch, length):
            print(line, flush=True)
    for line in euler():
        print(line, flush=True)
