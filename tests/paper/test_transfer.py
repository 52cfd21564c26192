"""Transfer: every pair of tasks against its own from scratch, each beside what is printed."""

import pytest

from tests.paper.trying import TRY, check, trying
from torchcram.paper import transfer
from torchcram.paper.runs import Trained
from torchcram.paper.setup import SIZES
from torchcram.paper.transfer import Transfer


def runs(folder, *shares):
    return [
        Trained(folder=folder, seed=n, row={"layer_reads": x, "accuracy": 0.5, "released_at": 1}, device="cpu")
        for n, x in enumerate(shares)
    ]


def test_a_fall_is_against_what_was_trained_from_scratch(tmp_path):
    move = Transfer(model="cram", source="srcd", target="copying", frozen=("semantic",))
    rows = {row["claim"]: row for row in transfer.compared(move, runs(tmp_path, 0.1, 0.3), runs(tmp_path, 0.2, 0.3))}
    assert rows["transfer/copy/fall"]["measured"] == pytest.approx(0.2)  # of 0.5 in all
    assert rows["transfer/copy/fall"]["printed"] == 0.51
    assert rows["transfer/copy/fall"]["layer_reads_transferred_sd"] == pytest.approx(0.2 / 2**0.5)
    assert rows["transfer/copy/fall"]["layer_reads_from_scratch"] == pytest.approx(0.25)
    assert rows["transfer/copy/fall"]["runs"] == 2
    assert rows["transfer/copy/attention"]["measured"] == pytest.approx(0.2)
    assert rows["transfer/copy/attention"]["sd"] == pytest.approx(0.2 / 2**0.5)
    assert rows["transfer/from/srcd/copy"]["measured"] == pytest.approx(0.2)
    nothing = list(transfer.compared(move, runs(tmp_path, 0.1), runs(tmp_path, 0.0)))
    assert nothing[-1]["measured"] is None


def test_what_is_begun_with_is_what_was_trained(tmp_path):
    for size in (TRY, *SIZES.values()):
        folders = {str(job.folder) for each in transfer.first(size) for job in each.jobs(size, tmp_path)}
        for each in transfer.transfers():
            for job in each.wanted(size).jobs(size, tmp_path):
                assert job.varied["start.run"] in folders
                job.check()


@pytest.mark.slow
def test_rows_are_complete(tried):
    rows = list(transfer.run(trying(tried)))
    check(rows)
    printed = {row["claim"] for row in rows if "printed" in row}
    assert {"transfer/copy/fall", "transfer/seqboat-copy/fall", "transfer/from/srcd/associative"} <= printed
    assert "transfer/from/copy/associative" in printed
    moved = [row for row in rows if row["what"] == "transferred" and row["model"] == "cram"]
    assert all(row["released_at"] == 0 for row in moved)
