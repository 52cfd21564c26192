"""Recall of what was bound in the same sequence: CRAM reads where there is something to read, and nowhere else."""

import pytest

from torchcram.training.evaluate import Evaluation
from torchcram.training.loop import Trainer
from torchcram.training.recipes import configure

QUICK = {"batch": 32, "evaluate_every": 1000, "evaluate_rows": 64, "consolidation.ramp": 100}


def trained(task: str, settings: dict, **changes) -> Evaluation:
    names = {name.replace("__", "."): value for name, value in changes.items()}
    (report,) = Trainer(configure(task, "tiny", settings=settings, changes={**QUICK, **names})).run()
    return report.evaluation


def test_queries_read_and_others_do_not():
    hurried = {"consolidation__ramp": 40, "consolidation__check_every": 10, "model__contradiction__rank": 16}
    found = trained("mqar", {"length": 20, "pairs": 3, "vocabulary": 32}, steps=210, **hurried)
    assert found.metrics["accuracy"] >= 0.99
    assert found.ledger.to_dict()["reads"] <= 1.2 * found.metrics["opt"]
    assert found.kind_hits["store"] == found.kind_hits["filler"] == 0


@pytest.mark.slow
def test_a_state_space_holds_a_few_bindings():
    settings = {"length": 20, "pairs": 3, "vocabulary": 32}
    changes = {**QUICK, "steps": 400}
    (report,) = Trainer(configure("mqar", "tiny", name="mamba", settings=settings, changes=changes)).run()
    assert report.evaluation.metrics["accuracy"] >= 0.99
    assert report.evaluation.ledger.to_dict()["reads"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "noise", "steps", "most"),
    [
        ("mqar", False, 350, 1.2),
        ("mqar", True, 600, 2.0),  # in so small a vocabulary noise often repeats
        ("forgetting-mqar", False, 600, 2.0),  # keys are looked up when bound anew
    ],
)
def test_the_same_among_more_keys(task, noise, steps, most):
    found = trained(task, {"length": 32, "pairs": 4, "vocabulary": 64, "noise": noise}, steps=steps)
    assert found.metrics["accuracy"] >= 0.99
    assert found.ledger.to_dict()["reads"] <= most * found.metrics["opt"]
