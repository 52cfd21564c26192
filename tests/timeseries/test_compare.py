"""Comparisons: the same samples for all, intervals, paired differences, and warnings where scores mean nothing."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.timeseries import made
from torchcram import results
from torchcram.cli.main import app
from torchcram.timeseries import Split, as_series, compare, datasets

pytest.importorskip("sklearn")

FEW = {"epochs": 1, "batch": 32}


def parts() -> Split:
    series = as_series(made.classes(150))
    return Split(
        train=series.take(np.arange(90)), val=series.take(np.arange(90, 110)), test=series.take(np.arange(110, 150))
    )


def said(model, probabilities, *, routing="routed", split=1, labels=(0, 1, 0, 1)):
    labels, probabilities = np.array(labels), np.array([[1 - p, p] for p in probabilities])
    row = {"model": model, "routing": routing, "split": split}
    return compare.Said(row=row, labels=labels, groups=np.arange(len(labels)), probabilities=probabilities)


@pytest.mark.parametrize("model", ["majority", "logistic", "trees", "gru-d", "mtand", "mamba", "cram"])
def test_every_kind_of_model_is_judged_alike(model):
    networks = model not in compare.TABULAR
    found = list(compare.judge(model, parts(), settings=FEW if networks else {}, members=2 if networks else 1))
    assert [each.row["routing"] for each in found] == (["routed", "off", "dense"] if model == "cram" else ["routed"])
    for each in found:
        assert each.probabilities.shape == (40, 2)
        assert each.row["auroc_low"] <= each.row["auroc"] <= each.row["auroc_high"]
        assert {"val_auroc", "auprc", "brier", "balanced_accuracy", "loss", "seconds"} <= each.row.keys()
        assert each.row["members"] == (2 if networks else 1)
        assert (each.row["parameters"] is None) == (not networks)
    if model == "cram":
        assert [each.row["reads"] for each in found[1:]] == [0, 1]
    if model == "majority":
        assert found[0].row["auroc"] == 0.5
    if model == "trees":
        assert found[0].row["auroc"] > 0.9


def test_settings_that_do_not_exist_are_told():
    with pytest.raises(ValueError, match="model = 'lstm' is not possible"):
        list(compare.judge("lstm", parts()))
    with pytest.raises(ValueError, match="trees has no settings; given: epochs"):
        list(compare.judge("trees", parts(), settings=FEW))
    with pytest.raises(ValueError, match="depth is not a setting"):
        list(compare.judge("cram", parts(), settings={"depth": 3}))


def test_differences_are_paired_and_summed_up():
    every = [
        said("cram", [0.1, 0.9, 0.2, 0.8]),
        said("trees", [0.9, 0.1, 0.8, 0.2]),
        said("cram", [0.1, 0.9, 0.2, 0.8], split=2),
        said("trees", [0.1, 0.9, 0.2, 0.8], split=2),
    ]
    first, second, overall = compare.differences(every, "auroc", draws=50)
    assert (first["model"], first["split"], first["ahead"], first["low"]) == ("trees", 1, 1.0, 1.0)
    assert (second["split"], second["ahead"], second["low"], second["high"]) == (2, 0, 0, 0)
    assert (overall["splits"], overall["ahead"], overall["clear"]) == (2, 0.5, 1)


def test_chance():
    assert compare.chance(np.array([0, 0, 0, 1]), 2)["auprc"] == 0.25
    assert compare.chance(np.array([0, 0, 1, 2]), 4)["balanced_accuracy"] == pytest.approx(1 / 3)
    always = np.tile([1.0, 0, 0, 0], (4, 1))
    for name in ("accuracy", "macro_f1"):
        measure = compare.LABELLING[name]
        assert compare.chance(np.array([0, 0, 1, 2]), 4)[name] == pytest.approx(measure(np.array([0, 0, 1, 2]), always))


def test_the_command_goes_on_where_it_was_and_writes_one_file(tmp_path, monkeypatch):
    made_splits = []

    def make(folder, number, kept):
        made_splits.append(number)
        return parts()

    monkeypatch.setattr(datasets, "DATASETS", {"toy": datasets.DataSet(about="", splits=2, make=make)})
    monkeypatch.setattr("torchcram.cli.timeseries.DATASETS", datasets.DATASETS)
    out, file = tmp_path / "out", tmp_path / "toy.json"
    words = ["timeseries", "toy", str(tmp_path), "--out", str(out), "--set", "epochs=1", "--json", str(file)]
    done = CliRunner().invoke(app, [*words, "--models", "cram", "--splits", "1"])
    assert done.exit_code == 0, done.output
    assert made_splits == [1]
    words = ["timeseries", "toy", str(tmp_path), "--out", str(out), "--json", str(file)]
    done = CliRunner().invoke(app, [*words, "--models", "majority,trees", "--set", "epochs=1"])  # for networks alone
    assert done.exit_code == 0, done.output
    assert made_splits == [1, 1, 2]
    done = CliRunner().invoke(app, [*words, "--models", "majority,trees"])
    assert made_splits == [1, 1, 2]
    rows = results.read(file)["rows"]
    models = [(row["model"], row["routing"], row["split"]) for row in rows if row["what"] == "model"]
    assert models == [
        *(("cram", routing, 1) for routing in ("dense", "off", "routed")),
        *(("majority", "routed", split) for split in (1, 2)),
        *(("trees", "routed", split) for split in (1, 2)),
    ]
    assert sum(row["what"] == "chance" for row in rows) == 2
    assert {row["measure"] for row in rows if row["what"] == "difference"} == {"auroc", "auprc"}
    assert json.loads((out / "trees-routed-1.json").read_text())["task"] == "toy"
    assert "trees" in done.output
    bad = CliRunner().invoke(app, [*words, "--models", "forest"])
    assert bad.exit_code == 1
    assert "--models = 'forest' is not possible" in bad.output
