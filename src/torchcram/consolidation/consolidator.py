"""Acquire, consolidate, settle: how a model learns to read, and then not to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcram.consolidation.config import ConsolidationConfig
from torchcram.consolidation.controller import QualityController
from torchcram.consolidation.gate import CompetenceGate
from torchcram.consolidation.signals import SIGNALS
from torchcram.memory import RoutingPolicy

Measure = Callable[[RoutingPolicy], Mapping[str, float]]
"""Held-out loss of each head, in nats per scored position, under a routing policy."""


_WEIGHED = "consolidation", "quality", "uncertainty", "priority", "utility", "contradiction"


class Phase(StrEnum):
    """Where training stands."""

    TRAIN = "train"
    ACQUIRE = "acquire"
    CONSOLIDATE = "consolidate"
    SETTLE = "settle"


class Dials(NamedTuple):
    """What changes from one training step to the next; as tensors, a step that was recorded once heeds them too."""

    temperature: float | Tensor
    price: float | Tensor
    """What a read costs, in nats."""


class Consolidator:
    """Tells a training loop how to route, what to add to its loss, and when to release. For any loop:

        consolidator = Consolidator(ConsolidationConfig(tolerance=0.01))
        for step, batch in enumerate(batches):
            out = model(batch.x, dt=batch.dt, policy=consolidator.policy(), keep_state=False)
            loss = task_loss(out) + consolidator.loss(out.losses, positions=batch.positions, scored=batch.scored)
            ...                                          # backward, optimizer step
            consolidator.step(held_out_losses)           # policy -> {head: loss}; called only when a check is due

    *Acquire*: every token reads but for a few at random, from all that was written; nothing costs. *Consolidate*, from
    the moment the gate finds the model competent: the router chooses, and a read's price rises as far as the tolerance
    allows. *Settle*: the same, while the loop lets its learning rate decay (call `settle`).
    """

    def __init__(self, config: ConsolidationConfig, main: str | None = None, floor: float | None = None) -> None:
        """`main` names the head that reads are for, if there are several: nothing is released before it is helped.

        floor: the least that its loss can be, if that is known, such as 0 of a cross entropy: a model that is there
        without reads, but for the tolerance, is released as well.
        """
        self.config = config
        self.steps = 0
        self.released_at: int | None = 0 if config.schedule == "paper" or config.release == 0 else None
        self.settling = False
        self.gate = CompetenceGate(
            benefit=config.benefit, patience=config.patience, main=main, floor=floor, tolerance=config.tolerance
        )
        self.controller = QualityController(tolerance=config.tolerance)

    @property
    def phase(self) -> Phase:
        """Where training stands."""
        if self.config.schedule == "plain":
            return Phase.TRAIN
        if self.released_at is None:
            return Phase.ACQUIRE
        return Phase.SETTLE if self.settling else Phase.CONSOLIDATE

    @property
    def since(self) -> int:
        """Steps since release; 0 before."""
        return 0 if self.released_at is None else self.steps - self.released_at

    @property
    def progress(self) -> float:
        """How far the ramp after release has come, 0 to 1."""
        return min(1.0, self.since / self.config.ramp)

    @property
    def price(self) -> float:
        """What a read costs now, in nats."""
        return self.config.price * self.progress * self.controller.pressure

    @property
    def dials(self) -> Dials:
        """What the next training step goes by."""
        return Dials(SIGNALS[self.config.signal].temperature(self.config, self.steps, self.since), self.price)

    def policy(self, scored: Tensor | float | None = None, dials: Dials | None = None) -> RoutingPolicy:
        """How the next training step should route; `scored`: positions that its loss will be a mean of.

        Needed with `signal="utility"`: so what reads are worth is told in nats. dials: to be used for its own.
        """
        c = self.config
        dials = dials or self.dials
        if scored is None:
            if c.signal == "utility":
                raise ValueError("signal='utility' needs policy(scored=…), the positions that the loss is a mean of")
            scored = 1.0
        if c.schedule == "plain":
            return RoutingPolicy()
        signal = SIGNALS[c.signal]
        lesson = self.progress < 1 or self.steps % c.lessons == 0
        trial = signal.trial(c) if lesson else 0.0
        if self.released_at is None:
            return RoutingPolicy(reads="dense", skip=c.skip, trial=trial, scored=scored, lesson=lesson, keep_all=True)
        return RoutingPolicy(
            lesson=lesson,
            audit=signal.audit(c),
            trial=trial,
            price=dials.price if c.signal == "utility" else None,
            scored=scored,
            temperature=dials.temperature,
        )

    def dense(self) -> RoutingPolicy:
        """How to evaluate with every token reading: while acquiring, from all that was ever written."""
        if self.config.schedule == "plain":
            return RoutingPolicy()
        return RoutingPolicy(reads="dense", keep_all=self.released_at is None)

    def loss(
        self,
        losses: Mapping[str, Tensor],
        *,
        positions: Tensor | int,
        scored: Tensor | int,
        dials: Dials | None = None,
    ) -> Tensor:
        """What to add to the task's loss: the layers' own losses and, once released, the cost of reads.

        positions: real positions of the batch; scored: positions the task's loss is a mean of. With both, a price in
        nats per read means the same whatever the task. dials: as for `policy`.
        """
        c = self.config
        total: Tensor | float = 0.0
        if c.schedule != "plain":
            total = SIGNALS[c.signal].cost(c, losses, (dials or self.dials).price, positions, scored)
        for name in _WEIGHED:
            if name in losses:
                total = total + getattr(c, name) * losses[name]
        for name in sorted(losses.keys() - {*_WEIGHED, "reads", "recall"}):
            total = total + losses[name]  # a model's own, which it has weighed itself
        return torch.as_tensor(total)

    def step(self, measure: Measure) -> dict[str, float] | None:
        """Count a step; if a check is due, measure, and release or adjust the pressure. Returns what was measured."""
        self.steps += 1
        if self.steps == self.config.release:
            self.release()
        if self.steps % self.config.check_every or self.config.schedule != "adaptive":
            return None
        dense = measure(self.dense())
        if self.released_at is None:
            if self.config.release is not None:
                return _named(dense=dense)
            off = measure(RoutingPolicy(reads="off"))
            helped = self.gate.observe(dense, off)
            if helped:
                self.release({head: dense[head] for head in helped})
            return _named(dense=dense, off=off)
        routed = measure(RoutingPolicy())
        self.controller.observe(routed, dense)
        return _named(dense=dense, routed=routed)

    def release(self, helped: Mapping[str, float] | None = None) -> None:
        """Let the router choose from now on. The gate does so; a loop of one's own may have reasons, too.

        helped: dense losses now of heads that are not to get worse, such as those that reads help.
        """
        if self.released_at is None:
            self.released_at = self.steps
            self.controller.at_release = dict(helped or {})

    def settle(self) -> None:
        """Tell that the learning rate decays from now on."""
        self.settling = True

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as JSON-ready data."""
        return {
            "steps": self.steps,
            "released_at": self.released_at,
            "settling": self.settling,
            "gate": self.gate.checks,
            "controller": dataclasses.asdict(self.controller),
        }

    def load_state_dict(self, data: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.steps, self.released_at, self.settling = data["steps"], data["released_at"], data["settling"]
        self.gate.checks = [{head: tuple(pair) for head, pair in entry.items()} for entry in data["gate"]]
        self.controller = QualityController(**data["controller"])


def _named(**groups: Mapping[str, float]) -> dict[str, float]:
    return {f"{group}_{head}": value for group, losses in groups.items() for head, value in losses.items()}
