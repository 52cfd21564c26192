"""Transfer to time series: layers are taken over, and each fit is made once."""

import pytest

from tests.paper.trying import TRY, check, trying
from tests.timeseries import made
from torchcram.paper import transfer, transfer_series
from torchcram.paper.runs import measured, train
from torchcram.timeseries.arrays import as_series
from torchcram.timeseries.series import Split


@pytest.fixture(scope="module")
def parts():
    series = as_series(made.classes(60))
    return Split(train=series.take(range(40)), val=series.take(range(40, 50)), test=series.take(range(50, 60)))


@pytest.mark.slow
def test_rows_are_complete_and_fits_are_made_once(tried, parts):
    setup = trying(tried)
    scratch = train(setup, transfer.first(TRY))
    rows = []
    for model in ("cram", "seqboat"):
        rows += transfer_series.moved(setup, "p12", parts, model, scratch[f"{model} on srcd"])
    check([measured(setup, row) for row in rows])
    printed = {row["claim"] for row in rows if "printed" in row}
    assert printed == {
        *(f"transfer/physionet/{column}" for column in ("accuracy", "attention", "fall")),
        *(f"transfer/seqboat-physionet/{column}" for column in ("accuracy", "attention", "fall")),
        "transfer/from/srcd/physionet",
    }
    assert [row["what"] for row in rows if "printed" not in row] == ["from scratch", "transferred"] * 2
    files = {path: path.stat().st_mtime_ns for path in (tried / "series").iterdir()}
    assert len(files) == 4
    again = list(transfer_series.moved(setup, "p12", parts, "cram", scratch["cram on srcd"]))
    assert again == rows[: len(again)]
    assert {path: path.stat().st_mtime_ns for path in (tried / "series").iterdir()} == files


def test_nothing_is_done_without_files(tmp_path):
    assert list(transfer_series.rows(trying(tmp_path), {})) == []
