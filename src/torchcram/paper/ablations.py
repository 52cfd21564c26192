"""What each part is for: the ablations of the paper's table 4, and those of what we have added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torchcram.paper.claims import CLAIMS
from torchcram.paper.practice_runs import exposures, gamma
from torchcram.paper.runs import Trained, Wanted, measured, train
from torchcram.paper.setup import Setup, Size
from torchcram.paper.srcd import compared, summary, whole
from torchcram.results import Row

PAPERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "full": ("full", {}),
    "no semantic memory": ("no-semantic", {"model": "gate"}),
    "no consolidation loss": ("no-loss", {"consolidation.consolidation": "0"}),
    "no q in the router": ("no-quality", {"model.router.informed": "false"}),
    "semantic memory at ten times the rate": ("fast", {"optimizer.semantic": "10"}),
}
"""Those of table 4, with their row there and what makes them. All have our recipe but for that: with the paper's, the
full model does not get far enough to take anything from it."""
INDEX = "no contradiction index"
OURS: Mapping[str, Mapping[str, str]] = {
    "no audits": {"consolidation.audit": "0"},
    "no competence gate, released from the first step": {"consolidation.release": "0"},
    "no controller": {"consolidation.tolerance": "1e6"},
    "exact q": {"model.router.quality": "exact"},
    INDEX: {"model.contradiction.rank": "0"},
}
"""Without what we have added. A tolerance that nothing exceeds is no controller."""
OVERRIDDEN = 0.5
"""Share of the recurring keys that sequences bind anew, where models with and without an index are compared."""


def wanted(size: Size) -> list[Wanted]:
    """All of them, then other ranks of semantic memory and other tolerances."""
    changes: dict[str, Mapping[str, str]] = {name: change for name, (_, change) in PAPERS.items()}
    changes |= OURS
    changes |= {f"rank {rank}": {"model.semantic.rank": rank} for rank in size.others("8", "64")}
    tolerances = size.others("0.1", "0.001")
    changes |= {f"tolerance {each}": {"consolidation.tolerance": each} for each in tolerances}
    return [
        Wanted(name=name, changes=change, seeds=size.main_seeds if name == "full" else size.seeds)
        for name, change in changes.items()
    ]


def run(setup: Setup) -> Iterator[Row]:
    """For each model the columns of table 4, or what it comes to beside the printed plateau, and each of its runs."""
    trained = train(setup, wanted(setup.size))
    for name, runs in trained.items():
        for row in (*_columns(name, runs), *map(whole, runs)):
            yield measured(setup, {**row, "model": name, **_settings(runs[0])})
    look(setup, trained)
    for name in ("full", INDEX):
        for each in trained[name]:
            yield measured(setup, {**_overridden(each, setup.size.rows), "model": name})


def look(setup: Setup, trained: Mapping[str, Sequence[Trained]]) -> None:
    """Measure what needs the models themselves, and keep it beside them."""
    for name in ("full", INDEX):
        for each in trained.get(name, ()):
            _overridden(each, setup.size.rows)


def _columns(name: str, runs: Sequence[Trained]) -> Iterator[Row]:
    row = PAPERS[name][0] if name in PAPERS else None
    if row is not None:
        yield from compared("ablation", row, runs)
        data = exposures(runs)
        claim = CLAIMS.get(f"ablation/{row}/gamma")
        if data is not None and claim is not None:
            yield {
                "what": "γ of one power law without a floor",
                "claim": claim.id,
                "printed": claim.printed,
                "measured": gamma(data),
            }
    # The claim is about the paper's ablations, not about the whole model or what we take away besides.
    printed: Row = {"printed": CLAIMS["ablation/plateau"].value} if row is not None and name != "full" else {}
    yield {
        "what": "reads at the end",
        "claim": "ablation/plateau",
        **printed,
        **summary([whole(each)["reads"] for each in runs]),  # type: ignore[misc]
        "runs": len(runs),
    }


def _settings(run: Trained) -> Row:
    """What is swept."""
    model = run.config.model
    rank = getattr(getattr(model, "semantic", None), "rank", None)
    return {"rank": rank, "tolerance": run.config.consolidation.tolerance, "width": model.block.width}


def _overridden(run: Trained, rows: int) -> Row:
    """What becomes of queries whose key the sequence has bound anew, which memory would answer as it always was."""

    def measure() -> Row:
        found = run.trainer(f"task.overridden={OVERRIDDEN}").evaluate(seed=run.config.seed + 1, rows=rows)
        return {
            **{name: value for name, value in found.metrics.items() if name.startswith("accuracy")},
            "reads": found.ledger.reads,
            "opt": found.metrics["opt"],
            "reads_of_overridden": found.kind_reads["overridden"][0],
        }

    return {
        "what": "recurring keys bound anew",
        "claim": "ablation/plateau",
        "seed": run.seed,
        "overridden": OVERRIDDEN,
        **run.once("overridden", measure),
    }
