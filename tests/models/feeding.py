"""Feed a sequence to a model in pieces, and compare what comes out."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchcram import Cram, CramOutput, CramState, Ledger
from torchcram.memory import BlockState

LOSSES = {"consolidation", "quality", "uncertainty", "priority", "contradiction", "reads", "recall"}
"""What every layer of a model with all its parts learns from."""


def random_sizes(length: int, seed: int) -> list[int]:
    """Chunk sizes that add up to `length`: many small ones, some large."""
    draw, sizes = random.Random(seed), []
    while sum(sizes) < length:
        sizes.append(min(draw.choice([1, 1, 2, 3, 5, 9, 17, 40]), length - sum(sizes)))
    return sizes


def feed(
    model: Cram, tokens: Tensor, sizes: Sequence[int], *, state: CramState | None = None, **along: Any
) -> list[CramOutput]:
    """The outputs of a call for each chunk; `along` are tensors that are cut like the tokens (dt, mask, start)."""
    outs, begin = [], 0
    for size in sizes:
        here = slice(begin, begin + size)
        out = model(tokens[:, here], state=state, **{name: value[:, here] for name, value in along.items()})
        outs.append(out)
        begin, state = begin + size, out.state
    assert begin == tokens.shape[1]
    return outs


def predictions(outs: Sequence[CramOutput], head: str = "tokens") -> Tensor:
    return torch.cat([out.predictions[head] for out in outs], dim=1)


def routing(outs: Sequence[CramOutput]) -> Tensor:
    return torch.cat([out.routing for out in outs], dim=1)


def total(outs: Sequence[CramOutput]) -> Ledger:
    first, *rest = [out.ledger() for out in outs]
    return sum(rest, start=first)


def assert_close(actual: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def assert_same_state(actual: CramState | None, expected: CramState | None, rtol: float = 1e-4) -> None:
    """Integers exactly; numbers up to `rtol` of the largest in their tensor; empty slots at the end do not count."""
    assert actual is not None
    assert expected is not None
    actual, expected = _widened(actual, expected), _widened(expected, actual)
    found, wanted = dict(actual.named_tensors()), dict(expected.named_tensors())
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        scale = float(want.detach().abs().max()) if want.is_floating_point() and want.numel() else 0.0
        torch.testing.assert_close(
            found[name], want, rtol=0, atol=rtol * scale, msg=lambda text, n=name: f"{n}: {text}"
        )
    assert actual.fingerprint == expected.fingerprint


def _widened(state: CramState, other: CramState) -> CramState:
    def fit(mine: BlockState, theirs: BlockState) -> BlockState:
        episodic, index = mine.episodic, mine.index
        if episodic is not None and theirs.episodic is not None:
            episodic = episodic.widen(theirs.episodic.slots)
        if index is not None and theirs.index is not None:
            index = index.widen(theirs.index.entries)
        return dataclasses.replace(mine, episodic=episodic, index=index)

    layers = tuple(fit(mine, theirs) for mine, theirs in zip(state.layers, other.layers, strict=True))
    return dataclasses.replace(state, layers=layers)
