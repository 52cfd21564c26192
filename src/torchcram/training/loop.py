"""The training loop."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchcram import processes, tasks
from torchcram.consolidation import Consolidator
from torchcram.memory import RoutingPolicy
from torchcram.models import Cram, build
from torchcram.tasks import Examples, Task
from torchcram.training import checkpoint, optimizer, start, state, teacher
from torchcram.training.checkpoint import Checkpoint
from torchcram.training.config import RunConfig
from torchcram.training.decisions import Decisions
from torchcram.training.distributed import World
from torchcram.training.evaluate import Evaluation, evaluate
from torchcram.training.step import Stepper
from torchcram.training.worth import Worth, measure

_PATIENCE = 5  # steps in a row without a finite loss before going back to the last checkpoint
_LOWEST_RATE = 1 / 32  # of the learning rate: going back more often than that will not help


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the loop tells after an evaluation."""

    step: int
    phase: str
    loss: float
    price: float
    excess: float
    released_at: int | None
    evaluation: Evaluation
    step_seconds: float
    """Of a training step, mean since the last report."""
    seconds: float
    """Of the whole run so far: steps, checks, evaluations."""
    reads_training: float
    """Share of the positions trained on since the last report that read in at least one layer."""
    audits: float
    """Share of those positions audited in a layer, averaged over layers."""
    skipped: int
    """Steps so far that were left out because their loss was not finite."""
    worth: Worth | None = None
    """What reads are worth; at the end, if they were released."""

    def entry(self) -> dict[str, Any]:
        """A line of the metrics."""
        return {
            "step": self.step,
            "phase": self.phase,
            "loss": self.loss,
            "price": self.price,
            "excess": self.excess,
            "released_at": self.released_at,
            "step_seconds": self.step_seconds,
            "seconds": self.seconds,
            "skipped": self.skipped,
            **self.evaluation.row(),
            "reads_training": self.reads_training,
            "audits": self.audits,
            "losses": self.evaluation.losses,
            "kind_reads": self.evaluation.kind_reads,
            "kind_hits": self.evaluation.kind_hits,
            "quality": self.evaluation.quality,
            "mean_quality": self.evaluation.mean_quality,
            "histograms": self.evaluation.histograms,
            "worth": self.worth.to_dict() if self.worth is not None else None,
            "sample": dataclasses.asdict(self.evaluation.sample),
        }


