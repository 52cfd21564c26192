"""Feed a sequence to a model in pieces, and compare what comes out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchcram import Ledger
from torchcram.memory.state import SequenceState, aligned
from torchcram.models.sequence import SequenceModel, SequenceOutput

LOSSES = {"consolidation", "quality", "uncertainty", "priority", "contradiction", "reads", "recall"}
"""What every layer of a model with all its parts learns from."""


def random_sizes(length: int, seed: int) -> list[int]:
    """Chunk sizes that add up to `length`: many small ones, some large."""
    draw, sizes = random.Random(seed), []
    while sum(sizes) < length:
        sizes.append(min(draw.choice([1, 1, 2, 3, 5, 9, 17, 40]), length - sum(sizes)))
    return sizes


def feed(
    model: SequenceModel, tokens: Tensor, sizes: Sequence[int], *, state: SequenceState | None = None, **along: Any
) -> list[SequenceOutput]:
    """The outputs of a call for each chunk; `along` are tensors that are cut like the tokens (dt, mask, start)."""
    outs, begin = [], 0
    for size in sizes:
        here = slice(begin, begin + size)
        out = model(tokens[:, here], state=state, **{name: value[:, here] for name, value in along.items()})
        outs.append(out)
        begin, state = begin + size, out.state
    assert begin == tokens.shape[1]
    return outs


def predictions(outs: Sequence[SequenceOutput], head: str = "tokens") -> Tensor:
    return torch.cat([out.predictions[head] for out in outs], dim=1)


def routing(outs: Sequence[SequenceOutput]) -> Tensor:
    return torch.cat([out.routing for out in outs], dim=1)


def total(outs: Sequence[SequenceOutput]) -> Ledger:
    first, *rest = [out.ledger() for out in outs]
    return sum(rest, start=first)


def assert_close(actual: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def assert_same_state(actual: SequenceState | None, expected: SequenceState | None, rtol: float = 1e-4) -> None:
    """Integers exactly; numbers up to `rtol` of the largest in their tensor; empty slots at the end do not count."""
    assert actual is not None
    assert expected is not None
    actual, expected = aligned([actual, expected])
    found, wanted = dict(actual.named_tensors()), dict(expected.named_tensors())
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        scale = float(want.detach().abs().max()) if want.is_floating_point() and want.numel() else 0.0
        torch.testing.assert_close(
            found[name], want, rtol=0, atol=rtol * scale, msg=lambda text, n=name: f"{n}: {text}"
        )
    assert actual.fingerprint == expected.fingerprint
