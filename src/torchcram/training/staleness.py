"""What a trained model does when the context contradicts what it has learned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torchcram.consolidation import DriftAlarm
from torchcram.models import AnyModel
from torchcram.tasks import Srcd
from torchcram.tasks.srcd import RECURRING
from torchcram.training.evaluate import evaluate, evaluating, held_out

ANOTHER_TABLE = "another table"
_AS_EVER: Mapping[str, float | int] = {"overridden": 0.0, "rebound": 1, "drift": 1.0}
_WINDOWS = 32  # of a sequence: how finely it is told when accuracy is back after a drift
_BACK = 0.99
_CALIBRATION = 32_768  # positions that tell the alarm what is usual


def cases(task: Srcd) -> dict[str, Srcd]:
    """Variants of a task, whatever a model was trained on; those that its settings leave no room for are not there."""
    changes: dict[str, dict[str, float | int]] = {
        "no override": {},
        "override 10%": {"overridden": 0.1},
        "override 50%": {"overridden": 0.5},
        "rebound twice": {"overridden": 0.5, "rebound": 2},
        "drift midway": {"drift": 0.5},
        ANOTHER_TABLE: {"table": task.config.table + 1},
    }
    found = {}
    for what, change in changes.items():
        with contextlib.suppress(ValueError):
            found[what] = Srcd(task.config.override({**_AS_EVER, **change}))
    return found


def measure(
    model: AnyModel, task: Srcd, *, seed: int, rows: int, positions: int, bf16: bool = False
) -> Iterator[dict[str, Any]]:
    """A row a case, then one about the drift alarm along `positions` of a stream; `least` is the least reads."""
    for what, case in cases(task).items():
        found = evaluate(model, case, seed=seed, rows=rows, bf16=bf16)
        # Of another table nothing is known: all that is asked for must be read.
        least = found.metrics["static_bound" if what == ANOTHER_TABLE else "opt"]
        row = {"what": what, **found.row(), "least": least, "hits_recurring": found.kind_hits.get("recurring")}
        if case.config.drift < 1:
            row |= _recovery(model, case, seed=seed, rows=rows, bf16=bf16)
        yield row
    yield {"what": "alarm", **_alarm(model, task, seed=seed, positions=positions, bf16=bf16)}


def _recovery(model: AnyModel, task: Srcd, *, seed: int, rows: int, bf16: bool) -> dict[str, float | None]:
    """Accuracy on all queries after the change, and how many positions later it is back for good."""
    width = -(-task.length // _WINDOWS)
    right, asked = (torch.zeros(_WINDOWS, dtype=torch.float64) for _ in range(2))
    for examples, out in _run(model, task, seed=seed, rows=rows, bf16=bf16):
        since = torch.arange(task.length, device=examples.kind.device) - task.config.drift * task.length
        after = (examples.kind >= RECURRING) & (since >= 0)
        window = (since // width).long().expand_as(examples.kind)[after].cpu()
        correct = (out.predictions["value"].argmax(-1) == examples.targets["value"])[after].cpu()
        asked.index_add_(0, window, torch.ones_like(window, dtype=torch.float64))
        right.index_add_(0, window, correct.double())
    last = int(asked.nonzero().max()) if asked.any() else 0
    late = [i for i in range(_WINDOWS) if asked[i] and right[i] / asked[i] < _BACK]
    return {
        "accuracy_after": float(right.sum() / asked.sum().clamp_min(1)),
        "back_within": None if last in late else width * (late[-1] + 1) if late else 0,
    }


def _alarm(model: AnyModel, task: Srcd, *, seed: int, positions: int, bf16: bool) -> dict[str, Any]:
    """Rings along a stream of sequences in which nothing changes, and queries until one after the table has."""
    usual = Srcd(task.config.override(_AS_EVER))

    def listen(seed: int, positions: int) -> Iterator[list[bool]]:
        # One sequence after the other, as they would come: side by side, surprises that come together are thinned out.
        for _, out in _run(model, usual, seed=seed, rows=-(-positions // task.length), bf16=bf16, chunk=1):
            yield out.surprises()

    known = [check for checks in listen(seed + 3, _CALIBRATION) for check in checks]
    found: dict[str, Any] = {"usual_checks": len(known), "usual_rate": sum(known) / max(1, len(known))}
    found |= dict.fromkeys(("positions", "checks", "surprises", "expected_rate", "false_alarms", "queries_to_ring"))
    try:
        alarm = DriftAlarm.calibrated(known)
    except ValueError as error:
        return {**found, "no_alarm": str(error)}
    surprises = 0
    for checks in listen(seed + 1, positions):
        surprises += sum(checks)
        alarm.observe(checks)
    found |= {
        "positions": -(-positions // task.length) * task.length,
        "checks": alarm.checks,
        "surprises": surprises,
        "expected_rate": alarm.expected,
        "false_alarms": len(alarm.rang_at),
    }
    changed = Srcd(task.config.override({**_AS_EVER, "drift": 0.0}))
    queries = 0
    for examples, out in _run(model, changed, seed=seed + 2, rows=256, bf16=bf16, chunk=1):
        queries += int((examples.kind >= RECURRING).sum())
        if alarm.observe(out.surprises()):
            return {**found, "queries_to_ring": queries}
    return found


def _run(model: AnyModel, task: Srcd, *, seed: int, rows: int, bf16: bool, chunk: int | None = None) -> Iterator[Any]:
    device = model.norm.weight.device
    for _, examples in held_out(task, seed=seed, rows=range(rows), chunk=chunk, device=device):
        with evaluating(model), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            out = model(examples.inputs, dt=examples.dt, keep_state=False)
        yield examples, out
