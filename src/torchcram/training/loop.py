"""The training loop."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcram import processes, tasks
from torchcram.consolidation import Consolidator, Dials
from torchcram.draws import Draws
from torchcram.memory import RoutingPolicy
from torchcram.models import Cram, build
from torchcram.ops import Lengths
from torchcram.tasks import Examples, Task
from torchcram.training import checkpoint, optimizer, state, teacher
from torchcram.training.checkpoint import Checkpoint
from torchcram.training.config import RunConfig
from torchcram.training.decisions import Decisions
from torchcram.training.distributed import World
from torchcram.training.evaluate import Evaluation, evaluate
from torchcram.training.recorded import Outcome, Recorder
from torchcram.training.worth import Worth, measure

_PATIENCE = 5  # steps in a row without a finite loss before going back to the last checkpoint
EARLY = 0.5
"""Weight of what heads further down answer, all of them together."""
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
        if config.compile:
            for block in self.model.blocks:
                block.compile_parts()  # type: ignore[operator]
        self._shared_loss = self.world.spread(self.model, self._loss)
        on_gpu = self.device.type == "cuda"
        self._recorder = Recorder(self.device) if on_gpu and config.graphs and self.world.size == 1 else None
        self.optimizer = optimizer.build(self.model, config.optimizer, recordable=self._recorder is not None)
        self._clipped = optimizer.clipped_together(self.model)
        self.consolidator = Consolidator(config.consolidation, main=self.task.main)
        self.step = 0
        self.rate_scale = 1.0
        """Lowered when training had to go back."""
        self.skipped = 0
        self.seconds = 0.0
        """Spent on the run so far."""
        self.decisions = Decisions(self.task.patterns, self.device)
        kept = on_gpu or config.compile if isinstance(self.model, Cram) else on_gpu and not config.compile
        self.lengths = Lengths() if kept else None
        """How long lists have been: on a GPU a step must not wait to learn it, and compiled layers have to know."""
        self._positions = 0
        """Trained on since the last report, in all processes."""
        self._counts = torch.zeros(2, dtype=torch.float64, device=self.device)
        """Of this process's: those that read, and audits in a layer."""
        # Where steps are recorded, what changes from one to the next is read on the device.
        self._clock = torch.zeros((), dtype=torch.int64, device=self.device)
        self._held = torch.zeros(2, device=self.device).unbind()
        self._before: list[Tensor] = []
        """The model's buffers before a step, for one that has to be taken again."""

    def run(self, checkpoints: Path | None = None, stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Train to the end, or until `stop()`; save to the folder `checkpoints`, if given, and once more at the end."""
        c = self.config
        spent, since, bad = 0.0, self.step, 0
        begun = time.perf_counter() - self.seconds
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
            if checkpoints is not None and not bad and self.step % c.save_every == 0 and self.step < c.steps:
                self.save(checkpoints)
        if checkpoints is not None:
            self.save(checkpoints)

    def train_step(self) -> float:
        """One step on the next batch; returns its loss. A loss or gradient that is not finite changes nothing."""
        c = self.config
        optimizer.set_rate(self.optimizer, optimizer.rate(c.optimizer, self.step, c.steps) * self.rate_scale)
        self.model.train()
        with self.world.sharing():
            rows = processes.share(range(c.batch))
            examples = self.task.batch(seed=c.seed, step=self.step, rows=rows, device=self.device)
        outcome, loss = self._replay(examples) or self._plain(examples)
        if not math.isfinite(loss):
            return loss
        self.decisions.record(self.step, examples.pattern, outcome.routing)
        self._counts += outcome.executed
        self._positions += examples.kind.numel() * self.world.size
        return loss

    def _plain(self, examples: Examples) -> tuple[Outcome, float]:
        """A step and its loss: NaN if it was left out, since something in it was not finite."""
        if self.lengths is not None:
            self._remember()
        while True:
            outcome = self._gradients(examples)
            numbers, needed = outcome.fetch()
            fits = self.lengths is None or self.lengths.fit(needed)
            if not self.world.any(not fits):
                break
            self._undo()  # what had no room was left out: once more, with room for it
        if not all(map(math.isfinite, numbers)):
            return outcome, math.nan
        self.optimizer.step()
        return outcome, numbers[0]

    def _replay(self, examples: Examples) -> tuple[Outcome, float] | None:
        """The same from a recording; None if there is none yet, or if lists had no room and so nothing was changed."""
        if self._recorder is None:
            return None
        self._clock.fill_(self.step)
        for held, value in zip(self._held, self.consolidator.dials, strict=True):
            held.fill_(value)
        kind = _kind(self.consolidator.policy(1.0))
        room = self.lengths.rooms(kind) if self.lengths is not None else ()
        if room is None:
            return None
        try:
            recording = self._recorder.find((kind, room), examples, self._checked_step)
        except RuntimeError as error:
            self.say(f"steps are not recorded, and so take longer: {str(error).splitlines()[0]}")
            torch.cuda.synchronize(self.device)
            self._recorder = None
            return None
        if recording is None:
            return None
        outcome = recording.replay(examples)
        numbers, needed = outcome.fetch()
        if self.lengths is not None and not self.lengths.fit(needed, outcome.call):
            self._undo()
            return None
        return outcome, numbers[0] if all(map(math.isfinite, numbers)) else math.nan

    def _checked_step(self, examples: Examples) -> Outcome:
        """A step that changes nothing if something in it is not finite or had no room, of which no host has to know."""
        self._remember()
        outcome = self._gradients(examples)
        wrong = ~outcome.numbers.isfinite().all()
        if outcome.call is not None and (over := outcome.call.overflows) is not None:
            wrong = wrong | over
        self.optimizer.found_inf = wrong.float()  # type: ignore[attr-defined]
        self.optimizer.step()
        del self.optimizer.found_inf  # type: ignore[attr-defined]
        return outcome

    def _remember(self) -> None:
        """What a step changes besides parameters."""
        buffers = list(self.model.buffers())
        self._before = self._before or [torch.empty_like(buffer) for buffer in buffers]
        for kept, buffer in zip(self._before, buffers, strict=True):
            kept.copy_(buffer)

    def _undo(self) -> None:
        """As if it had not been taken."""
        for buffer, kept in zip(self.model.buffers(), self._before, strict=True):
            buffer.copy_(kept)

    def _gradients(self, examples: Examples) -> Outcome:
        """A loss and its gradients, which are left clipped."""
        with self.world.sharing():
            loss = self._shared_loss(examples)
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
        norms = [
            self.world.whole(torch.nn.utils.clip_grad_norm_(parameters, self.config.optimizer.clip)).to(self.device)
            for parameters in self._clipped
            if any(parameter.grad is not None for parameter in parameters)  # onlookers do not learn from every step
        ]
        numbers = torch.stack([each.float().double() for each in (self.world.mean(loss.detach().float()), *norms)])
        call = self.lengths.last if self.lengths is not None else None
        return Outcome(
            numbers=numbers,
            needed=numbers[:0] if call is None else call.needed.to(self.device),
            call=call,
            routing=self._routing,
            executed=self._executing,
        )

    def _loss(self, examples: Examples) -> Tensor:
        """Of this process's rows: the mean over the processes is the loss of the batch."""
        c = self.config
        rows = processes.share(range(c.batch))
        step: int | Tensor = self.step
        dials = self.consolidator.dials
        if self._recorder is not None:
            step = self._clock
            dials = Dials(*self._held) if self.consolidator.released_at is not None else dials
        draws = Draws(seed=c.seed, step=step, rows=torch.arange(rows.start, rows.stop, device=self.device))
        scored = self.task.scored(examples)
        overall = dict(zip(scored, processes.totals(*scored.values()), strict=True))
        policy = self.consolidator.policy(processes.per_process(overall[self.task.main]), dials)
        policy = replace(policy, draws=draws, answered=examples.answered, asked=self.task.asked(examples))
        kept = self.lengths.kept(_kind(policy)) if self.lengths is not None else contextlib.nullcontext()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=c.bf16):
            with kept:
                out = self.model(examples.inputs, dt=examples.dt, policy=policy, keep_state=False)
            positions = examples.kind.numel() * self.world.size
            main = overall[self.task.main]
            loss = self.consolidator.loss(out.losses, positions=positions, scored=main, dials=dials)
            for predictions, weight in ((out.predictions, 1.0), *((p, EARLY / len(out.early)) for p in out.early)):
                for head, value in self.task.losses(predictions, examples).items():
                    part = processes.part_of_mean(value, scored[head], overall[head])
                    loss = loss + weight * self.task.weights[head] * part
        self._routing = out.routing  # kept apart: DDP expects gradients for all that is returned
        audits = torch.stack([layer.audits for layer in out.layers]).double().mean(0).sum()
        self._executing = torch.stack([(out.routing == 1).any(-1).sum(), audits])
        return loss

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
        checkpoint.save(folder, given, keep=self.config.keep, world=self.world)

    def restore(self, folder: Path, step: int | None = None) -> bool:
        """Go on from the newest whole checkpoint, False if there is none; or from that of a step, which must be."""
        if step is None:
            found = checkpoint.newest(folder, self.say, self.world)
        else:
            found = checkpoint.at(folder, step, self.world)
        if found is None:
            return False
        state.restore(self.model, self.optimizer, found)
        if self._recorder is not None:
            self._recorder.forget()
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


def _kind(policy: RoutingPolicy) -> tuple[str | bool, ...]:
    """Of a step: one of another kind makes other lists."""
    return policy.reads, policy.keep_all, policy.lesson, policy.audit > 0, policy.trial > 0
