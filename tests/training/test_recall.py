"""Recall of what was bound in the same sequence: CRAM reads where there is something to read, and nowhere else."""

import pytest

from torchcram.training.loop import Trainer
from torchcram.training.recipes import configure

QUICK = {"batch": 32, "evaluate_every": 1000, "evaluate_rows": 64, "consolidation.ramp": 100}


@pytest.mark.parametrize(
    ("task", "noise", "steps", "most"),
    [
        ("mqar", False, 350, 1.2),
        pytest.param("mqar", True, 600, 2.0, marks=pytest.mark.slow),  # in so small a vocabulary noise often repeats
        pytest.param("forgetting-mqar", False, 600, 2.0, marks=pytest.mark.slow),  # keys are looked up when bound anew
    ],
)
def test_queries_read_and_others_do_not(task, noise, steps, most):
    settings = {"length": 32, "pairs": 4, "vocabulary": 64, "noise": noise}
    (report,) = Trainer(configure(task, "tiny", settings=settings, changes={**QUICK, "steps": steps})).run()
    found = report.evaluation
    assert found.metrics["accuracy"] >= 0.99
    assert found.ledger.to_dict()["reads"] <= most * found.metrics["opt"]
