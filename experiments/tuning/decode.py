"""Times a decoder's step and the rival's for each choice of constants, one line each; on a GPU.

Arguments: any of 32, 1 (a decoder's step at that batch), kernels (what each kernel of a step takes, at both batches),
attention, rival. Default: 32 and 1, which end after 85 s at the latest. `32`, `1`, `kernels` and `attention rival` by
themselves are complete.
"""

import sys
import time

import torch

import torchcram.ops.step.triton as kernels
from torchcram.bench import split_keys
from torchcram.bench.decode import CachedTransformer, _decoder, _made
from torchcram.bench.timing import copy_bandwidth
from torchcram.bench.whole import Size
from torchcram.models import Decoder, baseline
from torchcram.ops import use

START, LIMIT = time.time(), 85
STEPS, CONTEXT = 200, 2048
SIZE = Size(compile=False)
DEFAULT = {
    name: getattr(kernels, name)
    for name in ("_DEPTH", "_ROWS", "_PROGRAMS", "_WARP", "_WARPS", "_JUDGES", "_MEETING", "_READING")
}
# In this order: later ones are left out if time runs short.
VARIANTS = {
    "default": {},
    "old ends (torch, not compiled)": {"ends": False},
    "rows 16/32": {"_ROWS": (16, 32)},
    "rows 32": {"_ROWS": (32,)},
    "rows 8": {"_ROWS": (8,)},
    "rows 16": {"_ROWS": (16,)},
    "programs 264": {"_PROGRAMS": 264},
    "warps 4": {"_WARPS": (4, 4)},
    "warps 8": {"_WARPS": (8, 8)},
    "warps 2-4": {"_WARPS": (2, 4), "_WARP": 8 << 10},
    "depth 1024 B": {"_DEPTH": 1024},
    "read 4 warps": {"_READING": 4},
    "read 16 warps": {"_READING": 16},
    "meeting 512 B": {"_MEETING": 512},
}
FOR_ONE = ("default", "old ends (torch, not compiled)", "rows 16/32", "warps 8", "warps 2-4", "read 4 warps")


def timed(step) -> float:
    """Best of 3: microseconds of a step, back to back."""
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / STEPS)
    return 1e6 * best


@torch.no_grad()
def ours(batch: int) -> None:
    place = torch.device("cuda")
    made = _decoder(SIZE.cram(), SIZE, batch, CONTEXT, place)
    model, state = made.model, made.snapshot()
    tokens = torch.randint(SIZE.vocabulary, (64, batch), device=place)
    with use("fast"):
        plain = Decoder(model, state)
    expected = [{k: v.clone() for k, v in plain.step(each).items()}["tokens"].float() for each in tokens[:4]]
    for name, changes in VARIANTS.items():
        if batch == 1 and name not in FOR_ONE:
            continue
        if time.time() - START > LIMIT:
            print("out of time", flush=True)
            return
        for constant, value in (DEFAULT | changes).items():
            if constant != "ends":
                setattr(kernels, constant, value)
        try:
            decoder = Decoder(model, state)
            if not changes.get("ends", True):
                decoder._ends = None
            errors = []
            for each, true in zip(tokens, expected, strict=False):
                found = decoder.step(each)["tokens"].float()
                # Per sequence: one that was close to another choice may have made it.
                errors.append(((found - true).norm(dim=1) / true.norm(dim=1)).median().item())
            at = iter(range(10**9))
            us = timed(lambda decoder=decoder, at=at: decoder.step(tokens[next(at) % 64]))
            graph = decoder._graph
            replay = timed(graph.replay)
            print(
                f"batch {batch:3d} {name:34s} {us:7.1f} us a step, {replay:7.1f} without copying tokens, "
                f"error {max(errors):.1e}, reads {decoder.ledger().layer_reads:.4f}",
                flush=True,
            )
        except Exception as error:
            print(f"batch {batch:3d} {name:34s} failed: {type(error).__name__} {str(error)[:200]}", flush=True)
    for constant, value in DEFAULT.items():
        setattr(kernels, constant, value)


