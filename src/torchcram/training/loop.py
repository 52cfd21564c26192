"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcram.consolidation import Consolidator
from torchcram.memory import RoutingPolicy
from torchcram.models import Cram
from torchcram.tasks import Srcd, Task
from torchcram.training import optimizer
from torchcram.training.config import RunConfig
from torchcram.training.evaluate import Evaluation, evaluate


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the loop tells after an evaluation."""

    step: int
    phase: str
    loss: float
    price: float
    excess: float
    evaluation: Evaluation
    seconds: float
    """Since the start of the run."""
    step_seconds: float
    """Of a training step, mean since the last report."""


class Trainer:
    """Trains one model on one task; `run` reports after every evaluation."""

    def __init__(self, config: RunConfig, device: torch.device | str = "cpu") -> None:
        self.config = config
        self.device = torch.device(device)
        torch.manual_seed(config.seed)
        self.task: Task = Srcd.variant(config.task, **config.settings)
        self.model = Cram(config.model).to(self.device)
        self.model.check_values = False  # the tasks' own data
        self.optimizer = optimizer.build(self.model, config.optimizer)
        self.consolidator = Consolidator(config.consolidation)
        self.step = 0
        self.forward = torch.compile(self.model) if config.compile else self.model

    def run(self) -> Iterator[Progress]:
        """Train to the end."""
        c = self.config
        begin = mark = time.perf_counter()
        since = self.step
        while self.step < c.steps:
            loss = self.train_step()
            self.consolidator.step(self.held_out)
            self.step += 1
            if self.step == optimizer.settle_step(c.optimizer, c.steps):
                self.consolidator.settle()
            if self.step % c.evaluate_every == 0 or self.step == c.steps:
                value = float(loss)
                now = time.perf_counter()
                yield Progress(
                    step=self.step,
                    phase=self.consolidator.phase,
                    loss=value,
                    price=self.consolidator.price,
                    excess=self.consolidator.controller.excess,
                    evaluation=self.evaluate(),
                    seconds=now - begin,
                    step_seconds=(now - mark) / (self.step - since),
                )
                mark, since = time.perf_counter(), self.step

    def train_step(self) -> Tensor:
        """One step on the next batch; returns its loss."""
        c = self.config
        examples = self.task.batch(seed=c.seed, step=self.step, rows=range(c.batch), device=self.device)
        rate = optimizer.rate(c.optimizer, self.step, c.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        self.model.train()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=c.bf16):
            out = self.forward(examples.inputs, dt=examples.dt, policy=self.consolidator.policy(), keep_state=False)
            losses = self.task.losses(out.predictions, examples)
            loss = sum(self.task.weights[head] * value for head, value in losses.items())
            main = self.task.scored(examples)[self.task.main]
            loss = loss + self.consolidator.loss(out.losses, positions=examples.kind.numel(), scored=main)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), c.optimizer.clip)
        self.optimizer.step()
        return loss.detach()

    def held_out(self, policy: RoutingPolicy) -> Mapping[str, float]:
        """Losses of the checks: always the same held-out sequences, so that differences are not sampling."""
        return self.evaluate(policy).losses

    def evaluate(self, policy: RoutingPolicy | None = None) -> Evaluation:
        """On held-out sequences, as the router decides unless told otherwise; dense while acquiring."""
        c = self.config
        if policy is None and self.consolidator.released_at is None:
            policy = RoutingPolicy(reads="dense")
        return evaluate(self.model, self.task, seed=c.seed, rows=c.evaluate_rows, policy=policy, bf16=c.bf16)
