"""Transfer to time series: layers are taken over, and each fit is made once."""

import json

import pytest

from tests.paper.trying import TRY, check, trying
from tests.timeseries import made
from torchcram.paper import transfer, transfer_series
from torchcram.paper.runs import Wanted, train
from torchcram.timeseries.arrays import as_series
from torchcram.timeseries.series import Split
from torchcram.training.run import RunFolder
from torchcram.training.settings import configure


@pytest.fixture(scope="module")
def parts():
    series = as_series(made.classes(60))
    return Split(train=series.take(range(40)), val=series.take(range(40, 50)), test=series.take(range(50, 60)))


@pytest.mark.slow
def test_rows_are_complete_and_fits_are_made_once(tried, parts, tmp_path, monkeypatch):
    """Both ways, with files that stand for those of the data sets."""
    setup = trying(tried, data=dict.fromkeys(transfer_series.TARGETS, tmp_path))
    monkeypatch.setattr(transfer_series, "_parts", lambda *_: parts)

    def one_by_one(setup, wanted):
        for fit in wanted:
            if not fit.file(setup).is_file():
                transfer_series.make(fit, parts, setup)

    monkeypatch.setattr(transfer_series, "finish", one_by_one)
    rows = list(transfer.run(setup))
    check(rows)
    printed = {row["claim"] for row in rows if "printed" in row and "source" in row}
    assert {
        *(f"transfer/physionet/{column}" for column in ("accuracy", "attention", "fall")),
        *(f"transfer/seqboat-physionet/{column}" for column in ("accuracy", "attention", "fall")),
        *(f"transfer/from/{source}/physionet" for source in ("srcd", "copy")),
        *(f"transfer/from/{source}/mimic3" for source in ("srcd", "copy", "physionet")),
        *(f"transfer/from/{source}/activity" for source in ("srcd", "copy", "physionet")),
        *(f"transfer/from/physionet/{task}" for task in ("copy", "associative")),
    } <= printed
    # To each data set two models from scratch and three sources, and from PhysioNet to the others.
    files = {path: path.stat().st_mtime_ns for path in (tried / "series").iterdir()}
    assert len(files) == 4 * (2 + 3) + 3
    began = RunFolder(tried / "runs" / "copying" / "cram-from=p12-frozen=semantic+router+quality-seed=0").config.start
    assert began.run == str(tried / "runs" / "p12" / "seed=0")
    assert list(transfer.run(setup)) == rows
    assert {path: path.stat().st_mtime_ns for path in (tried / "series").iterdir()} == files


@pytest.mark.slow
def test_fits_are_made_side_by_side(tmp_path, monkeypatch):
    """Each in a process of its own, which reads the data itself."""
    (run,) = train(trying(tmp_path), [Wanted(name="cram", seeds=1)])["cram"]
    folder = tmp_path / "uea"
    folder.mkdir()
    like = {"like": run.folder, "config": run.config}
    fit = transfer_series.Fit(target="p12", model="cram", source=transfer_series.SCRATCH, seed=0, **like)
    with pytest.raises(ValueError, match="set-a"):  # in vain, and said so
        transfer_series.finish(trying(tmp_path, data={"p12": folder}), [fit])


def test_a_fall_is_of_means_and_tells_what_it_is_from_and_to(tmp_path):
    setup = trying(tmp_path)
    config = configure("srcd", setup.size.settings("srcd"), preset=setup.size.preset)
    told = {transfer_series.SCRATCH: (0.2, 0.4), "srcd": (0.1, 0.1)}
    wanted = []
    for source, shares in told.items():
        for seed, reads in enumerate(shares):
            common = {"target": "p12", "model": "cram", "source": source, "seed": seed}
            fit = transfer_series.Fit(**common, like=tmp_path, config=config)
            fit.file(setup).parent.mkdir(exist_ok=True)
            fit.file(setup).write_text(json.dumps({"auroc": 0.8 + 0.1 * seed, "layer_reads": reads, "groups": 9}))
            wanted.append(fit)
    rows = {row["claim"]: row for row in transfer_series.rows(setup, wanted) if "printed" in row}
    fall = rows["transfer/physionet/fall"]
    assert fall["measured"] == pytest.approx(1 - 0.2 / 0.6)
    assert fall["layer_reads_from_scratch_sd"] == pytest.approx(0.2 / 2**0.5)
    assert fall["layer_reads_transferred_sd"] == 0
    assert (fall["runs"], fall["groups"], fall["auroc_transferred"]) == (2, 9, pytest.approx(0.85))
    assert rows["transfer/from/srcd/physionet"]["measured"] == fall["measured"]


def test_nothing_is_done_without_files(tmp_path):
    setup = trying(tmp_path)
    assert transfer._fits(setup) == transfer._fits_from_series(setup) == []
    transfer.last(setup)
    assert not list(tmp_path.iterdir())
    assert TRY.seeds == 1
