"""`torchcram evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import changed, machine, prepare
from torchcram.cli.tables import show_evaluation
from torchcram.training.loop import Trainer
from torchcram.training.run import RunFolder


@told()
def run(path: Path, *, changes: Sequence[str], rows: int, device: str, json: Path | None) -> None:
    """Print (and write) one row: quality and reads of the newest checkpoint of a run."""
    prepare(device)
    folder = RunFolder(path)
    config = changed(folder.config, changes).override({"compile": False})
    trainer = Trainer(config, device, say=lambda text: Console(stderr=True).print(text))
    if not trainer.restore(folder.checkpoints):
        raise ValueError(f"{path} has no checkpoint")
    # Other held-out sequences than those that training was steered by.
    found = trainer.evaluate(seed=config.seed + 1, rows=rows)
    worth = trainer.worth(seed=config.seed + 1, rows=rows) if trainer.consolidator.released_at is not None else None
    last = (folder.metrics() or [{}])[-1]
    row: dict[str, Any] = {
        "model": "cram",
        "preset": config.preset,
        "task": config.task,
        "schedule": config.consolidation.schedule,
        "seed": config.seed,
        "length": trainer.task.length,
        "slots": config.model.episodic.slots,
        **found.row(),
        "reads_training": last.get("reads_training"),
        "audits": last.get("audits"),
        "nats_per_read": worth.reads if worth is not None else None,
        "nats_per_skip": worth.skips if worth is not None else None,
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
