"""How a run is going: live on a terminal, a line an evaluation elsewhere."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchcram.training.loop import Progress, Trainer


class Display:
    """Shows a trainer's progress while open; hand it every `Progress` with `report`.

    On a terminal it redraws by itself a few times a second and reads how far the trainer is, so that the bar moves
    between evaluations; whatever is printed to the same console appears above it.
    """

    def __init__(self, console: Console, trainer: Trainer) -> None:
        self.console = console
        self.trainer = trainer
        self.last: Progress | None = None
        self._marks = deque([(time.perf_counter(), trainer.step)], maxlen=4)
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal and not console.quiet:
            self._live = Live(get_renderable=self.render, console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        else:
            self.console.print(_beginning(self.trainer), soft_wrap=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def report(self, progress: Progress) -> None:
        """Take in an evaluation."""
        before, self.last = self.last, progress
        self._marks.append((time.perf_counter(), progress.step))
        if self._live is None:
            self.console.print(describe(progress, self.trainer.config.steps), soft_wrap=True)
        elif before is not None and before.phase != progress.phase:
            released = f", released at step {progress.released_at}" if before.phase == "acquire" else ""
            self.console.print(f"{before.phase} → {progress.phase}{released}")

    def render(self) -> RenderableType:
        """The display as of now."""
        step, steps = self.trainer.step, self.trainer.config.steps
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"{self.trainer.consolidator.phase:<11}", style="bold"),
            ProgressBar(total=steps, completed=step, width=32),
            f"step {step:,}/{steps:,}",
            f"{duration(self.seconds_left())} left",
        )
        return Group(head, self._numbers())

    def seconds_left(self) -> float | None:
        """At the pace since a few evaluations ago, checks and evaluations included; None before there is one."""
        begun, first = self._marks[0]
        done = self.trainer.step - first
        if done <= 0:
            return None
        return (time.perf_counter() - begun) / done * (self.trainer.config.steps - self.trainer.step)

    def _numbers(self) -> RenderableType:
        if self.last is None:
            return Text(f"the first evaluation comes at step {self.trainer.config.evaluate_every}", style="dim")
        found = self.last.evaluation
        bits = found.metrics.get("bits_per_byte")
        kinds = ("novel", "recurring")
        numbers = {
            "loss": f"{self.last.loss:.3f}",
            **({kind: _share(found.metrics[f"accuracy_{kind}"]) for kind in kinds} if bits is None else {}),
            **({"bits a byte": f"{bits:.3f}"} if bits is not None else {}),
            "reads": f"{_share(found.ledger.reads)} (OPT {_share(found.metrics['opt'])})",
            "q̄": _plain(found.mean_quality),
            "price": f"{self.trainer.consolidator.price:.3f} nats",
            "a step": f"{1000 * self.last.step_seconds:.0f} ms",
        }
        table = Table.grid(padding=(0, 2))
        table.add_row(*(Text(name, style="dim") for name in numbers))
        table.add_row(*numbers.values())
        return table


def describe(progress: Progress, steps: int) -> str:
    """One line of progress."""
    found = progress.evaluation
    m = found.metrics
    left = (steps - progress.step) * progress.step_seconds
    bits = m.get("bits_per_byte")
    told = f"accuracy novel {_share(m['accuracy_novel']):>6} recurring {_share(m['accuracy_recurring']):>6}"
    return (
        f"{progress.phase:<11} step {progress.step:>6}/{steps}  loss {progress.loss:7.3f}  "
        f"{told if bits is None else f'{bits:.3f} bits a byte of held-out text'}  "
        f"reads {_share(found.ledger.reads):>6} (least {_share(m['opt']):>6})  q̄ {_plain(found.mean_quality)}  "
        f"{1000 * progress.step_seconds:.0f} ms a step, {left / 60:.1f} min left"
    )


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds as a clock shows them."""
    if seconds is None:
        return "–:––"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _beginning(trainer: Trainer) -> str:
    """What is about to happen, for those who wait for the first evaluation."""
    config = trainer.config
    size = sum(p.numel() for p in trainer.model.parameters())
    return (
        f"{config.name} with {size:,} parameters on {config.task}: steps {trainer.step + 1} to {config.steps}, "
        f"a line every {config.evaluate_every}"
    )
