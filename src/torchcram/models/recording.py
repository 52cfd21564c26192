"""Steps on a GPU that are recorded once and then replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")

_WARM_UP = 3  # runs before a recording: whatever is made at first use must have been


def record(run: Callable[[], Result], device: torch.device) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record what `run` does, after a few runs that it does for good; replaying fills what it returned."""
    # Narrow copies of weights must be made inside what is recorded: others are gone when autocast is left.
    narrow = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with torch.cuda.device(device), torch.autocast("cuda", narrow[1], enabled=narrow[0], cache_enabled=False):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = run()
    return graph, result
