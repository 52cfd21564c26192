"""What a task is: data, loss and metrics behind one interface. No task knows a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torchcram.config import InputConfig, OutputConfig

HELD_OUT = 1 << 40
"""Added to the seed for evaluation batches, which training never sees."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A batch: what the model gets, what it should answer, and what each position is."""

    inputs: Mapping[str, Tensor]
    dt: Tensor
    """[B, N]"""
    targets: Mapping[str, Tensor]
    """Head name to what it should predict."""
    kind: Tensor
    """[B, N] int8: index into the task's `kinds`."""
    pattern: Tensor
    """[B, N] int64: number of the recurring pattern a position asks for, or -1."""
    answered: Tensor | None = None
    """[B, N] bool: where there is an answer to give, for tasks that want one at few positions only."""

    def tensors(self) -> list[Tensor]:
        """All of them, in one order."""
        rest = (self.dt, self.kind, self.pattern, *(() if self.answered is None else (self.answered,)))
        return [*self.inputs.values(), *self.targets.values(), *rest]

    def copy(self) -> Examples:
        """The same in memory of its own."""
        return Examples(
            inputs={name: x.clone() for name, x in self.inputs.items()},
            dt=self.dt.clone(),
            targets={name: x.clone() for name, x in self.targets.items()},
            kind=self.kind.clone(),
            pattern=self.pattern.clone(),
            answered=None if self.answered is None else self.answered.clone(),
        )


class Task(Protocol):
    """Batches by (seed, step, rows) on any device, a loss, and metrics that add up."""

    name: str
    main: str
    """The head whose scored positions a read's price is counted in."""
    weights: Mapping[str, float]
    """Of each head's loss in the total."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What a position can be, for reports by kind."""

    @property
    def inputs(self) -> InputConfig:
        """What a model for this task takes."""

    @property
    def outputs(self) -> tuple[OutputConfig, ...]:
        """What it returns."""

    @property
    def length(self) -> int:
        """N, positions of a sequence."""

    @property
    def patterns(self) -> int:
        """How many recurring patterns there are; 0 for a task without."""

    def batch(self, *, seed: int, step: int, rows: range, device: torch.device | str = "cpu") -> Examples:
        """Some rows of the batch of one step; equal arguments give equal data, on any device."""

    def losses(self, predictions: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
        """The loss of each head: a mean over its scored positions."""

    def asked(self, examples: Examples) -> Tensor:
        """[B, N] bool: where the main head is scored."""

    def scored(self, examples: Examples) -> dict[str, Tensor]:
        """How many positions each head is scored on."""

    def counts(self, predictions: Mapping[str, Tensor], examples: Examples) -> dict[str, Tensor]:
        """Sums for metrics, to be added up over batches and given to `metrics`."""

    def metrics(self, counts: Mapping[str, float]) -> dict[str, float | None]:
        """Metrics under the keys of result files."""
