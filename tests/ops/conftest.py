"""What every operation is held to: its fast form gives the values and gradients of its reference."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor


def _run(function: Callable[..., Any], arguments: Sequence[Any], seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """All outputs, and the gradients of a random sum of them for every argument that requires one."""
    # No copies: an input that is not contiguous stays so.
    arguments = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in arguments]
    outputs = function(*arguments)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros((), dtype=torch.float64)
    for out in outputs:
        if out.requires_grad:
            loss = loss + (out * torch.randn(out.shape, generator=generator, dtype=out.dtype)).sum()
    wanted = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]
    if not loss.requires_grad:  # nothing in the outputs comes from the arguments
        return outputs, [torch.zeros_like(a) for a in wanted]
    return outputs, list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))


@pytest.fixture
def assert_forms_agree() -> Callable[..., None]:
    """Compare two forms of an operation on the same arguments: every output and every gradient."""

    def check(fast: Callable[..., Any], reference: Callable[..., Any], *arguments: Any, seed: int) -> None:
        before = [a.detach().clone() for a in arguments if isinstance(a, Tensor)]
        expected_outputs, expected_gradients = _run(reference, arguments, seed)
        outputs, gradients = _run(fast, arguments, seed)
        after = [a for a in arguments if isinstance(a, Tensor)]
        assert all(map(torch.equal, before, after)), f"seed {seed}: an argument was written to"
        assert len(outputs) == len(expected_outputs)
        for kind, ours, theirs in (
            ("output", outputs, expected_outputs),
            ("gradient", gradients, expected_gradients),
        ):
            for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                torch.testing.assert_close(
                    a, b, rtol=1e-9, atol=1e-11, msg=lambda m, k=kind, n=number: f"seed {seed}, {k} {n}: {m}"
                )

    return check