class Trainer:
    """Trains one model on one task; `run` reports after every evaluation.

    With several processes each makes one, and all call the same methods: they act as one that has the whole batch.
    """

    def __init__(
        self,
        config: RunConfig,
        device: torch.device | str = "cpu",
        say: Callable[[str], None] = lambda _: None,
        world: World | None = None,
    ) -> None:
        """`world`, if there are several processes, also says which device to use."""
        self.config = config
        self.world = world or World(device=torch.device(device))
        self.world.check(config)
        self.device = self.world.device
        self.say = say
        torch.manual_seed(config.seed)
        self.task: Task = tasks.make(config.task, **config.settings)
        self.model = build(config.model).to(self.device)
        self.model.check_values = False  # the tasks' own data
        start.freeze(self.model, config.start.frozen)
        if config.compile:
            self.model.compile_parts()
        # The main head of every task has a cross entropy.
        self.consolidator = Consolidator(config.consolidation, main=self.task.main, floor=0.0)
        self.stepper = Stepper(config, self.task, self.model, self.consolidator, self.world, say)
        self.step = 0
        self.rate_scale = 1.0
        """Lowered when training had to go back."""
        self.skipped = 0
        self.seconds = 0.0
        """Spent on the run so far."""
        self.decisions = Decisions(self.task.patterns, self.device)
        self._ahead: tuple[int, Examples | None] = (0, None)
        """A batch that was made before its step."""
        self._positions = 0
        """Trained on since the last report, in all processes."""
        self._counts = torch.zeros(2, dtype=torch.float64, device=self.device)
        """Of this process's: those that read, and audits in a layer."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Of all parameters."""
        return self.stepper.optimizer

    def run(self, checkpoints: Path | None = None, stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Train to the end, or until `stop()`; save to the folder `checkpoints`, if given, and once more at the end."""
        c = self.config
        spent, since, bad = 0.0, self.step, 0
        begun = time.perf_counter() - self.seconds
        if self.step == 0 and c.start.run:
            start.load_layers(self.model, c.start.run, self.world)
        if checkpoints is not None and self.step == 0:
            self.save(checkpoints)
        while self.step < c.steps and not self.world.any(stop()):
            mark = time.perf_counter()
            loss = self.train_step()
            spent += time.perf_counter() - mark
            bad = 0 if math.isfinite(loss) else bad + 1
            if bad:
                self.skipped += 1
                self.say(f"step {self.step + 1}: the loss is {loss}; the step is left out")
            if bad >= _PATIENCE:
                self._go_back(checkpoints)
                spent, since, bad = 0.0, self.step, 0
                continue
            acquiring = self.consolidator.released_at is None
            self.consolidator.step(self.held_out)
            self.step += 1
            if checkpoints is not None and acquiring and self.consolidator.released_at is not None:
                teacher.keep(self, checkpoints)
            if self.step >= optimizer.settle_step(c.optimizer, c.steps):
                self.consolidator.settle()
            if self.step % c.evaluate_every == 0 or self.step == c.steps:
                evaluation = self.evaluate()
                ending = self.step == c.steps and self.consolidator.released_at is not None
                worth = self.worth() if ending else None
                self.seconds = time.perf_counter() - begun
                yield Progress(
                    step=self.step,
                    phase=self.consolidator.phase,
                    loss=loss,
                    price=self.consolidator.price,
                    excess=self.consolidator.controller.excess,
                    released_at=self.consolidator.released_at,
                    evaluation=evaluation,
                    **self._executed(),
                    step_seconds=spent / max(1, self.step - since),
                    seconds=self.seconds,
                    skipped=self.skipped,
                    worth=worth,
                )
                spent, since = 0.0, self.step
            self.seconds = time.perf_counter() - begun
            due = (self.step % c.save_every == 0 and not bad) or self.step in c.save_at  # a bad step changed nothing
            if checkpoints is not None and due and self.step < c.steps:
                self.save(checkpoints)
        if checkpoints is not None:
            self.save(checkpoints)

    def train_step(self) -> float:
        """One step on the next batch; returns its loss. A loss or gradient that is not finite changes nothing."""
        c = self.config
        self.model.train()
        examples = self._examples(self.step)
        rate = optimizer.rate(c.optimizer, self.step, c.steps) * self.rate_scale
        outcome, loss = self.stepper.take(self.step, examples, rate, self._look_ahead)
        if not math.isfinite(loss):
            return loss
        self.decisions.record(self.step, examples.pattern, outcome.routing)
        self._counts += outcome.executed
        self._positions += examples.kind.numel() * self.world.size
        return loss

    def _examples(self, step: int) -> Examples:
        """This process's rows of the batch of a step."""
        made_for, examples = self._ahead
        if examples is not None and made_for == step:
            return examples
        with self.world.sharing():
            rows = processes.share(range(self.config.batch))
            return self.task.batch(seed=self.config.seed, step=step, rows=rows, device=self.device)

    def _look_ahead(self) -> None:
        """Make the next batch while a GPU is busy with this step: it would have to wait for the host otherwise."""
        self._ahead = self.step + 1, self._examples(self.step + 1)

    def _executed(self) -> dict[str, float]:
        """What training has read and audited since this was last asked."""
        with self.world.sharing():
            reading, audits = processes.total(self._counts).tolist()
        positions, self._positions = max(1, self._positions), 0
        self._counts.zero_()
        return {"reads_training": reading / positions, "audits": audits / positions}

    def held_out(self, policy: RoutingPolicy) -> Mapping[str, float]:
        """Losses of the checks: always the same held-out sequences, so that differences are not sampling."""
        return self.evaluate(policy).losses

    def evaluate(
        self, policy: RoutingPolicy | None = None, *, seed: int | None = None, rows: int | None = None
    ) -> Evaluation:
        """On held-out sequences, as the router decides unless told otherwise; dense while acquiring."""
        c = self.config
        seed, rows = c.seed if seed is None else seed, rows or c.evaluate_rows
        if policy is None and self.consolidator.released_at is None:
            policy = self.consolidator.dense()
        with self._measuring():
            return evaluate(self.model, self.task, seed=seed, rows=rows, policy=policy, bf16=c.bf16)

    def worth(self, *, seed: int | None = None, rows: int | None = None) -> Worth:
        """What reads are worth on held-out sequences."""
        c = self.config
        if not isinstance(self.model, Cram):
            raise ValueError("what reads are worth is measured for models that choose them: cram")
        with self._measuring():
            return measure(
                self.model,
                self.task,
                seed=c.seed if seed is None else seed,
                rows=rows or c.evaluate_rows,
                bf16=c.bf16,
            )

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[None]:
        """Compiled layers are for the batches of training: held-out data comes in others, and is rare."""
        plain = torch.compiler.set_stance("force_eager") if self.config.compile else contextlib.nullcontext()
        with self.world.sharing(), plain:
            yield

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        extra = {
            "consolidator": self.consolidator.state_dict(),
            "rate_scale": self.rate_scale,
            "skipped": self.skipped,
            "seconds": self.seconds,
        }
        given = Checkpoint(step=self.step, tensors=state.tensors(self.model, self.optimizer), extra=extra)
        # First what belongs to the steps before: a checkpoint without them would never get them back.
        self.decisions.save(folder / "decisions", self.world)
        checkpoint.save(folder, given, keep=self.config.keep, world=self.world, always=self.config.save_at)

    def restore(self, folder: Path, step: int | None = None) -> bool:
        """Go on from the newest whole checkpoint, False if there is none; or from that of a step, which must be."""
        if step is None:
            found = checkpoint.newest(folder, self.say, self.world)
        else:
            found = checkpoint.at(folder, step, self.world)
        if found is None:
            return False
        state.restore(self.model, self.optimizer, found)
        self.stepper.forget()
        self.step = found.step
        self.consolidator.load_state_dict(found.extra["consolidator"])
        self.rate_scale, self.skipped = found.extra["rate_scale"], found.extra["skipped"]
        self.seconds = found.extra["seconds"]
        self.decisions = Decisions(self.task.patterns, self.device)
        return True

    def _go_back(self, checkpoints: Path | None) -> None:
        """To the last checkpoint, at half the learning rate; without one there is no way on."""
        scale, skipped = self.rate_scale / 2, self.skipped
        if checkpoints is None or not self.restore(checkpoints):
            raise FloatingPointError(
                f"{_PATIENCE} steps in a row had no finite loss, and there is no checkpoint to go back to"
            )
        self.rate_scale, self.skipped = min(scale, self.rate_scale / 2), skipped
        if self.rate_scale < _LOWEST_RATE:
            raise FloatingPointError(
                "training keeps running into losses that are not finite, whatever the learning rate"
            )
        self.say(f"back to step {self.step}, with the learning rate times {self.rate_scale:g} from here on")
