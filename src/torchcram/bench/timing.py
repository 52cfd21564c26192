"""How two things are timed against each other."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchcram.results import Row

_BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention": SDPBackend.FLASH_ATTENTION}


def in_turns(*runs: Callable[[], object], repeats: int, warm_up: int) -> list[float]:
    """Median seconds of each, run in turns so that whatever else the machine does touches all alike."""
    times: list[list[float]] = [[] for _ in runs]
    for number in range(warm_up + repeats):
        for run, kept in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            if number >= warm_up:
                kept.append(time.perf_counter() - begin)
    return [statistics.median(kept) for kept in times]


def at_best(
    run: Callable[[], None], device: torch.device, before: Callable[[], None] = lambda: None
) -> tuple[str, Callable[[], None]]:
    """The same with whichever attention serves it best, and which that is; `before` is called before each is tried."""
    if device.type != "cuda":
        return "default attention", run
    best = _fastest(run, before)
    before()
    return best, _with(_BACKENDS[best], run)


def at_best_for(
    run: Callable[[], None], attend: Callable[[], None], device: torch.device
) -> tuple[str, Callable[[], None]]:
    """The same with whichever attention is fastest by itself: models need not be compiled with each to find out."""
    if device.type != "cuda":
        return "default attention", run
    best = _fastest(attend)
    return best, _with(_BACKENDS[best], run)


def _fastest(run: Callable[[], None], before: Callable[[], None] = lambda: None) -> str:
    times = {}
    for name, kernel in _BACKENDS.items():
        before()
        (times[name],) = in_turns(_with(kernel, run), repeats=3, warm_up=5)
    return min(times, key=lambda name: times[name])


def _with(kernel: SDPBackend, run: Callable[[], None]) -> Callable[[], None]:
    def inside() -> None:
        with sdpa_kernel([kernel]):
            run()

    return inside


def copy_bandwidth(device: torch.device, size: int = 1 << 30) -> float:
    """Bytes a second of a copy within a device's memory, those read and those written."""
    count = size if device.type == "cuda" else size >> 6
    source = torch.randint(255, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        wait_for(device)

    (seconds,) = in_turns(copy, repeats=9, warm_up=2)
    return 2 * count / seconds


def wait_for(device: torch.device) -> None:
    """Until a device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def waiting(run: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """The same, until the device has done it."""

    def inside() -> None:
        run()
        wait_for(device)

    return inside


def compare(
    what: str,
    ours: Callable[[], object],
    baseline: Callable[[], object],
    *,
    against: str,
    length: int,
    repeats: int = 15,
    warm_up: int = 3,
    **settings: str | int | float,
) -> Row:
    """Median milliseconds of both, and how many times faster ours is."""
    ours_ms, baseline_ms = (1000 * each for each in in_turns(ours, baseline, repeats=repeats, warm_up=warm_up))
    return {
        "what": what,
        "length": length,
        **settings,
        "ours_ms": ours_ms,
        "baseline": against,
        "baseline_ms": baseline_ms,
        "ratio": baseline_ms / ours_ms,
    }


def exponent(times: Sequence[tuple[int, float]]) -> float:
    """The slope of log time over log length, by least squares."""
    x, y = ([math.log(value) for value in values] for values in zip(*times, strict=True))
    middle, level = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


FIRST = 8192
"""Growth is told from this length on: shorter sequences do not fill a GPU in the same way."""


def growth(what: str, times: Sequence[tuple[int, float]], tokens: int, **facts: str | int | float) -> Row | None:
    """How time grows with length where as many positions are in a batch; None if there are too few lengths to tell.

    times: lengths, and milliseconds of a batch of `tokens` positions, or of one sequence that is longer.
    """
    each = [(length, time / max(1, length / tokens)) for length, time in times if length >= FIRST]
    if len(each) < 2:
        return None
    return {
        "what": f"{what}, growth",
        **facts,
        "from": each[0][0],
        "to": each[-1][0],
        "exponent": exponent(each),
    }
