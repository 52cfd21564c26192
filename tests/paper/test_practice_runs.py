"""Practice in trained models: decisions are read as they were recorded, and what decides is told apart."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.paper.trying import TRY, check, trying
from torchcram.paper import practice_runs
from torchcram.paper.exposures import by_step, from_steps, grouped
from torchcram.paper.runs import Trained
from torchcram.training.decisions import Decisions


def recorded(folder: Path, reads, *, released_at, seed=0):
    """A run of two patterns, each asked for once a step; reads [steps] bool of the first, the second never does."""
    decisions = Decisions(2, torch.device("cpu"))
    for step, read in enumerate(reads):
        decisions.record(step, torch.tensor([[0, -1, 1]]), torch.tensor([[[int(read)], [1], [2]]]))
    decisions.save(folder / "checkpoints" / "decisions")
    return Trained(folder=folder, seed=seed, row={"released_at": released_at}, device="cpu")


def test_exposures_are_those_of_the_runs(tmp_path):
    runs = [
        recorded(tmp_path / "0", [True, True, False], released_at=1, seed=0),
        recorded(tmp_path / "1", [True, True, True], released_at=None, seed=1),
    ]
    data = practice_runs.exposures(runs)
    assert len(np.unique(data.pattern)) == 4
    first = data.where(data.pattern == 0)
    assert (first.k.tolist(), first.read.tolist()) == ([1, 2, 3], [1, 1, 0])
    later = practice_runs.exposures(runs, "from release")
    assert set(later.seed.tolist()) == {0}  # the other never was
    assert later.where(later.pattern == 0).read.tolist() == [1, 0]
    assert later.k.min() == 1
    assert practice_runs.exposures(runs[1:], "from release") is None


def frequencies(stop_by_step: bool):
    """Patterns asked for 1 to 8 times a step, which stop at the same step, or after as many exposures."""
    asked = np.tile(np.array([1, 2, 4, 8]), (400, 1))
    before = np.cumsum(asked, axis=0) - asked
    reads = np.arange(400)[:, None] < 60 if stop_by_step else before < 120
    return from_steps(asked, asked * reads), by_step(asked, asked * reads)


@pytest.mark.parametrize("stop_by_step", [False, True])
def test_exposures_are_told_from_steps(stop_by_step):
    seen, trained = frequencies(stop_by_step)
    row = practice_runs.until_it_stops(seen)
    assert row["patterns_that_stop"] == 4
    assert row["measured"] == pytest.approx(1.0 if stop_by_step else 0.0, abs=0.1)
    assert row["low"] <= row["measured"] <= row["high"]
    apart = {
        clock: practice_runs.fit("change-point", data).likelihood for clock, data in (("k", seen), ("step", trained))
    }
    assert (apart["step"] > apart["k"]) == stop_by_step


def test_many_steps_are_put_together_and_few_are_not():
    asked = np.random.default_rng(0).integers(0, 3, (3000, 4))
    read = asked // 2
    same = grouped(asked[:150], read[:150])
    assert np.array_equal(same[0], asked[:150])
    few = grouped(asked, read)
    assert len(few[2]) < 400
    assert (few[0].sum(), few[1].sum()) == (asked.sum(), read.sum())
    assert few[2][-1] < 3000
    assert (np.diff(few[2])[200:] <= 0.02 * few[2][200:-1] + 1).all()
    data = by_step(few[0], few[1], steps=few[2])
    assert data.decisions == asked.sum()
    assert set(data.k.tolist()) <= set((few[2] + 1).tolist())


def test_of_equal_frequencies_nothing_is_told():
    asked = np.ones((50, 3), dtype=np.int64)
    data = from_steps(asked, (np.arange(50)[:, None] < [10, 20, 30]).astype(np.int64))
    assert practice_runs.until_it_stops(data)["measured"] is None


def test_rows_are_complete_and_runs_are_made_once(tried):
    rows = list(practice_runs.run(trying(tried)))
    check(rows)
    assert {row["task"] for row in rows} == {"srcd", "zipf"}
    told = {row["what"] for row in rows}
    assert {"γ of one power law without a floor", "laws pattern by pattern", "averaged curve", "never released"} <= told
    pooled = [row for row in rows if row["what"] == "power, one curve for all patterns"]
    assert len(pooled) == 3
    assert all(row["decisions"] > 0 and row["bic"] > 0 and "held_out_patterns" in row for row in pooled)
    runs = sum(each.seeds for each in practice_runs.wanted(TRY))
    files = {path: path.stat().st_mtime_ns for path in (tried / "runs").rglob("row.json")}
    assert len(files) >= runs == 3
    assert json.dumps(list(practice_runs.run(trying(tried)))) == json.dumps(rows)
    assert {path: path.stat().st_mtime_ns for path in (tried / "runs").rglob("row.json")} == files
