"""Models and data shared by all tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcram import Cram, CramConfig

# Everything here is tiny: one thread is quickest, and leaves the other cores to other workers.
torch.set_num_threads(1)

VOCABULARY = 16


def tiny_config(changes: Mapping[str, Any] | None = None, **preset: Any) -> CramConfig:
    """Three layers of width 32 with buffers of 8 slots; tokens in and out unless `preset` says otherwise."""
    preset = {"vocabulary": VOCABULARY} | preset
    size = {
        "layers": 3,
        "block.width": 32,
        "episodic.slots": 8,
        "semantic.rank": 8,
        "contradiction.rank": 32,
        "router.hidden": 16,
        "router.threshold": 0.45,
    }
    return CramConfig.preset("tiny", **preset).override(size | dict(changes or {}))


@torch.no_grad()
def enliven(model: Cram, seed: int) -> Cram:
    """Give weights that start at zero, or nearly so, values that matter, as after some training.

    A fresh model recalls nothing, routes almost all tokens alike and ignores the age of events; in such a model many
    mistakes would not show.
    """
    generator = torch.Generator().manual_seed(seed)

    def fill(weight: Tensor, scale: float) -> None:
        weight.copy_(scale * torch.randn(weight.shape, generator=generator))

    width = model.config.block.width
    for block in model.blocks:
        if block.semantic is not None:
            fill(block.semantic.up.weight, 1 / math.sqrt(model.config.semantic.rank))
        fill(block.router.out.weight, 3.0)
        if block.quality is not None:
            fill(block.quality.score.weight, 1.0)
            block.quality.reads.mean_square.fill_(16.0)
        fill(block.working.gate_weight, 1.0)
        if block.episodic is not None:
            fill(block.episodic.mix, 1.0)
            fill(block.episodic.priority.weight, 3 / math.sqrt(2 * width))
            if block.episodic.config.recency:
                fill(block.episodic.recency, 0.5)
            if block.episodic.config.convolution > 1:
                fill(block.episodic.taps, 0.7)
        if block.index is not None:
            # Some tokens ask and some are asked for, about half of what these say is new, and some ask for that.
            for head in (block.index.asks, block.index.asked):
                for part in head if block.index.back is not None else (head,):
                    if isinstance(part, torch.nn.Linear):
                        fill(part.weight, 3 / math.sqrt(part.in_features))
                        part.bias.fill_(-1.5 * (part.out_features == 1))
            fill(block.index.content.weight, 0.44 / math.sqrt(width))
            rank = model.config.contradiction.rank
            fill(block.index.doubt[2].weight, 3 / math.sqrt(2 * rank))
            block.index.doubt[2].bias.zero_()
            fill(block.index.expected[2].weight, 1 / math.sqrt(8 * rank))
            block.index.level.fill_(0.4)
        if block.router.on_hit is not None:
            fill(block.router.on_hit, 0.2)
        if block.router.worth is not None:
            # Reads are worth this and that, and about every other one its price.
            fill(block.router.worth.out.weight, 2.0)
            fill(block.router.worth.on_hit, 0.1)
            block.router.price.fill_(1.0)
    return model


def lively_model(changes: Mapping[str, Any] | None = None, *, seed: int = 0, **preset: Any) -> Cram:
    """A model, ready for evaluation, that uses all three actions, evicts, and minds the age of events."""
    print(f"model seed {seed}")  # noqa: T201
    torch.manual_seed(seed)
    return enliven(Cram(tiny_config(changes, **preset)), seed).eval()


def random_events(batch: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Token ids and gaps [B, N]: log-uniform over 0.1 to 1000, a tenth of them exactly 0."""
    print(f"data seed {seed}")  # noqa: T201
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (batch, length), generator=generator)
    gaps = 0.1 * 10 ** (4 * torch.rand(batch, length, generator=generator))
    simultaneous = torch.rand(batch, length, generator=generator) < 0.1
    return tokens, gaps.masked_fill(simultaneous, 0.0)


@pytest.fixture(scope="session")
def tiny() -> Callable[..., CramConfig]:
    return tiny_config


@pytest.fixture(scope="session")
def lively() -> Callable[..., Cram]:
    return lively_model


@pytest.fixture(scope="session")
def events() -> Callable[..., tuple[Tensor, Tensor]]:
    return random_events
