"""How two things are timed against each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from torchcram.results import Row


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


def wait_for(device: torch.device) -> None:
    """Until a device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
