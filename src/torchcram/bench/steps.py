"""What a training step of trained runs costs: with and without a contradiction index, û, and whatever else differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchcram.bench.timing import in_turns, wait_for
from torchcram.consolidation import Phase
from torchcram.results import Row
from torchcram.training.loop import Trainer


def run(trainers: Sequence[Trainer], repeats: int = 9) -> list[Row]:
    """Milliseconds of a step of each, lessons and trials included, and how much more than the first's that is."""
    for trainer in trainers:
        if trainer.consolidator.phase is not Phase.TRAIN and trainer.consolidator.progress < 1:
            which = f"{trainer.config.name}, seed {trainer.config.seed}, step {trainer.step}"
            raise ValueError(f"a run ({which}) has not come far enough: it still learns to read, or its price rises")
    times = in_turns(*map(_block, trainers), repeats=repeats, warm_up=1)
    each = [time / trainer.config.consolidation.lessons for time, trainer in zip(times, trainers, strict=True)]
    return [
        {
            "index_rank": trainer.config.index_rank,
            "signal": trainer.config.consolidation.signal,
            "lessons": trainer.config.consolidation.lessons,
            "batch": trainer.config.batch,
            "bf16": trainer.config.bf16,
            "compile": trainer.config.compile,
            "step_ms": 1000 * time,
            "tokens_per_second": trainer.config.batch * trainer.task.length / time,
            "more_than_first": time / each[0] - 1,
        }
        for trainer, time in zip(trainers, each, strict=True)
    ]


def _block(trainer: Trainer) -> Callable[[], None]:
    """As many steps as there are from one lesson to the next."""

    def steps() -> None:
        for _ in range(trainer.config.consolidation.lessons):
            trainer.train_step()
            trainer.step += 1
            trainer.consolidator.steps += 1
        wait_for(trainer.device)

    return steps
