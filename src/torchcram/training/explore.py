"""What a trained model does with one held-out sequence, position by position, at several moments of its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcram.memory import RoutingPolicy
from torchcram.memory.state import EpisodicState
from torchcram.models import Cram, CramOutput
from torchcram.tasks import Examples, Task
from torchcram.training.evaluate import evaluating, held_out
from torchcram.training.loop import Trainer

LONGEST = 256
"""Positions that can be looked at."""
_TRIED = 64  # sequences that are looked through for one that shows every kind
_LEAST = 0.02  # weights below this are not told


def explore(trainer: Trainer, checkpoints: Path, steps: Sequence[int], *, seed: int) -> Iterator[dict[str, Any]]:
    """Rows of a result file: the `sequence`, then for each step what every `layer` did and what was the `answer`.

    Lists are text, since rows are flat: a digit a position for `kind`, `actions` and `hits`; numbers separated by
    spaces for inputs, answers and `quality`; `t:i=w,i=w` for each position t that read, with the events i it found and
    their weights; `t:i,i` for the events that were gone once t had been written.
    """
    model, task = trainer.model, trainer.task
    if not isinstance(model, Cram):
        raise ValueError(f"{trainer.config.name} cannot be explored; allowed: cram, which has memories to look into")
    if task.length > LONGEST:
        raise ValueError(f"{task.length} positions are too many; at most {LONGEST}: use --set task.length={LONGEST}")
    row, examples = _chosen(task, seed)
    yield {
        "what": "sequence",
        "row": row,
        "length": task.length,
        "kinds": ",".join(task.kinds),
        "kind": _digits(examples.kind[0]),
        "targets": _listed(examples.targets[task.main][0]),
        "gaps": _listed(examples.dt[0], 2),
        **{f"input {name}": _listed(x[0]) for name, x in examples.inputs.items() if not x.is_floating_point()},
        "slots": model.config.episodic.slots,
        "threshold": model.config.router.threshold,
    }
    for step in steps:
        trainer.restore(checkpoints, step)
        consolidator = trainer.consolidator
        policy = RoutingPolicy(reads="dense") if consolidator.released_at is None else None
        known = {"step": step, "phase": consolidator.phase, "released": consolidator.released_at is not None}
        for found in record(model, task, examples, policy):
            yield {**found, **known}


def record(
    model: Cram, task: Task, examples: Examples, policy: RoutingPolicy | None = None
) -> Iterator[dict[str, Any]]:
    """What a model does with one sequence: a row a layer, and one with its answers; see `explore`."""
    layers = [_Layer() for _ in model.blocks]
    answers = []
    for out, before in _steps(model, examples, policy):
        answers.append(int(out.predictions[task.main][0, 0].argmax()))
        for number, layer in enumerate(layers):
            layer.see(out, number, before)
    for number, layer in enumerate(layers):
        yield {"what": "layer", "layer": number, **layer.row()}
    yield {"what": "answer", "answers": " ".join(map(str, answers))}


def _steps(
    model: Cram, examples: Examples, policy: RoutingPolicy | None
) -> Iterator[tuple[CramOutput, Sequence[EpisodicState | None]]]:
    """One position after the other, as a stream: what the model returned, and the buffers it had before."""
    state = None
    buffers: Sequence[EpisodicState | None] = [None] * len(model.blocks)
    with evaluating(model):
        for t in range(examples.kind.shape[1]):
            inputs = {name: x[:1, t : t + 1] for name, x in examples.inputs.items()}
            out = model(inputs, dt=examples.dt[:1, t : t + 1], state=state, policy=policy)
            yield out, buffers
            state = out.state
            assert state is not None
            buffers = [layer.episodic for layer in state.layers]


class _Layer:
    """What a layer did, as text that grows."""

    def __init__(self) -> None:
        self.actions, self.hits = "", ""
        self.quality: list[str] = []
        self.reads: list[str] = []
        self.evicted: list[str] = []

    def see(self, out: CramOutput, number: int, before: Sequence[EpisodicState | None]) -> None:
        """One position more."""
        layer, t = out.layers[number], len(self.actions)
        self.actions += str(int(layer.decision.actions[0, 0]))
        self.hits += str(int(out.hits[0, 0])) if out.hits is not None else "0"
        self.quality.append(f"{float(layer.quality[0, 0]):.2f}")
        held, was = _positions(out, number), before[number]
        old = [] if was is None else was.position[0].tolist()
        if layer.reading is not None and bool(layer.reads[0, 0]):
            weights = zip(old, layer.reading.mass[0].tolist(), strict=False)
            found = [(i, w) for i, w in weights if i >= 0 and w >= _LEAST]
            told = ",".join(f"{i}={w:.2f}" for i, w in sorted(found, key=lambda pair: -pair[1]))
            self.reads.append(f"{t}:{told}")
        gone = [i for i in [*old, t] if i >= 0 and i not in held]
        if gone:
            self.evicted.append(f"{t}:{','.join(map(str, gone))}")

    def row(self) -> dict[str, str]:
        return {
            "actions": self.actions,
            "hits": self.hits,
            "quality": " ".join(self.quality),
            "reads": " ".join(self.reads),
            "evicted": " ".join(self.evicted),
        }


def _positions(out: CramOutput, number: int) -> set[int]:
    """Positions of the events that a layer's buffer holds."""
    assert out.state is not None
    buffer = out.state.layers[number].episodic
    return set() if buffer is None else set(buffer.position[0].tolist())


def _chosen(task: Task, seed: int) -> tuple[int, Examples]:
    """The first held-out sequence that shows every kind, or of a few the one that shows most."""
    (_, examples), *_ = held_out(task, seed=seed, rows=range(_TRIED), chunk=_TRIED, device=torch.device("cpu"))
    shown = torch.stack([(examples.kind == kind).any(1) for kind in range(len(task.kinds))]).sum(0)
    row = int(shown.argmax())

    def one(x: Tensor) -> Tensor:
        return x[row : row + 1]

    return row, Examples(
        inputs={name: one(x) for name, x in examples.inputs.items()},
        dt=one(examples.dt),
        targets={name: one(x) for name, x in examples.targets.items()},
        kind=one(examples.kind),
        pattern=one(examples.pattern),
    )


def _digits(x: Tensor) -> str:
    return "".join(map(str, x.tolist()))


def _listed(x: Tensor, places: int | None = None) -> str:
    return " ".join(str(v) if places is None else f"{v:.{places}f}" for v in x.tolist())


def moments(steps: Sequence[int], released_at: int | None) -> list[int]:
    """Some of the steps that a run has checkpoints of: before, around and after release."""
    before = [step for step in steps if released_at is None or step < released_at]
    after = [step for step in steps if step not in before]

    def some(of: Sequence[int], count: int) -> list[int]:
        return [of[round(i * (len(of) - 1) / (count - 1))] for i in range(count)] if of else []

    return sorted({*some(before, 3), *some(after, 4)})


def curves(metrics: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each evaluation of a run: attention, quality, and how quality is spread over 20 bins from 0 to 1."""
    for entry in metrics:
        histograms = [layer for layers in entry.get("histograms", {}).values() for layer in layers]
        counts = [sum(column) for column in zip(*histograms, strict=True)]
        kept = ("step", "phase", "accuracy", "accuracy_novel", "reads", "layer_reads", "opt", "mean_quality")
        yield {
            "what": "evaluation",
            **{key: entry.get(key) for key in kept},
            "histogram": " ".join(map(str, counts)),
        }