@torch.no_grad()
def each_kernel(batch: int) -> None:
    """Microseconds that a step spends in each kernel; those that begin early are longer by what they wait."""
    place = torch.device("cuda")
    made = _decoder(SIZE.cram(), SIZE, batch, CONTEXT, place)
    tokens = torch.randint(SIZE.vocabulary, (64, batch), device=place)
    for number in range(8):
        made.step(tokens[number])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for number in range(64):
            made.step(tokens[number])
        torch.cuda.synchronize()
    for event in sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total):
        spent, count = event.self_device_time_total / 64, event.count // 64
        if count:
            print(
                f"batch {batch:3d} {event.key[:60]:60s} {spent:7.1f} us a step, {count:3d} of {spent / count:5.2f} us"
            )


@torch.no_grad()
def attention(batch: int, length: int) -> None:
    """The rival's attention by itself, out of as many different caches as it has layers."""
    heads, size, layers = 8, 64, 8 if batch == 1 else 2
    cache = torch.empty(layers, 2, batch, heads, length, size, dtype=torch.bfloat16, device="cuda").normal_()
    query = torch.randn(batch, heads, 1, size, dtype=torch.bfloat16, device="cuda")
    true = torch.nn.functional.scaled_dot_product_attention(query, cache[0, 0], cache[0, 1]).float()
    usual = {name: getattr(split_keys, name) for name in ("_KEYS", "_STAGES", "_PROGRAMS", "_WARPS")}
    for keys, stages, programs, warps in (
        (64, 4, 3, 4),
        (64, 4, 4, 4),
        (64, 4, 2, 4),
        (64, 3, 4, 4),
        (128, 3, 2, 8),
        (128, 3, 2, 4),
        (128, 4, 2, 8),
        (128, 1, 8, 4),
        (32, 6, 4, 4),
        (64, 4, 8, 4),
        (64, 4, 16, 4),
    ):
        values = (keys, stages, 132 * programs, warps)
        for name, value in zip(usual, values, strict=True):
            setattr(split_keys, name, value)
        try:
            error = (split_keys.attend(query, cache[0, 0], cache[0, 1]).float() - true).norm() / true.norm()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for layer in cache:
                    split_keys.attend(query, layer[0], layer[1])
            best = float("inf")
            for _ in range(3):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(10):
                    graph.replay()
                torch.cuda.synchronize()
                best = min(best, (time.perf_counter() - begin) / 10 / layers)
            rate = cache[0].numel() * 2 / best / 1e12
            print(
                f"attention batch {batch} keys {keys} stages {stages} programs 132*{programs} warps {warps}: "
                f"{1e6 * best:.1f} us a layer, {rate:.2f} TB/s, error {error:.1e}",
                flush=True,
            )
        except Exception as error:
            print(f"attention {values} failed: {type(error).__name__} {str(error)[:200]}", flush=True)
    for name, value in usual.items():
        setattr(split_keys, name, value)


@torch.no_grad()
def rival(batch: int, length: int) -> None:
    place = torch.device("cuda")
    theirs = CachedTransformer(_made(baseline("transformer", SIZE.cram()), SIZE, place), batch, length)
    tokens = torch.randint(SIZE.vocabulary, (batch,), device=place)
    theirs._attend = split_keys.attend
    theirs.step(tokens)
    best = timed(lambda: theirs.step(tokens)) / 1e6
    share = theirs.nbytes / best / copy_bandwidth(place)
    print(f"rival batch {batch} length {length}: {1e6 * best:.1f} us a step, cache at {share:.2f} of copy bandwidth")


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    wanted = sys.argv[1:] or ["32", "1"]
    if "kernels" in wanted:
        each_kernel(1)
        each_kernel(32)
    if "attention" in wanted:
        attention(1, 131072)
    if "32" in wanted:
        ours(32)
    if "1" in wanted:
        ours(1)
    if "rival" in wanted:
        rival(1, 131072)
    print(f"{time.time() - START:.0f} s")
