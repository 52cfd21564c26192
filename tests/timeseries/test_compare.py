"""Comparisons: the same samples for all, intervals, paired differences, and warnings where scores mean nothing."""

import json
from dataclasses import replace

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


@pytest.mark.parametrize("model", ["gru-d", "mtand", "transformer", "cram"])
def test_a_context_and_the_order_alone_are_for_every_network(model):
    data = made.labels(30, 24)
    data["time"] = np.cumsum(np.random.default_rng(0).random((30, 24)) + 0.1, axis=1)
    series = as_series(data, per_step=True)
    split = Split(train=series.take(range(20)), val=series.take(range(20, 25)), test=series.take(range(25, 30)))
    found = [
        next(compare.judge(model, split, settings={**FEW, "context": 8, "times": times})).probabilities
        for times in ("order", "real")
    ]
    assert [each.shape for each in found] == [(5 * 24, 2)] * 2
    assert not np.array_equal(*found)
    one = compare._one(model, split, {**FEW, "context": 8, "times": "order"}, "cpu", 0)
    stretched = replace(split.test, times=split.test.times**2)
    np.testing.assert_array_equal(one.predict_proba(stretched), found[0])
    if model == "mtand":
        assert one.network.span == 7  # of what is seen at once


def test_validation_chooses_what_is_tried_and_more_members_are_like_the_best(monkeypatch):
    made_with = []
    one = compare._one

    def noted(model, parts, settings, device, seed):
        made_with.append((settings["rate"], seed))
        return one(model, parts, settings, device, seed)

    monkeypatch.setattr(compare, "_one", noted)
    tries = {"rate": [1e-9, 1e-2]}  # one that learns nothing
    found, *_ = compare.judge("gru-d", parts(), settings={"epochs": 3, "batch": 32}, tries=tries, members=3, seed=5)
    assert made_with == [(1e-9, 5), (1e-2, 5), (1e-2, 6), (1e-2, 7)]
    tried = json.loads(found.row["tried"])
    assert [each["rate"] for each in tried] == [1e-9, 1e-2]
    assert tried[1]["val_loss"] < tried[0]["val_loss"]
    assert json.loads(found.row["chosen"]) == {"rate": 1e-2}
    assert json.loads(found.row["tries"]) == tries
    assert found.row["members"] == 3
    made_with.clear()
    list(compare.judge("gru-d", parts(), settings={"epochs": 1, "batch": 32, "rate": 1e-3}, members=2))
    assert made_with == [(1e-3, 0), (1e-3, 1)]
    with pytest.raises(ValueError, match="rate cannot be set for trees"):
        list(compare.judge("trees", parts(), tries=tries))


def test_what_members_say_is_averaged_and_what_they_executed_added_up():
    (together, *_) = compare.judge("cram", parts(), settings=FEW, members=2)
    alone = [next(compare.judge("cram", parts(), settings=FEW, seed=seed)) for seed in (0, 1)]
    mean = np.mean([each.probabilities for each in alone], axis=0)
    np.testing.assert_allclose(together.probabilities, mean, atol=1e-6)
    assert together.row["reads"] == pytest.approx(np.mean([each.row["reads"] for each in alone]))


def test_settings_that_do_not_exist_are_told():
    with pytest.raises(ValueError, match="model = 'lstm' is not possible"):
        list(compare.judge("lstm", parts()))
    with pytest.raises(ValueError, match="epochs cannot be set for trees; allowed: none"):
        list(compare.judge("trees", parts(), settings=FEW))
    with pytest.raises(ValueError, match="depth, seed cannot be set for cram; allowed: acquire"):
        list(compare.judge("cram", parts(), settings={"depth": 3, "seed": 1}))
    with pytest.raises(ValueError, match=r"preset cannot be set for gru-d; allowed: .*hidden"):
        list(compare.judge("gru-d", parts(), settings={"preset": "tiny"}))


def test_what_sequence_models_see_is_their_own_business():
    given = {"epochs": 1, "interval": 2.0, "features": "values"}
    assert compare.own("cram", given) == compare.own("transformer", given) == given
    assert compare.own("mtand", given) == compare.own("gru-d", given) == {"epochs": 1}
    assert compare.own("trees", given) == {}


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


def test_samples_are_resampled_where_groups_are_few():
    series = as_series({**made.classes(40), "groups": np.arange(40) // 4})
    assert len(np.unique(compare._groups(series))) == 10
    assert len(np.unique(compare._groups(series.take(np.arange(36))))) == 36


def test_models_that_were_judged_on_other_samples_are_not_compared():
    every = [said("cram", [0.1, 0.9, 0.2, 0.8]), said("trees", [0.1, 0.9, 0.2, 0.8], labels=(1, 0, 0, 1))]
    with pytest.raises(ValueError, match="trees was judged on other samples of split 1 than cram"):
        list(compare.differences(every, "auroc", draws=5))


@pytest.mark.parametrize("shares", [(0.86, 0.14), (0.5, 0.5), (0.4, 0.35, 0.25, 0.0)])
def test_chance_is_what_guessing_gives(shares):
    rng = np.random.default_rng(0)
    labels = rng.choice(len(shares), p=shares, size=20_000)
    expected = compare.chance(labels, len(shares))
    known = np.tile(np.bincount(labels, minlength=len(shares)) / len(labels), (len(labels), 1))
    guesses = [np.eye(len(shares))[rng.choice(len(shares), p=p, size=len(labels))] for p in (shares, None)]
    noise = rng.random(known.shape)
    for name, measure in {**compare.CLASSIFYING, **compare.LABELLING}.items():
        scored = {"brier": [known], "auroc": [noise], "auprc": [noise]}.get(name, [known, *guesses])
        best = max(measure(labels, each) for each in scored)
        assert expected[name] == pytest.approx(best, abs=0.02), name


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
        *(("majority", "routed", split) for split in (1, 2)),
        *(("trees", "routed", split) for split in (1, 2)),
        *(("cram", routing, 1) for routing in ("routed", "off", "dense")),
    ]
    assert sum(row["what"] == "chance" for row in rows) == 2
    assert {row["measure"] for row in rows if row["what"] == "difference"} == {"auroc", "auprc"}
    assert json.loads((out / "trees-routed-1.json").read_text())["task"] == "toy"
    assert "trees" in done.output
    for more, message in (
        (["--models", "forest"], "model = 'forest' is not possible"),
        (["--models", "cram", "--set", "epochs=2"], "has settings {'epochs': 1}, not {'epochs': 2}"),
        (["--models", "trees", "--seed", "1"], "has seed 0, not 1; choose another --out"),
        (["--models", "cram", "--set", "epochs=1", "--try", "rate=1e-3,2e-3"], "has tries {}, not {'rate': [0.001"),
        (["--models", "cram", "--try", "rate=1e-3"], "--try rate = [0.001] is not possible; allowed: two values"),
        (["--models", "cram", "--set", "rate=1", "--try", "rate=1,2"], "of what no --set sets"),
        (["--models", "cram", "--try", "rate"], "--try 'rate' is not possible"),
        (["--models", "majority,cram", "--set", "depth=2"], "depth cannot be set for cram"),
    ):
        bad = CliRunner().invoke(app, [*words, *more])
        assert bad.exit_code == 1
        assert message in bad.output.replace("\n", "")
    (out / "cram-dense-1.json").unlink()  # stopped before its end
    words = [*words[:5], "--set", "epochs=1", "--models", "cram", "--splits", "1"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert (out / "cram-dense-1.json").exists()
