"""How two things are timed against each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from torchcram.bench.turns import alone
from torchcram.models.recording import record
from torchcram.results import Row

_TRIED = 20  # calls by which one way is compared with another
_CLEARLY = 0.95  # of the time of the usual way: others are at work meanwhile, so less may be chance
_ROW = 4  # calls that are timed together, as a training loop takes its steps
_LONG = 0.5  # seconds of a call, of which what a host adds to it is nothing
_HEAD_START = 200_000  # cycles: about a tenth of a millisecond
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention": SDPBackend.FLASH_ATTENTION}
"""Kinds of attention on a GPU."""


def in_turns(
    *runs: Callable[[], object], repeats: int, warm_up: int, settle: int = 0, on: torch.device | None = None
) -> list[float]:
    """Median seconds of each, run in turns so that whatever else the machine does touches all alike.

    warm_up: calls of each during which other benchmarks may do the same. settle: more, that must be alone, too. on: a
    device whose own clock tells, if it is a GPU: so what the host takes to begin and to wait does not count.
    """
    for _ in range(warm_up):
        for run in runs:
            run()
    timed = _timed_by_gpu if on is not None and on.type == "cuda" else _timed
    with alone():
        times = [timed(*runs) for _ in range(settle + repeats)][settle:]
    return [statistics.median(each) for each in zip(*times, strict=True)]


def _timed_by_gpu(*runs: Callable[[], object]) -> list[float]:
    """Seconds that a GPU took for each; none may wait for it."""
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in runs]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    for run, (begin, end) in zip(runs, marks, strict=True):
        torch.cuda._sleep(_HEAD_START)  # type: ignore[no-untyped-call]  # meanwhile the host gets ahead
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1000 for begin, end in marks]


def _timed(*runs: Callable[[], object]) -> list[float]:
    """Seconds that each took."""
    marks = [time.perf_counter()]
    for run in runs:
        run()
        marks.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(marks)]


def at_best_for(
    run: Callable[[], object], attend: Callable[[], None], device: torch.device
) -> tuple[str, Callable[[], object]]:
    """A run with cuDNN's attention, or another that is clearly faster by itself: models need not be compiled with each.

    And which that is.
    """
    if device.type != "cuda":
        return "default attention", run
    best = best_of({name: _with(kernel, attend) for name, kernel in BACKENDS.items()})
    return best, _with(BACKENDS[best], run)


def best_of(runs: Mapping[str, Callable[[], None]]) -> str:
    """The name of the first, or of one that is clearly faster by its best time of several, all tried in turns."""
    rounds = [_timed(*runs.values()) for _ in range(_TRIED)]
    usual, *others = zip(map(min, zip(*rounds, strict=True)), runs, strict=True)
    best = min(others, default=usual)
    return best[1] if best[0] < _CLEARLY * usual[0] else usual[1]


def _with(kernel: SDPBackend, run: Callable[[], object]) -> Callable[[], None]:
    def inside() -> None:
        with sdpa_kernel([kernel]):
            run()

    return inside


def copy_bandwidth(device: torch.device, size: int = 1 << 30) -> float:
    """Bytes a second of a copy within a device's memory, those read and those written."""
    count = size if device.type == "cuda" else size >> 6
    source = torch.randint(255, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    (seconds,) = in_turns(lambda: target.copy_(source), repeats=9, warm_up=2, on=device)
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


def in_a_row(run: Callable[[], object], device: torch.device, times: int) -> Callable[[], None]:
    """The same so many times, until the device has done it all: the host begins one while another runs."""

    def every() -> None:
        for _ in range(times):
            run()

    return waiting(every, device)


def how_often(run: Callable[[], object], device: torch.device) -> int:
    """How many times in a row to do what was done before: several, unless what a host adds is nothing beside it."""
    if device.type != "cuda":
        return 1
    (seconds,) = _timed(in_a_row(run, device, 1))
    return _ROW if seconds < _LONG else 1


def shared_out(row: Row, ours: int, baseline: int) -> Row:
    """A row of what was done so many times in a row, for one time each."""
    times = {"ours_ms": ours, "baseline_ms": baseline}
    row = {**row, **{name: float(str(row[name])) / often for name, often in times.items()}}
    return {**row, "ratio": float(str(row["baseline_ms"])) / float(str(row["ours_ms"]))}


def replayed(run: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """The same, recorded if that can be done: short kernels are then not timed by how fast a host launches them.

    It does not wait for them.
    """
    if device.type != "cuda":
        return waiting(run, device)
    graph, _ = record(run, device)
    return graph.replay


def compare(
    what: str,
    ours: Callable[[], object],
    baseline: Callable[[], object],
    *,
    against: str,
    length: int,
    repeats: int = 15,
    warm_up: int = 3,
    settle: int = 0,
    on: torch.device | None = None,
    **settings: str | int | float,
) -> Row:
    """Median milliseconds of both, and how many times faster ours is; see `in_turns`."""
    seconds = in_turns(ours, baseline, repeats=repeats, warm_up=warm_up, settle=settle, on=on)
    ours_ms, baseline_ms = (1000 * each for each in seconds)
    return {
        "what": what,
        "length": length,
        **settings,
        "ours_ms": ours_ms,
        "baseline": against,
        "baseline_ms": baseline_ms,
        "ratio": baseline_ms / ours_ms,
    }
