"""Ablations: each takes away what it says, and its numbers stand beside the printed ones."""

import pytest

from tests.paper.trying import TRY, check, trying
from torchcram.paper import ablations
from torchcram.paper.claims import CLAIMS
from torchcram.training.settings import configure


def test_each_takes_away_what_it_says(tmp_path):
    made = {}
    for each in ablations.wanted(TRY):
        job = each.jobs(TRY, tmp_path)[0]
        made[each.name] = configure(job.task, job.settings, **job.chosen)
    full = made["full"]
    assert made["no semantic memory"].model.semantic.rank == 0
    assert made["no consolidation loss"].consolidation.consolidation == 0 != full.consolidation.consolidation
    assert not made["no q in the router"].model.router.informed
    assert made["semantic memory at ten times the rate"].optimizer.semantic == 10 * full.optimizer.semantic
    assert made["no audits"].consolidation.audit == 0
    assert made["no competence gate, released from the first step"].consolidation.release == 0
    assert made["no controller"].consolidation.tolerance == 1e6
    assert made["exact q"].model.router.quality == "exact"
    assert made[ablations.INDEX].model.contradiction.rank == 0 < full.model.contradiction.rank
    assert made["rank 8"].model.semantic.rank == 8
    for name, config in made.items():  # and nothing else, but for parameters that make up for it
        if name != "no semantic memory":
            assert (
                config.override({"consolidation": full.consolidation, "optimizer": full.optimizer})
                .override({"model.router": full.model.router, "model.semantic": full.model.semantic})
                .override({"model.contradiction": full.model.contradiction})
                == full
            ), name


@pytest.mark.slow
def test_rows_are_complete(tried):
    rows = list(ablations.run(trying(tried)))
    check(rows)
    assert {row["model"] for row in rows} == {each.name for each in ablations.wanted(TRY)}
    printed = {row["claim"] for row in rows if "printed" in row} - {"ablation/plateau"}
    assert printed == {
        f"ablation/{row}/{column}"
        for row, _ in ablations.PAPERS.values()
        for column in ("accuracy", "attention", "ratio", "gamma")
    }
    assert printed <= set(CLAIMS)
    again = [row for row in rows if row["what"] == "recurring keys bound anew"]
    assert [row["model"] for row in again] == ["full", ablations.INDEX]
    assert all(0 <= row["accuracy_overridden"] <= 1 for row in again)
    runs = {row["model"]: row for row in rows if row["what"] == "run"}
    assert runs["no competence gate, released from the first step"]["released_at"] == 0
    assert runs["exact q"]["reads_executed"] == 1
    assert runs["rank 8"]["rank"] == 8
