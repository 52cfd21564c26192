"""What reads are worth on held-out data, and how well the model foretells it and its own recall."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torchcram import processes
from torchcram.draws import Draws
from torchcram.memory import RoutingPolicy
from torchcram.models import Cram
from torchcram.ops import gather_rows
from torchcram.tasks import Task
from torchcram.training.evaluate import AT_ONCE, evaluating, held_out

_TRIED = 0.1  # of the tokens that read, and of those that do not: few enough not to disturb each other
_WORTHS = (0.0, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # nats: where bins of û begin
_QUALITIES = tuple(i / 10 for i in range(10))  # where bins of q̂ begin


@dataclass(frozen=True, kw_only=True)
class Worth:
    """Means over held-out tokens, by layer; a table has a row a layer, and an entry a kind of token or a bin."""

    per_read: dict[str, list[float | None]]
    """By kind: nats of the main head's loss that a read gains, mean over those that read, in each layer."""
    per_skip: dict[str, list[float | None]]
    """The same that a read would have gained where there was none."""
    reads: float | None
    """Nats gained by a read, mean over all."""
    skips: float | None
    """Nats that a read not made would have gained."""
    utility: list[list[float]]
    """Calibration of û: foretold and true worth and how many, a bin each; empty without û."""
    quality: list[list[float]]
    """Calibration of q̂: foretold and true quality and how many, a bin each; empty without semantic memory."""

    def to_dict(self) -> dict[str, Any]:
        """For a line of the metrics."""
        return asdict(self)


def measure(model: Cram, task: Task, *, seed: int, rows: int, bf16: bool = False) -> Worth:
    """Try some reads of `rows` held-out sequences, and take what the loss's gradient says of each.

    Of a read on trial a random part α is used; the mean of -⟨∂L/∂x, change⟩ over α is the loss without it less the loss
    with it, exactly.
    """
    device = model.norm.weight.device
    kinds, layers = len(task.kinds), len(model.blocks)
    sums = torch.zeros(layers, 2, kinds, 2, dtype=torch.float64, device=device)
    utility = torch.zeros(len(_WORTHS), 3, dtype=torch.float64, device=device)
    quality = torch.zeros(len(_QUALITIES), 3, dtype=torch.float64, device=device)
    chunk = max(1, AT_ONCE // (4 * task.length))  # gradients need room
    mine = processes.share(range(rows))
    for part, examples in held_out(task, seed=seed, rows=mine, chunk=chunk, device=device):
        draws = Draws(seed=seed, step=0, rows=torch.arange(part.start, part.stop, device=device))
        scored = task.scored(examples)[task.main]
        policy = RoutingPolicy(trial=_TRIED, audit=_TRIED, scored=scored, draws=draws)
        wanted = evaluating(model, gradients=True)
        with wanted, torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            out = model(examples.inputs, dt=examples.dt, policy=policy, keep_state=False)
            loss = task.losses(out.predictions, examples)[task.main]
        probes = [layer.trial.probe for layer in out.layers if layer.trial is not None]
        if probes:
            torch.autograd.grad(loss, probes)
        for number, layer in enumerate(out.layers):
            if layer.reading is None or layer.trial is None:
                continue
            rows_read, trial = layer.reading.rows, layer.trial
            kind = gather_rows(examples.kind, rows_read).long()[trial.tried]
            skipped = gather_rows(layer.decision.audited, rows_read).long()[trial.tried]
            worth = trial.worth[trial.tried].double()
            both = torch.stack([worth, torch.ones_like(worth)], dim=1)
            sums[number].view(-1, 2).index_add_(0, skipped * kinds + kind, both)
            if model.config.router.rule == "worth":
                _bin(utility, _WORTHS, trial.estimate[trial.tried], worth)
            if layer.exact is not None:
                valid = rows_read.valid
                _bin(quality, _QUALITIES, gather_rows(layer.quality, rows_read)[valid], layer.exact[valid])
    sums, utility, quality = processes.totals(sums, utility, quality)
    by_kind = [{name: _means(sums[:, i, k]) for k, name in enumerate(task.kinds)} for i in range(2)]
    used, unused = (_means(sums[:, i].sum((0, 1)).unsqueeze(0))[0] for i in range(2))
    return Worth(
        per_read=by_kind[0],
        per_skip=by_kind[1],
        reads=used,
        skips=unused,
        utility=_curve(utility),
        quality=_curve(quality),
    )


def _bin(table: Tensor, begins: tuple[float, ...], foretold: Tensor, true: Tensor) -> None:
    """Add foretold and true values to the bins [bins, 3] that the foretold ones fall into."""
    edges = torch.tensor(begins[1:], dtype=torch.float64, device=table.device)
    number = torch.bucketize(foretold.double(), edges, right=True)
    values = torch.stack([foretold.double(), true.double(), torch.ones_like(foretold, dtype=torch.float64)], dim=1)
    table.index_add_(0, number, values)


def _curve(table: Tensor) -> list[list[float]]:
    """Foretold and true means and counts of the bins that hold something."""
    return [[a / n, b / n, n] for a, b, n in table.tolist() if n]


def _means(sums: Tensor) -> list[float | None]:
    return [total / count if count else None for total, count in sums.tolist()]
