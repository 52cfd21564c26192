"""What trained runs cost: a training step, a forward pass, and the state after a long sequence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch

from torchcram import tasks
from torchcram.bench.timing import in_turns, wait_for
from torchcram.consolidation import Phase
from torchcram.results import Row
from torchcram.training.evaluate import evaluating, held_out
from torchcram.training.loop import Trainer

_CHUNK = 2048  # positions of a long sequence fed at once


def run(trainers: Sequence[Trainer], repeats: int = 9, state_length: int | None = None) -> list[Row]:
    """Milliseconds of a step of each, lessons and trials included, and how much more than the first's that is.

    Also of a forward pass of as many sequences, as the model routes by itself, and how many times the first's that is;
    of a step with every token reading, as it was before release, for those that were; and with `state_length` the bytes
    of the state after one sequence of so many positions; and on a GPU how often the host waits for it in a step.
    """
    for trainer in trainers:
        if trainer.consolidator.phase is not Phase.TRAIN and trainer.consolidator.progress < 1:
            which = f"{trainer.config.name}, seed {trainer.config.seed}, step {trainer.step}"
            raise ValueError(f"a run ({which}) has not come far enough: it still learns to read, or its price rises")
    passes = forward_seconds(trainers, repeats)
    sizes = [None if state_length is None else state_bytes(trainer, state_length) for trainer in trainers]
    times = in_turns(*map(_block, trainers), repeats=repeats, warm_up=1)
    each = [time / trainer.config.consolidation.lessons for time, trainer in zip(times, trainers, strict=True)]
    dense = [_dense(trainer, repeats) for trainer in trainers]
    waits = [_waits(trainer) for trainer in trainers]
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
            "forward_ms": 1000 * forward,
            "forward_to_first": forward / passes[0],
            **({"dense_step_ms": 1000 * before, "dense_to_settled": before / time} if before is not None else {}),
            **({"host_waits": wait} if wait is not None else {}),
            **({"state_bytes": size, "state_length": state_length} if size is not None else {}),
        }
        for trainer, time, before, forward, wait, size in zip(trainers, each, dense, passes, waits, sizes, strict=True)
    ]


def forward_seconds(trainers: Sequence[Trainer], repeats: int = 9) -> list[float]:
    """Of a forward pass of a batch of held-out sequences, as each model routes by itself."""
    return in_turns(*map(_forward, trainers), repeats=repeats, warm_up=2)


def _dense(trainer: Trainer, repeats: int) -> float | None:
    """Seconds of a step as it was before release; None for a run that never read everywhere."""
    control = trainer.consolidator
    if control.phase is Phase.TRAIN:
        return None
    kept, control.released_at = control.released_at, None
    try:
        (block,) = in_turns(_block(trainer), repeats=repeats, warm_up=1)
    finally:
        control.released_at = kept
    return block / trainer.config.consolidation.lessons


def _waits(trainer: Trainer) -> float | None:
    """How often in a step the host waits for a GPU, fetching what became of it included; None on a CPU."""
    if trainer.device.type != "cuda":
        return None
    steps = trainer.config.consolidation.lessons
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(steps):
                trainer.train_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in told) / steps


def state_bytes(trainer: Trainer, length: int) -> int:
    """Bytes of a model's state after a held-out sequence of `length` positions, fed in parts."""
    config = trainer.config
    task = tasks.make(config.task, **{**config.settings, "length": length})
    state = None
    ((_, examples),) = held_out(task, seed=config.seed, rows=range(1), chunk=1, device=trainer.device)
    with evaluating(trainer.model), torch.autocast(trainer.device.type, torch.bfloat16, enabled=config.bf16):
        for begin in range(0, length, _CHUNK):
            part = slice(begin, begin + _CHUNK)
            inputs = {name: x[:, part] for name, x in examples.inputs.items()}
            state = trainer.model(inputs, dt=examples.dt[:, part], state=state).state
    assert state is not None
    return int(state.nbytes)


def _forward(trainer: Trainer) -> Callable[[], None]:
    """A forward pass of a held-out batch."""
    config = trainer.config
    rows = range(config.batch)
    ((_, examples),) = held_out(trainer.task, seed=config.seed, rows=rows, chunk=config.batch, device=trainer.device)

    control = trainer.consolidator
    waits = control.phase is Phase.ACQUIRE  # a router that was never released knows nothing yet

    def forward() -> None:
        policy = control.dense() if waits else None
        with evaluating(trainer.model), torch.autocast(trainer.device.type, torch.bfloat16, enabled=config.bf16):
            trainer.model(examples.inputs, dt=examples.dt, policy=policy, keep_state=False)
        wait_for(trainer.device)

    return forward


def _block(trainer: Trainer) -> Callable[[], None]:
    """As many steps as there are from one lesson to the next."""

    def steps() -> None:
        for _ in range(trainer.config.consolidation.lessons):
            trainer.train_step()
            trainer.step += 1
            trainer.consolidator.steps += 1
        wait_for(trainer.device)

    return steps
