"""How two things are timed against each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from torchcram.results import Row


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
    """Median milliseconds of both, run in turns so that whatever else the machine does touches both alike."""
    for _ in range(warm_up):
        ours()
        baseline()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for run, kept in zip((ours, baseline), times, strict=True):
            begin = time.perf_counter()
            run()
            kept.append(time.perf_counter() - begin)
    ours_ms, baseline_ms = (1000 * statistics.median(kept) for kept in times)
    return {
        "what": what,
        "length": length,
        **settings,
        "ours_ms": ours_ms,
        "baseline": against,
        "baseline_ms": baseline_ms,
        "ratio": baseline_ms / ours_ms,
    }
