"""`torchcram evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import machine, prepare
from torchcram.cli.tables import show_evaluation
from torchcram.cli.trained import facts, load
from torchcram.memory import RoutingPolicy
from torchcram.memory.router import Reads
from torchcram.models import Cram
from torchcram.strict import reject
from torchcram.training import teacher
from torchcram.training.run import RunFolder
from torchcram.training.teacher import Kept


@told()
def run(
    path: Path,
    *,
    changes: Sequence[str],
    rows: int,
    reads: str = "routed",
    worth: bool,
    kept: bool,
    device: str,
    json: Path | None,
) -> None:
    """Print (and write) one row: quality and reads of the newest checkpoint of a run."""
    prepare(device)
    trainer = load(path, device, changes)
    config = trainer.config
    folder, seed = RunFolder(path), config.seed + 1  # other sequences than those that training was steered by
    policy = None if reads == "routed" else RoutingPolicy(reads=cast(Reads, reads))
    if policy is not None and not isinstance(trainer.model, Cram):
        reject("reads", reads, "'routed' for a model that has no other way")
    if policy is not None and (kept or worth):
        reject("reads", reads, "'routed' with --kept or --worth")
    if worth and not isinstance(trainer.model, Cram):
        raise ValueError("--worth is for models that choose their reads: cram")
    found = trainer.evaluate(policy, seed=seed, rows=rows)
    gains = trainer.worth(seed=seed, rows=rows) if worth else None
    held = teacher.kept(trainer, folder.checkpoints, found.losses, seed=seed, rows=rows) if kept else None
    last = (folder.metrics() or [{}])[-1]
    row: dict[str, Any] = {
        **facts(trainer, path),
        "routing": reads,
        "rows": rows,
        **found.row(),
        "reads_training": last.get("reads_training"),
        "audits": last.get("audits"),
        **({"nats_per_read": gains.reads, "nats_per_skip": gains.skips} if gains is not None else {}),
        **(_about(held, config.consolidation.tolerance) if held is not None else {}),
        "released_at": trainer.consolidator.released_at,
        "steps": trainer.step,
        "seconds": trainer.seconds,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }
    if json is None or str(json) != "-":
        show_evaluation(str(path), row)
    if json is not None:
        name = f"{config.task}-{path.name}"
        results.write(json, name=name, rows=[row], seeds=[config.seed], machine=machine(device))


def _about(kept: Kept, tolerance: float) -> dict[str, Any]:
    against = "dense now" if kept.teacher is None else "dense now and at release"
    return {"excess": kept.excess, "tolerance": tolerance, "against": against}
