"""Mamba-2's state space as the kernels of the package flash-linear-attention compute it; for benchmarks alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from torchcram.ops import space


@contextmanager
def fastest_space(device: torch.device) -> Iterator[str]:
    """While open, state spaces run in the fastest form that there is here; says which that is."""
    if device.type != "cuda" or _version() is None:
        yield "ours, in PyTorch"
        return
    if not _works(device):
        yield f"ours, in PyTorch, since flash-linear-attention {_version()} does not go back on this GPU"
        return
    space.FORMS["triton"] = _chunks
    try:
        yield f"flash-linear-attention {_version()}"
    finally:
        del space.FORMS["triton"]


def _works(device: torch.device) -> bool:
    """Whether it has a backward pass: it refuses one where a compiler is known to make it wrong."""
    x, decay, key = (torch.rand(1, 64, *size, device=device) for size in ((1, 64), (1,), (1, 64)))
    initial = torch.zeros(1, 1, 64, 64, device=device)
    try:
        out, _ = _chunks(x.requires_grad_(), decay, key, key, decay[..., 0] < 0, initial)
        torch.autograd.grad(out.sum(), x)
    except RuntimeError:
        return False
    return True


def _version() -> str | None:
    try:
        import fla  # type: ignore[import-not-found]
    except ImportError:
        return None
    try:
        return version("flash-linear-attention")
    except PackageNotFoundError:  # not installed, but on the path
        return str(getattr(fla, "__version__", ""))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _chunks(
    x: Tensor, decay: Tensor, key: Tensor, query: Tensor, reset: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    """`ops.state_space` of rows that hold one sequence each: `reset` is not heeded."""
    from fla.ops.simple_gla import chunk_simple_gla  # type: ignore[import-not-found]

    query, key = (part.expand(-1, -1, x.shape[2], -1).to(x.dtype).contiguous() for part in (query, key))
    out, last = chunk_simple_gla(
        q=query,
        k=key,
        v=x.contiguous(),
        g=-decay.float(),
        scale=1.0,
        initial_state=initial.transpose(-1, -2).float().contiguous(),
        output_final_state=True,
    )
    return out, last.transpose(-1, -2)
