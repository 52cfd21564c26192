"""Evaluation on held-out batches: quality, split as the task splits it, and what was executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcram import processes
from torchcram.ledger import Ledger
from torchcram.memory import RoutingPolicy
from torchcram.models import AnyModel
from torchcram.tasks import HELD_OUT, Examples, Task

BINS = 20
"""Of the histograms of q, which cover 0 to 1 evenly."""
AT_ONCE = 131_072
"""Positions of a forward pass."""
_SHOWN = 512  # positions of the sample sequence


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model does on held-out data."""

    metrics: dict[str, float | None]
    ledger: Ledger
    losses: dict[str, float]
    """Of each head, per scored position."""
    kind_reads: dict[str, list[float]]
    """Share of positions of each kind that read: in any layer, then in each."""
    kind_hits: dict[str, float]
    """Share of positions of each kind that ask for what the contradiction index holds; empty without one."""
    quality: dict[str, list[float]]
    """Mean q of the positions of each kind, in each layer; empty for a model that has no q, and so the next."""
    histograms: dict[str, list[list[int]]]
    """How many positions of each kind have a q in each of `BINS` bins from 0 to 1, in each layer."""
    mean_quality: float | None
    """q̄: over all positions and layers; None for a model that has no q."""
    sample: Sample

    def row(self) -> dict[str, float | None]:
        """The keys of result files."""
        return {**self.metrics, **self.ledger.to_dict()}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The beginning of one held-out sequence and what the model did there; digits, one a position."""

    kind: str
    """Index into the task's `kinds`."""
    actions: list[str]
    """Of each layer: 0 nothing more, 1 episodic read, 2 semantic recall."""


def evaluate(
    model: AnyModel,
    task: Task,
    *,
    seed: int,
    rows: int,
    chunk: int | None = None,
    policy: RoutingPolicy | None = None,
    bf16: bool = False,
) -> Evaluation:
    """Run `rows` held-out sequences, each process its share of them, `chunk` at a time.

    Default: as many at a time as make a forward pass of fair size.
    """
    device = model.norm.weight.device
    kinds = len(task.kinds)
    totals: dict[str, Tensor] = {}
    ledger: Ledger | None = None
    sample: Sample | None = None
    with evaluating(model), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for _, examples in held_out(task, seed=seed, rows=processes.share(range(rows)), chunk=chunk, device=device):
            out = model(examples.inputs, dt=examples.dt, policy=policy, keep_state=False)
            ledger = out.ledger() if ledger is None else ledger + out.ledger()
            sample = _sample(examples.kind, out.routing, kinds) if sample is None else sample
            scored = task.scored(examples)
            losses = task.losses(out.predictions, examples)
            found = {f"count {name}": value for name, value in task.counts(out.predictions, examples).items()}
            found |= {f"loss {head}": losses[head] * scored[head] for head in losses}
            found |= {f"scored {head}": scored[head] for head in losses}
            kind = examples.kind.flatten().long()
            reads = (out.routing == 1).flatten(0, 1).double()
            found["positions"] = _sums(kind, torch.ones_like(reads[:, :1]), kinds)
            found["reads"] = _sums(kind, torch.cat([reads.amax(1, keepdim=True), reads], dim=1), kinds)
            if out.hits is not None:
                found["hits"] = _sums(kind, out.hits.flatten().unsqueeze(1).double(), kinds)
            if out.quality is not None:
                q = out.quality.flatten(0, 1).double()
                found["quality"] = _sums(kind, q, kinds)
                cell = kind.unsqueeze(1) * BINS + (q * BINS).long().clamp(0, BINS - 1)
                found["histogram"] = q.new_zeros(kinds * BINS, q.shape[1])
                found["histogram"].scatter_add_(0, cell, torch.ones_like(q))
            for key, value in found.items():
                totals[key] = totals[key] + value.double() if key in totals else value.double()
    assert ledger is not None
    assert sample is not None
    totals = dict(zip(totals, processes.totals(*totals.values()), strict=True))
    size = totals["positions"].clamp_min(1)
    quality = totals.get("quality")

    def by_kind(x: Tensor | None) -> dict[str, Any]:
        return dict(zip(task.kinds, x.tolist(), strict=True)) if x is not None else {}

    def mean(name: str) -> Tensor | None:
        return totals[name] / size if name in totals else None

    sums = {name: value.item() for name, value in totals.items() if value.dim() == 0}
    return Evaluation(
        metrics=task.metrics({n.removeprefix("count "): v for n, v in sums.items() if n.startswith("count ")}),
        ledger=ledger,
        losses={o.name: sums[f"loss {o.name}"] / max(1.0, sums[f"scored {o.name}"]) for o in task.outputs},
        kind_reads=by_kind(mean("reads")),
        kind_hits={kind: share for kind, (share,) in by_kind(mean("hits")).items()},
        quality=by_kind(mean("quality")),
        histograms=by_kind(
            totals["histogram"].view(kinds, BINS, -1).transpose(1, 2).long() if "histogram" in totals else None
        ),
        mean_quality=float(quality.mean(1).sum() / totals["positions"].sum()) if quality is not None else None,
        sample=sample,
    )


def _sums(kind: Tensor, x: Tensor, kinds: int) -> Tensor:
    """Sum of x [P, C] over the positions of each kind [P]: [kinds, C]."""
    return x.new_zeros(kinds, x.shape[1]).index_add_(0, kind, x)


def _sample(kind: Tensor, routing: Tensor, kinds: int) -> Sample:
    """The first sequence that shows every kind, if there is one."""
    shown = kind[:, :_SHOWN]
    present = torch.stack([(shown == number).any(1) for number in range(kinds)]).sum(0)
    row = int(present.argmax())

    def digits(x: Tensor) -> str:
        return "".join(map(str, x.tolist()))

    return Sample(kind=digits(shown[row]), actions=[digits(actions) for actions in routing[row, :_SHOWN].unbind(-1)])


def held_out(
    task: Task, *, seed: int, rows: range, chunk: int | None = None, device: torch.device
) -> Iterator[tuple[range, Examples]]:
    """Held-out sequences, `chunk` at a time; default: as many as make a forward pass of fair size."""
    chunk = chunk or max(1, AT_ONCE // task.length)
    for begin in range(0, len(rows), chunk):
        part = rows[begin : begin + chunk]
        yield part, task.batch(seed=seed + HELD_OUT, step=0, rows=part, device=device)


@contextmanager
def evaluating(model: torch.nn.Module, *, gradients: bool = False) -> Iterator[None]:
    """Evaluation mode, without gradients unless they are wanted, and back to what it was."""
    training = model.training
    model.eval()
    try:
        with torch.set_grad_enabled(gradients):
            yield
    finally:
        model.train(training)
