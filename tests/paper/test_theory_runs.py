"""The static bound against trained routers."""

import pytest

from tests.paper.trying import TRY, check, trying
from torchcram.paper import prices, theory_runs
from torchcram.paper.bounds import guessing_bound
from torchcram.paper.runs import Trained
from torchcram.training.recipes import configure


def run(folder, reads, accuracy):
    folder.mkdir()
    (folder / "config.json").write_text(configure("srcd", "tiny", settings={"values": 4}).to_json())
    row = {"reads": reads, "accuracy": accuracy, "accuracy_novel": None, "static_bound": 0.05, "opt": 0.015}
    return Trained(folder=folder, seed=0, row={**row, "length": 2048, "released_at": 1}, device="cpu")


def test_a_router_that_knows_answers_is_below_the_bound_and_one_that_guesses_is_not(tmp_path):
    row = theory_runs._row(run(tmp_path / "0", 0.015, 1.0), 512)
    assert (row["guessing_bound"], row["below_guessing"]) == (0.05, True)
    half = theory_runs._row(run(tmp_path / "1", 0.025, 0.5 + 0.5 / 4), 512)
    assert half["guessing_bound"] == pytest.approx(guessing_bound(0.05, 0.375, 4)) == pytest.approx(0.025)
    assert not half["below_guessing"]


def test_the_usual_setting_of_each_dial_is_the_default(tmp_path):
    """So the run without any change is the run at that setting."""
    for name, dial in prices.DIALS.items():
        job = dial.runs(name, TRY)[0].jobs(TRY, tmp_path)[0]
        config = configure("srcd", "tiny", name=job.chosen.get("model", "cram"))
        value = config
        for part in dial.setting.split("."):
            value = getattr(value, part)
        assert value == float(dial.usual), name


@pytest.mark.slow
def test_rows_are_complete(tried):
    rows = list(theory_runs.run(trying(tried)))
    check(rows)
    assert {(row["model"], row["price"]) for row in rows if row["what"] == "reads at a price"} == {
        (model, price) for model in theory_runs.MODELS for price in (0.05, 0.5)
    }
    assert [row["model"] for row in rows if row["what"].startswith("below")] == list(theory_runs.MODELS)
