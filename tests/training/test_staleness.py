"""Cases in which the context contradicts what was learned: what is measured, on models that know nothing."""

from types import SimpleNamespace

import pytest
import torch

from torchcram import CramConfig
from torchcram.models import Cram
from torchcram.tasks import HELD_OUT, Srcd
from torchcram.tasks.srcd import RECURRING
from torchcram.training import staleness

SETTINGS = {"length": 64, "queries": 0.1, "novel_keys": 32, "values": 4, "patterns": 8, "overridden": 0.3}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict]:
    torch.manual_seed(0)
    task = Srcd.variant("srcd", **SETTINGS)
    config = CramConfig.preset("tiny", inputs=task.inputs, outputs=task.outputs).override({"contradiction.rank": 8})
    model = Cram(config).eval()
    return {row["what"]: row for row in staleness.measure(model, task, seed=0, rows=32, positions=1000)}


def test_each_case_has_its_row_whatever_training_saw(rows):
    task = Srcd.variant("srcd", **SETTINGS)
    assert list(rows) == [*staleness.cases(task), "alarm"]
    assert len(rows) == 7
    assert "accuracy_overridden" not in rows["no override"]
    for what in ("override 10%", "override 50%", "rebound twice", "drift midway"):
        assert 0 <= rows[what]["accuracy_overridden"] < 0.6, what
    least = [rows[what]["least"] for what in ("no override", "override 10%", "override 50%")]
    assert least == sorted(least)
    assert rows["another table"]["least"] == rows["another table"]["static_bound"]


def test_a_model_that_knows_nothing_never_comes_back_after_a_drift(rows):
    row = rows["drift midway"]
    assert row["accuracy_after"] < 0.6
    assert row["back_within"] is None


def test_there_is_no_alarm_where_nothing_is_expected(rows):
    row = rows["alarm"]
    assert row["usual_checks"] == row["usual_rate"] == 0
    assert row["no_alarm"] == "0 checks are too few to know what is usual"
    assert row["positions"] is row["expected_rate"] is row["false_alarms"] is row["queries_to_ring"] is None


class Watchful(torch.nn.Module):
    """A stand-in for a model that checks every store of a recurring key against the table it knows."""

    def __init__(self, task: Srcd, errs: float = 0.0) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(1)
        examples = task.batch(seed=7, step=0, rows=range(256))
        asked = examples.kind == RECURRING
        keys, values = examples.inputs["key"][asked].tolist(), examples.targets["value"][asked].tolist()
        self.known = dict(zip(keys, values, strict=True))
        self.errs, self.calls = errs, 0

    def forward(self, inputs, **_):
        self.calls += 1
        told = inputs["value"] > 0
        writes = zip(inputs["key"][told].tolist(), (inputs["value"][told] - 1).tolist(), strict=True)
        surprises = [self.known[key] != value for key, value in writes if key in self.known]
        errors = torch.rand(len(surprises), generator=torch.Generator().manual_seed(self.calls)) < self.errs
        return SimpleNamespace(surprises=lambda: [s or bool(e) for s, e in zip(surprises, errors, strict=True)])


@pytest.mark.parametrize("errs", [0.0, 0.2])
def test_the_alarm_rings_for_a_change_and_for_nothing_else(errs):
    task = Srcd.variant("srcd", **{**SETTINGS, "overridden": 0.0})
    row = staleness._alarm(Watchful(task, errs), task, seed=0, positions=200_000, bf16=False)
    assert row["checks"] > 5_000
    assert row["surprises"] / row["checks"] == pytest.approx(errs, abs=0.02)
    assert row["usual_rate"] == pytest.approx(errs, abs=0.05)
    assert errs < row["expected_rate"] < 0.4
    assert row["false_alarms"] == 0
    assert 0 < row["queries_to_ring"] < 200


def test_accuracy_that_never_left_is_back_at_once():
    """A stand-in for a model that always answers right."""

    class Right(torch.nn.Module):
        def __init__(self, task: Srcd) -> None:
            super().__init__()
            self.norm = torch.nn.RMSNorm(1)
            self.task = task

        def forward(self, inputs, **_):
            examples = self.task.batch(seed=HELD_OUT, step=0, rows=range(len(inputs["key"])))
            target = examples.targets["value"].clamp_min(0)
            return SimpleNamespace(predictions={"value": torch.nn.functional.one_hot(target, 4)})

    task = Srcd.variant("drift", **{**SETTINGS, "overridden": 0.0})
    found = staleness._recovery(Right(task), task, seed=0, rows=16, bf16=False)
    assert found == {"accuracy_after": 1.0, "back_within": 0}
