"""What a run read over its training, and how good recall was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torchcram.paper.runs import Trained
from torchcram.results import Row

Array = npt.NDArray[np.float64]


def routed(entry: Mapping[str, Any]) -> float:
    """Share of positions that were routed to a read, in an evaluation.

    With exact quality more is executed: then `reads` counts every position, whatever the router says.
    """
    counts = positions(entry)
    if not counts:
        return float(entry["reads"])
    chosen = sum(entry["kind_reads"][kind][0] * count for kind, count in counts.items())
    return float(chosen) / sum(counts.values())


def positions(entry: Mapping[str, Any]) -> dict[str, int]:
    """How many positions of each kind were evaluated, of a model that has q; else nothing."""
    return {kind: sum(layers[0]) for kind, layers in entry["histograms"].items() if layers}


def over_training(runs: Sequence[Trained]) -> tuple[Array, Array]:
    """Steps [S] and the share routed to reads [runs, S]."""
    steps = np.array([entry["step"] for entry in runs[0].metrics], dtype=np.float64)
    return steps, np.array([[routed(entry) for entry in run.metrics] for run in runs])


def points(runs: Sequence[Trained], every: int = 1) -> Iterator[Row]:
    """A row for each evaluation of each run, or for every so many of them and the last."""
    for run in runs:
        last = len(run.metrics) - 1
        for entry in (entry for number, entry in enumerate(run.metrics) if number % every == 0 or number == last):
            yield {
                "what": "attention over training",
                "seed": run.seed,
                "step": entry["step"],
                "phase": entry["phase"],
                "reads": routed(entry),
                "reads_executed": entry["reads"],
                "layer_reads": entry["layer_reads"],
                "mean_quality": entry["mean_quality"],
                "accuracy": entry["accuracy"],
            }


def at_release(run: Trained) -> Mapping[str, Any]:
    """The last evaluation before reads were released; of what had no release, the first there is.

    One at the very step of release is made after it.
    """
    before = [entry for entry in run.metrics if run.released_at and entry["step"] < run.released_at]
    return before[-1] if before else run.metrics[0]


def ratio(run: Trained) -> float | None:
    """The consolidation ratio: reads at the end ÷ reads at release (a model without release: at its first evaluation).

    None for a model that never read, and for one that was to be released and never was.
    """
    start = routed(at_release(run))
    waits = run.config.consolidation.schedule == "adaptive" and run.released_at is None
    return None if waits or start == 0 else routed(run.metrics[-1]) / start
