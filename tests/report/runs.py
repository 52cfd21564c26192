"""Run folders made up for the tests, as the training loop writes them."""

import json
from pathlib import Path

KINDS = ("dynamics", "store", "recurring", "novel")
COUNTS = {"dynamics": 900, "store": 50, "recurring": 34, "novel": 16}


CONFIG = {
    "task": "srcd",
    "model": {"layers": 2, "block": {"width": 64}, "router": {"threshold": 0.7}},
    "settings": {"length": 70},
    "preset": "tiny",
    "steps": 800,
    "batch": 16,
    "seed": 0,
    "evaluate_every": 100,
    "optimizer": {"settle": 0.3},
    "consolidation": {"tolerance": 0.01, "audit": 0.03},
}


def entry(step: int, phase: str, reads: float, **changes) -> dict:
    """A line of the metrics: before release everything reads, after it only novel queries and a few others."""
    dense = phase == "acquire"
    by_kind = {kind: [1.0, 1.0, 1.0] if dense or kind == "novel" else [0.0, 0.0, 0.0] for kind in KINDS}
    actions = ["1" * 70] * 2 if dense else ["2" * 70, "0" * 64 + "100000"]
    histogram = [[0] * 19 + [1], [1] + [0] * 19]
    return {
        "step": step,
        "phase": phase,
        "loss": 1.25,
        "price": 0.0 if dense else 0.04,
        "excess": 0.0 if dense else 0.003,
        "released_at": None if dense else 300,
        "step_seconds": 0.2 if dense else 0.1,
        "seconds": 0.2 * step,
        "skipped": 0,
        "accuracy": 0.9875,
        "accuracy_recurring": 1.0,
        "accuracy_novel": 0.9583,
        "dynamics_mse": 0.0123,
        "dynamics_floor": 0.01,
        "opt": 0.016,
        "static_bound": 0.05,
        "reads": reads,
        "layer_reads": reads / 2,
        "audits": 0.0,
        "pairs": reads / 3,
        "writes": 1.0,
        "losses": {"value": 0.1, "dynamics": 0.6},
        "kind_reads": by_kind,
        "quality": {kind: [0.9, 0.1 if kind == "novel" else 0.8] for kind in KINDS},
        "mean_quality": 0.83,
        "histograms": {kind: [[COUNTS[kind] * n for n in layer] for layer in histogram] for kind in KINDS},
        "sample": {"kind": "0" * 60 + "0120300010", "actions": actions},
        **changes,
    }


STORY = [
    entry(100, "acquire", 1.0, step_seconds=0.4),
    entry(200, "acquire", 1.0),
    entry(250, "acquire", 1.0),
    entry(400, "consolidate", 0.0712),
    entry(500, "consolidate", 0.0321),
    entry(600, "settle", 0.0184),
    entry(700, "settle", 0.0179, step_seconds=0.08),
    entry(800, "settle", 0.0172),
]


def write(folder: Path, entries: list[dict] = STORY, *, end: str = "", **config) -> Path:
    """A run's folder; `end` is added to the metrics as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    lines = "".join(json.dumps(one) + "\n" for one in entries)
    (folder / "metrics.jsonl").write_text(lines + end)
    return folder
