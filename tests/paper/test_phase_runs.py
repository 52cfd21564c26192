"""The phase transition in trained models: falls are dated, and what moves them is found."""

import json

import numpy as np
import pytest

from tests.paper.trying import TRY, check, trying
from torchcram.paper import curves, phase_runs
from torchcram.paper.runs import Trained
from torchcram.training.recipes import configure


def falling(folder, at, *, seed=0, released_at=100, **changes):
    """A run whose reads fall at a step."""
    config = configure("srcd", "tiny", changes=changes)
    folder.mkdir()
    (folder / "config.json").write_text(config.to_json())
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(20, 2001, 20):
            reads = 0.02 + 0.98 / (1 + np.exp((step - at) / 30))
            histogram = [0] * 19 + [10] if step > at else [10] + [0] * 19
            entry = {"step": step, "phase": "x", "reads": 1.0, "layer_reads": 1.0, "accuracy": 1.0, "mean_quality": 0.5}
            entry |= {"kind_reads": {"a": [reads, reads]}, "histograms": {"a": [histogram, histogram]}}
            file.write(json.dumps(entry) + "\n")
    return Trained(folder=folder, seed=seed, row={"released_at": released_at}, device="cpu")


def test_a_fall_is_dated_by_what_was_routed_not_by_what_was_executed(tmp_path):
    run = falling(tmp_path / "0", 700)
    found = phase_runs.fall(run)
    assert found.centre == pytest.approx(700, abs=2)
    assert found.duration == pytest.approx(30 * 2 * np.log(9), rel=0.05)
    assert curves.ratio(run) == pytest.approx(0.02, abs=0.001)


@pytest.mark.parametrize("follows", [True, False])
def test_a_fall_that_follows_the_temperature_is_told_from_one_that_does_not(follows, tmp_path):
    coolings = (200, 400, 800)
    runs = [falling(tmp_path / str(c), 100 + c if follows else 600, **{"consolidation.cooling": c}) for c in coolings]
    row = phase_runs.moves("consolidation.cooling", runs)
    assert row["measured"] == pytest.approx(1.0 if follows else 0.0, abs=0.01)
    assert row["low"] <= row["measured"] <= row["high"]
    assert row["runs_that_fall"] == 3
    halved = [falling(tmp_path / f"rate {r}", 600 / r, **{"optimizer.rate": r}) for r in (0.5, 1.0)]
    row = phase_runs.moves("optimizer.rate", halved)
    assert row["measured"] == pytest.approx(-600, abs=5)
    assert row["low"] is None


def test_without_a_fall_there_is_nothing_to_move(tmp_path):
    runs = [falling(tmp_path / str(n), 10**5, batch=n) for n in (8, 16)]
    assert phase_runs.fall(runs[0]) is None
    assert phase_runs.moves("batch", runs)["measured"] is None


def test_at_the_step_of_release_reads_are_released_already(tmp_path):
    run = falling(tmp_path / "0", 700, released_at=700)
    assert curves.at_release(run)["step"] == 680
    assert phase_runs._after_release(run)["step"] == 700
    assert curves.at_release(falling(tmp_path / "1", 700, released_at=0))["step"] == 20


def test_the_ratio_needs_a_release_where_there_should_be_one(tmp_path):
    assert curves.ratio(falling(tmp_path / "0", 700, released_at=None)) is None
    assert curves.ratio(falling(tmp_path / "1", 700, released_at=None, **{"consolidation.schedule": "plain"})) < 0.03


@pytest.mark.slow
def test_rows_are_complete(tried):
    rows = list(phase_runs.run(trying(tried)))
    check(rows)
    curve = [row for row in rows if row["what"] == "attention over training" and row["model"] == phase_runs.OURS]
    assert [row["step"] for row in curve] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        if row["what"].startswith("quality"):
            assert sum(v for k, v in row.items() if k.startswith("density")) / 20 == pytest.approx(1)
    assert {row["setting"] for row in rows if row["what"].startswith("fall against")} == set(phase_runs.MOVED)
    assert {row["model"] for row in rows} == {each.name for each in phase_runs.wanted(TRY)}
