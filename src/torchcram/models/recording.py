"""Steps on a GPU that are recorded once and then replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_WARM_UP = 3  # runs before a recording: whatever is made at first use must have been


def record(
    run: Callable[[], Result], device: torch.device, *, warm_up: int = _WARM_UP, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record what `run` does, after some runs that it does for good; replaying fills what it returned.

    pool: of `torch.cuda.graph_pool_handle`, memory that recordings share: a replay overwrites what others left there.
    """
    how: AbstractContextManager[Any] = nullcontext()
    if torch.is_autocast_enabled("cuda"):
        # Narrow copies of weights must be made inside what is recorded: others are gone when autocast is left.
        how = torch.autocast("cuda", torch.get_autocast_dtype("cuda"), cache_enabled=False)
    with torch.cuda.device(device), how:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = run()
    return graph, result
