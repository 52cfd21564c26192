"""A training step: a loss, its gradients, and what becomes of the parameters. On a GPU it is recorded and replayed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from torchcram import processes
from torchcram.consolidation import Consolidator, Dials
from torchcram.draws import Draws
from torchcram.memory import RoutingPolicy
from torchcram.models import AnyModel, Cram
from torchcram.ops import Lengths
from torchcram.tasks import Examples, Task
from torchcram.training import optimizer
from torchcram.training.config import RunConfig
from torchcram.training.distributed import World
from torchcram.training.recorded import Outcome, Recorder

EARLY = 0.5
"""Weight of what heads further down answer, all of them together."""


class Stepper:
    """Takes training steps."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        model: AnyModel,
        consolidator: Consolidator,
        world: World,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.task, self.model, self.consolidator = config, task, model, consolidator
        self.world, self.device, self.say = world, world.device, say
        self._shared_loss = world.spread(model, self._loss)
        on_gpu = self.device.type == "cuda"
        self.recorder = Recorder(self.device) if on_gpu and config.graphs and world.size == 1 else None
        self.optimizer = optimizer.build(model, config.optimizer, recordable=self.recorder is not None)
        self._clipped = optimizer.clipped_together(model)
        kept = on_gpu or config.compile if isinstance(model, Cram) else on_gpu and not config.compile
        self.lengths = Lengths(steady=config.compile) if kept else None
        """How long lists have been: on a GPU a step must not wait to learn it, and compiled layers have to know."""
        self._step = 0
        self._meanwhile: Callable[[], None] = lambda: None
        # Where steps are recorded, what changes from one to the next is read on the device.
        self._clock = torch.zeros((), dtype=torch.int64, device=self.device)
        self._held = torch.zeros(2, device=self.device).unbind()
        self._before: list[Tensor] = []
        """The model's buffers before a step, for one that has to be taken again."""

    def take(
        self, step: int, examples: Examples, rate: float, meanwhile: Callable[[], None] = lambda: None
    ) -> tuple[Outcome, float]:
        """A step, numbered for what is random in it, and its loss: NaN if something in it was not finite.

        Then nothing was changed. `meanwhile` is called before the host waits to learn it: whatever it gives the device
        to do, this does next.
        """
        self._step, self._meanwhile = step, meanwhile
        optimizer.set_rate(self.optimizer, rate)
        return self._replay(examples) or self._plain(examples)

    def forget(self) -> None:
        """All recordings: tensors that they use were replaced."""
        if self.recorder is not None:
            self.recorder.forget()

    def _plain(self, examples: Examples) -> tuple[Outcome, float]:
        """As it is."""
        if self.lengths is not None:
            self._remember()
        while True:
            outcome = self._gradients(examples)
            self._meanwhile()
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
        """From a recording; None if there is none yet, or if lists had no room and so nothing was changed."""
        if self.recorder is None:
            return None
        self._clock.fill_(self._step)
        for held, value in zip(self._held, self.consolidator.dials, strict=True):
            held.fill_(value)
        kind = _kind(self.consolidator.policy(1.0))
        room = self.lengths.rooms(kind) if self.lengths is not None else ()
        if room is None:
            return None
        try:
            recording = self.recorder.find((kind, room), examples, self._checked_step)
        except RuntimeError as error:
            self.say(f"steps are not recorded, and so take longer: {str(error).splitlines()[0]}")
            torch.cuda.synchronize(self.device)
            self.recorder = None
            return None
        if recording is None:
            return None
        outcome = recording.replay(examples)
        self._meanwhile()
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
        step: int | Tensor = self._step
        dials = self.consolidator.dials
        if self.recorder is not None:
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


def _kind(policy: RoutingPolicy) -> tuple[str | bool, ...]:
    """Of a step: one of another kind makes other lists."""
    return policy.reads, policy.keep_all, policy.lesson, policy.audit > 0, policy.trial > 0
