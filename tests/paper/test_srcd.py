"""The main result: every system of table 1, each number beside the printed one."""

import pytest

from tests.paper.trying import TRY, check, trying
from torchcram.paper import srcd
from torchcram.paper.claims import CLAIMS


@pytest.mark.slow
def test_rows_are_complete(tried):
    rows = list(srcd.run(trying(tried)))
    check(rows)
    names = {each.name for each in srcd.wanted(TRY)}
    assert {row["model"] for row in rows} == names
    printed = {row["claim"] for row in rows if "printed" in row}
    wanted = {
        f"srcd/{row}/{column}"
        for row, _ in srcd.SYSTEMS.values()
        for column in ("accuracy", "attention", "ratio", "dynamics-mse")
    }
    assert printed == wanted & set(CLAIMS)
    runs = {row["model"]: row for row in rows if row["what"] == "run"}
    assert set(runs) == names
    assert runs["transformer"]["ratio"] == 1
    assert runs["mamba"]["ratio"] is None  # it never reads
    assert runs["cram"]["ratio"] is None  # not released in so few steps
    assert runs[srcd.PAPERS]["reads_executed"] == 1 > runs[srcd.PAPERS]["reads"]
    assert all(row["accuracy_recurring"] is not None and row["accuracy_novel"] is not None for row in runs.values())
    curve = [row["step"] for row in rows if row["what"] == "attention over training" and row["model"] == "jamba"]
    assert curve == [1, 5, 6]


def test_summaries():
    assert srcd.summary([0.5]) == {"measured": 0.5, "low": 0.5, "high": 0.5}
    assert srcd.summary([1.0, 3.0])["sd"] == pytest.approx(2**0.5)
    assert srcd.summary([1.0, None]) == {"measured": None, "runs_without": 1}
