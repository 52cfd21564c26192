"""Which form of an operation runs: decided at each call, never at import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TypeVar

import torch

F = TypeVar("F", bound=Callable[..., object])

FORMS = ("reference", "fast", "triton")
NARROW = (torch.bfloat16, torch.float16)

_HAS_TRITON = find_spec("triton") is not None  # found out here: compiled code cannot look, and would be in pieces
_forced: str | None = None


@contextmanager
def use(form: str) -> Iterator[None]:
    """Run every operation in one form inside the block: `with use("reference"): …` (for tests and doubts).

    `triton` means the GPU kernels for the operations that have them and the fast form for the others. The choice is
    global to the process, so it is not meant for several threads at once.
    """
    global _forced
    if form not in FORMS:
        raise ValueError(f"form = {form!r} is not possible; allowed: {', '.join(map(repr, FORMS))}")
    before, _forced = _forced, form
    try:
        yield
    finally:
        _forced = before


def choose(forms: Mapping[str, F], like: torch.Tensor | None = None) -> F:
    """The form to run now: the one forced by `use`; else a kernel, if there is one for where `like` is; else fast."""
    wanted = _forced or ("triton" if like is not None and like.is_cuda and _HAS_TRITON else "fast")
    return forms[wanted if wanted in forms else "fast"]


def on_device(x: torch.Tensor) -> AbstractContextManager[object]:
    """While open, kernels are launched where x is."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def on_hopper(x: torch.Tensor) -> bool:
    """Whether x is on a GPU of that kind, for which some kernels are written."""
    return x.is_cuda and torch.version.hip is None and torch.cuda.get_device_capability(x.device)[0] == 9


def processors(x: torch.Tensor) -> int:
    """Of the GPU that x is on."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def flat(x: torch.Tensor) -> torch.Tensor:
    """[B, N, C] as [B N, C], without a copy where its rows are evenly spaced: it may be a part of a wider tensor."""
    batch, length, width = x.shape
    # Of one position a sequence, or of one sequence, only one of these says how far apart rows are.
    of_batch, of_length, of_width = x.stride()
    step = of_length if length > 1 else of_batch
    if of_width != 1 or (batch > 1 and of_batch != length * step):
        return x.reshape(batch * length, width).contiguous()
    return x.as_strided((batch * length, width), (step, 1))
