"""`torchcram staleness`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import machine, prepare
from torchcram.cli.trained import facts, load
from torchcram.tasks import Srcd
from torchcram.training.staleness import measure


@told()
def run(paths: Sequence[Path], *, rows: int, positions: int, device: str, json: Path | None) -> None:
    """Print (and write) what trained runs do where the context contradicts what they have learned."""
    prepare(device)
    console, found, seeds = Console(highlight=False), [], []
    for path in paths:
        trainer = load(path, device)
        config, task = trainer.config, trainer.task
        if not isinstance(task, Srcd):
            raise ValueError(f"{path} was trained on {config.task}; only SRCD has memories that go stale")
        known = {
            **facts(trainer, path),
            "signal": config.consolidation.signal,
            "trained_overridden": task.config.overridden,
            "index_rank": config.index_rank,
        }
        table = Table("case", "all", "recurring", "novel", "overridden", "reads", "÷ least", title=str(path), box=None)
        # Other held-out sequences than those that training was steered by.
        for row in measure(trainer.model, task, seed=config.seed + 1, rows=rows, positions=positions, bf16=config.bf16):
            found.append({**known, **row})
            if row["what"] == "alarm":
                alarm = _about_alarm(row)
                continue
            shares = [row.get(f"accuracy{kind}") for kind in ("", "_recurring", "_novel", "_overridden")]
            cells = ["–" if share is None else f"{share:.2%}" for share in (*shares, row["reads"])]
            table.add_row(row["what"], *cells, f"{row['reads'] / row['least']:.2f}" if row["least"] else "–")
        if json is None or str(json) != "-":
            console.print(table)
            console.print(alarm)
        seeds.append(config.seed)
    if json is not None:
        results.write(json, name="staleness", rows=found, seeds=sorted(set(seeds)), machine=machine(device))


def _about_alarm(row: Mapping[str, Any]) -> str:
    if "no_alarm" in row:
        return f"alarm: none, since {row['no_alarm']}"
    ring = row["queries_to_ring"]
    told_of = "no ring" if ring is None else f"rings {ring} queries after the table has changed"
    return f"alarm: {row['false_alarms']} false in {row['positions']:,} positions; {told_of}"
