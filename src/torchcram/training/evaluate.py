"""Evaluation on held-out batches: quality, split as the task splits it, and what was executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcram import processes
from torchcram.ledger import Ledger
from torchcram.memory import RoutingPolicy
from torchcram.models import Cram
from torchcram.tasks import Task

HELD_OUT = 1 << 40
"""Added to the seed for evaluation batches, which training never sees."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model does on held-out data."""

    metrics: dict[str, float | None]
    ledger: Ledger
    losses: dict[str, float]
    """Of each head, per scored position."""
    kind_reads: dict[str, list[float]]
    """Share of positions of each kind that read: in any layer, then in each."""
    quality: dict[str, list[float]]
    """Mean q of the positions of each kind, in each layer."""

    def row(self) -> dict[str, float | None]:
        """The keys of result files."""
        return {**self.metrics, **self.ledger.to_dict()}


def evaluate(
    model: Cram,
    task: Task,
    *,
    seed: int,
    rows: int,
    chunk: int = 64,
    policy: RoutingPolicy | None = None,
    bf16: bool = False,
) -> Evaluation:
    """Run `rows` held-out sequences, at most `chunk` at a time, each process its share of them."""
    device = model.norm.weight.device
    totals: dict[str, Tensor] = {}
    ledger: Ledger | None = None
    with evaluating(model), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        mine = processes.share(range(rows))
        for begin in range(0, len(mine), chunk):
            part = mine[begin : begin + chunk]
            examples = task.batch(seed=seed + HELD_OUT, step=0, rows=part, device=device)
            out = model(examples.inputs, dt=examples.dt, policy=policy, keep_state=False)
            ledger = out.ledger() if ledger is None else ledger + out.ledger()
            found = task.counts(out.predictions, examples)
            scored = task.scored(examples)
            losses = task.losses(out.predictions, examples)
            found |= {f"loss_{head}": losses[head] * scored[head] for head in losses}
            found |= {f"scored_{head}": scored[head] for head in losses}
            reads = out.routing == 1
            for number in range(len(task.kinds)):
                here = examples.kind == number
                found[f"kind_{number}"] = here.sum()
                found[f"any_{number}"] = (reads.any(-1) & here).sum()
                for layer, done in enumerate(out.layers):
                    found[f"read_{number}_{layer}"] = (reads[..., layer] & here).sum()
                    found[f"q_{number}_{layer}"] = (done.quality * here).sum()
            for key, value in found.items():
                totals[key] = totals[key] + value.double() if key in totals else value.double()
    assert ledger is not None
    sums = dict(zip(totals, processes.total(torch.stack(list(totals.values()))).tolist(), strict=True))
    layers = range(len(ledger.pair_counts))
    size = {number: max(1.0, sums[f"kind_{number}"]) for number in range(len(task.kinds))}
    return Evaluation(
        metrics=task.metrics(sums),
        ledger=ledger,
        losses={o.name: sums[f"loss_{o.name}"] / max(1.0, sums[f"scored_{o.name}"]) for o in task.outputs},
        kind_reads={
            kind: [sums[f"any_{n}"] / size[n], *(sums[f"read_{n}_{layer}"] / size[n] for layer in layers)]
            for n, kind in enumerate(task.kinds)
        },
        quality={kind: [sums[f"q_{n}_{layer}"] / size[n] for layer in layers] for n, kind in enumerate(task.kinds)},
    )


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, and back to what it was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
