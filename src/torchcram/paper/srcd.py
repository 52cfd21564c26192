"""The main result: all systems of table 1 on SRCD, what they read over training, and the consolidation ratio."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from torchcram.paper.claims import CLAIMS
from torchcram.paper.curves import at_release, points, ratio, routed
from torchcram.paper.runs import Trained, Wanted, measured, train
from torchcram.paper.setup import Setup, Size
from torchcram.results import Row

SYSTEMS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "cram": ("cram", {}),
    "cram, no consolidation loss": ("cram-without-consolidation", {"consolidation.consolidation": "0"}),
    "transformer": ("transformer", {"model": "transformer"}),
    "mamba": ("mamba", {"model": "mamba"}),
    "jamba": ("jamba", {"model": "jamba"}),
    "seqboat": ("seqboat", {"model": "seqboat"}),
}
"""Each with its row in table 1 and what makes it; all with the learning rate of CRAM's recipe."""
PAPERS = "cram, the paper's recipe"
_EVERY = 4  # evaluations from one point of a curve to the next; `phase` has them all of CRAM


def wanted(size: Size) -> list[Wanted]:
    """The systems of table 1, and CRAM once more with the paper's own recipe."""
    return [
        *(Wanted(name=name, changes=changes, seeds=size.main_seeds) for name, (_, changes) in SYSTEMS.items()),
        Wanted(name=PAPERS, changes=size.papers, seeds=size.main_seeds),
    ]


def run(setup: Setup) -> Iterator[Row]:
    """For each system a row for each column of table 1 and for each run, then what it read over training."""
    trained = train(setup, wanted(setup.size))
    for name, runs in trained.items():
        row = SYSTEMS.get(name, ("cram", {}))[0]
        for found in (*compared("srcd", row, runs), *map(whole, runs)):
            yield measured(setup, {**found, "model": name})
    for name, runs in trained.items():
        for found in points(runs, every=_EVERY):
            yield measured(setup, {**found, "claim": "srcd/reads", "curve": "phase/attention", "model": name})


def whole(run: Trained) -> Row:
    """What came of one run."""
    kept = (
        "accuracy",
        "accuracy_recurring",
        "accuracy_novel",
        "dynamics_mse",
        "dynamics_floor",
        "layer_reads",
        "pairs",
        "opt",
        "rate",
        "released_at",
        "steps",
        "seconds",
        "parameters",
    )
    return {
        "what": "run",
        "claim": "srcd/reads",
        "seed": run.seed,
        **{name: run.row.get(name) for name in kept},
        "reads": routed(run.metrics[-1]) if exact(run) else run.row["reads"],
        "reads_executed": run.row["reads"],
        "reads_at_release": routed(at_release(run)),
        "ratio": ratio(run),
    }


def exact(run: Trained) -> bool:
    """Whether every read is executed to learn which of them the router would have made."""
    router = getattr(run.config.model, "router", None)
    return router is not None and router.quality == "exact"


def compared(subject: str, row: str, runs: Sequence[Trained]) -> Iterator[Row]:
    """A row for each number that a table prints of a model, beside what was measured.

    Attention is what the router chose in a layer, on average; with exact quality, which executes every read, what it
    chose in any.
    """
    columns = {
        "accuracy": [run.row["accuracy"] for run in runs],
        "attention": [routed(run.metrics[-1]) if exact(run) else run.row["layer_reads"] for run in runs],
        "ratio": [ratio(run) for run in runs],
        "dynamics-mse": [run.row.get("dynamics_mse") for run in runs],
    }
    for column, values in columns.items():
        claim = CLAIMS.get(f"{subject}/{row}/{column}")
        if claim is not None:
            yield {
                "what": f"{column} in {claim.places[0].item}",
                "claim": claim.id,
                "printed": claim.value,
                **summary(values),
                "runs": len(values),
            }


def summary(values: Sequence[float | None]) -> Row:
    """Mean, deviation and range of what was measured; nothing if a run has none."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return {"measured": None, "runs_without": len(values) - len(known)}
    deviation = {"sd": statistics.stdev(known)} if len(known) > 1 else {}
    return {"measured": statistics.mean(known), **deviation, "low": min(known), "high": max(known)}
