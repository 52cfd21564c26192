"""`fit` and `predict`: they learn, keep what they learned, and say what is wrong."""

import json

import numpy as np
import pytest
import torch

from tests.timeseries import made
from torchcram import CramClassifier, CramLabeller
from torchcram.timeseries import as_series, estimators, parts
from torchcram.training.loop import Trainer
from torchcram.training.recipes import configure
from torchcram.training.run import RunFolder

QUICK = {"device": "cpu", "progress": False, "rate": 3e-3}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fitted():
    data = made.classes()
    return CramClassifier(**QUICK, epochs=30, batch=32, members=2).fit(data), made.classes(100, seed=1)


def test_it_learns_and_gives_up_reads_that_are_of_no_use(fitted):
    classifier, test = fitted
    said = classifier.predict_proba({"X": test["X"], "time": test["time"]})
    assert said.shape == (100, 2)
    np.testing.assert_allclose(said.sum(1), 1)
    assert (classifier.predict(test) == test["y"]).mean() >= 0.85
    assert (classifier.classify(test) == classifier.predict(test)).all()
    classifier.predict_proba(test)
    assert classifier.ledger.reads <= 0.5
    assert len(classifier.history) == 2
    dense = classifier.predict_proba(test, reads="dense")
    assert classifier.ledger.reads == 1
    assert not np.array_equal(dense, said)
    classifier.predict_proba(test, reads="off")
    assert classifier.ledger.reads == 0


def test_members_are_averaged_and_differ(fitted):
    classifier, test = fitted
    both = classifier.predict_proba(test)
    every, each = list(classifier._fitted.networks), []
    for network in every:
        classifier._fitted.networks[:] = [network]
        each.append(classifier.predict_proba(test))
    classifier._fitted.networks[:] = every
    assert len(each) == 2
    assert not np.array_equal(*each)
    np.testing.assert_allclose(both, (each[0] + each[1]) / 2)


def test_answers_do_not_depend_on_the_company(fitted):
    classifier, test = fitted
    whole = classifier.predict_proba(test)
    alone = classifier.predict_proba({"X": test["X"][7:8], "time": test["time"][7:8]})
    np.testing.assert_allclose(alone[0], whole[7], atol=1e-5)


def test_saved_and_loaded_it_says_the_same(fitted, tmp_path):
    classifier, test = fitted
    classifier.save(tmp_path / "model")
    loaded = CramClassifier.load(tmp_path / "model", device="cpu")
    assert loaded.classes == [0, 1]
    np.testing.assert_array_equal(loaded.predict_proba(test), classifier.predict_proba(test))
    with pytest.raises(ValueError, match="holds a CramClassifier, not a CramLabeller"):
        CramLabeller.load(tmp_path / "model")
    with pytest.raises(ValueError, match=r"holds no estimator: it has no estimator\.json"):
        CramClassifier.load(tmp_path)
    member = tmp_path / "model" / "member-0.safetensors"
    member.write_bytes(member.read_bytes()[:100])
    with pytest.raises(ValueError, match="is incomplete or damaged"):
        CramClassifier.load(tmp_path / "model")
    data = json.loads((tmp_path / "model" / "estimator.json").read_text())
    (tmp_path / "model" / "estimator.json").write_text(json.dumps({**data, "format_version": 99}))
    with pytest.raises(ValueError, match="format version 99; upgrade torchcram"):
        CramClassifier.load(tmp_path / "model")


def test_a_sample_is_explained(fitted):
    classifier, test = fitted
    one = {"X": test["X"][:1], "time": test["time"][:1]}
    series = as_series(one)
    told = classifier.explain(one)
    assert [each.time for each in told] == series.times.tolist()
    assert {word for each in told for word in each.actions} <= {"read", "recalled", "ignored"}
    measured = [{str(c): v for c, v in enumerate(row) if not np.isnan(v)} for row in series.values.tolist()]
    assert [each.measured for each in told] == measured
    # A read is shared out among what can be looked at; the first of a sample has nothing to look at.
    reads = sum(action == "read" for each in told[1:] for action in each.actions)
    assert sum(each.looked_at for each in told) == pytest.approx(reads, abs=1e-3)
    with pytest.raises(ValueError, match="explain is for one sample; there are 100"):
        classifier.explain(test)


def test_words_as_labels_and_arrays_alone():
    data = made.classes(60)
    names = np.array(["ill", "well"])[data["y"]]
    classifier = CramClassifier(**QUICK, epochs=1).fit(data["X"], names)
    assert classifier.classes == ["ill", "well"]
    assert set(classifier.predict(data["X"]).tolist()) <= {"ill", "well"}


def test_the_same_seed_gives_the_same_model_and_another_gives_another():
    data = made.classes(60)

    def said(seed):
        return CramClassifier(**QUICK, epochs=2, seed=seed).fit(data).predict_proba(data)

    first = said(0)
    np.testing.assert_array_equal(first, said(0))
    assert not np.array_equal(first, said(1))


def test_odd_series_can_be_fitted_and_predicted():
    data = made.classes(40)
    X = data["X"]
    X[:, :, 2] = np.nan  # a channel that was never measured
    X[:, :, 1] = np.where(np.isnan(X[:, :, 1]), np.nan, 4.0)  # one that never changes
    X[0, 1:] = np.nan  # a sample with one time stamp
    X[1] = np.nan  # a sample without any measurement
    classifier = CramClassifier(**QUICK, epochs=1).fit({"X": X, "y": data["y"]})
    said = classifier.predict_proba({"X": X})
    assert np.isfinite(said).all()
    X[2, 0, 2] = 1e9  # measured for the first time
    assert np.isfinite(classifier.predict_proba({"X": X})).all()


def test_a_label_for_each_time_stamp():
    data = made.labels()
    labeller = CramLabeller(**QUICK, epochs=12, batch=16, window=8).fit(data)
    test = made.labels(20, seed=1)
    assert (labeller.predict({"X": test["X"]}) == test["y"]).mean() >= 0.95
    assert labeller.predict_proba(test).shape == (20, 20, 2)
    assert labeller.score(test) >= 0.95
    assert labeller.predict_proba(as_series(test, per_step=True)).shape == (400, 2)


def test_labels_come_back_where_the_time_stamps_were():
    data = made.labels(30, 6)
    labeller = CramLabeller(**QUICK, epochs=1).fit(data)
    time = np.tile(np.arange(6.0), (30, 1))
    forwards = labeller.predict_proba({"X": data["X"], "time": time})
    backwards = labeller.predict_proba({"X": data["X"][:, ::-1], "time": time[:, ::-1]})
    np.testing.assert_allclose(backwards[:, ::-1], forwards)
    cut = labeller.predict({"X": data["X"], "lengths": np.full(30, 4)})
    assert np.isnan(cut[:, 4:]).all()
    assert set(cut[:, :4].ravel().tolist()) <= {0.0, 1.0}
    words = CramLabeller(**QUICK, epochs=1).fit(data["X"], np.array(["no", "yes"])[data["y"]])
    assert set(words.predict({"X": data["X"], "lengths": np.full(30, 4)})[:, 5].tolist()) == {""}


def test_other_models_have_the_same_interface(tmp_path):
    data = made.classes(40)
    classifier = CramClassifier(**QUICK, epochs=1, model="mamba").fit(data)
    assert classifier.predict_proba(data).shape == (40, 2)
    assert {action for each in classifier.explain({"X": data["X"][:1]}) for action in each.actions} == {"ignored"}
    with pytest.raises(ValueError, match="reads = 'off' is not possible; allowed: 'routed'"):
        classifier.predict_proba(data, reads="off")
    classifier.save(tmp_path)
    np.testing.assert_array_equal(
        CramClassifier.load(tmp_path, device="cpu").predict_proba(data), classifier.predict_proba(data)
    )


def test_validation_chooses_and_early_stopping_stops():
    data = made.classes(60)
    worst = {**data, "y": 1 - data["y"]}  # it can but get worse
    classifier = CramClassifier(**QUICK, epochs=40, patience=2, batch=16).fit(data, worst)
    history = classifier.history[0]
    assert len(history) < 40
    assert not any(epoch.best for epoch in history[-2:])


def test_events_can_be_fitted():
    data = made.classes(40)
    for hide in (0.0, 0.3):
        classifier = CramClassifier(**QUICK, epochs=1, layout="events", hide=hide).fit(data)
        assert classifier.predict_proba(data).shape == (40, 2)
    one = {"X": data["X"][:1]}
    told = classifier.explain(one)
    assert [each.measured for each in told] == [
        {str(c): pytest.approx(v)} for row in data["X"][0] for c, v in enumerate(row) if not np.isnan(v)
    ]


def test_intervals_can_be_fitted(tmp_path):
    data = made.classes(60)
    classifier = CramClassifier(**QUICK, epochs=1, interval=2.5).fit(data)
    one = {"X": data["X"][:1], "time": data["time"][:1]}
    series, told = as_series(one), classifier.explain(one)
    number = ((series.times - series.times[0]) // 2.5).tolist()
    assert len(told) == len(set(number)) < len(number)
    assert [each.time for each in told] == [
        series.times[len(number) - 1 - number[::-1].index(k)] for k in sorted(set(number))
    ]
    for each, k in zip(told, sorted(set(number)), strict=True):
        rows = series.values[[n == k for n in number]]
        last = {str(c): column[~np.isnan(column)][-1] for c, column in enumerate(rows.T) if not np.isnan(column).all()}
        assert each.measured == pytest.approx(last)
    assert classifier.ledger is None
    said = classifier.predict_proba(data)
    assert classifier.ledger.positions < len(as_series(data).times)
    classifier.save(tmp_path / "model")
    np.testing.assert_array_equal(CramClassifier.load(tmp_path / "model", device="cpu").predict_proba(data), said)


def test_val_in_every_form(tmp_path):
    data, other = made.classes(60), made.classes(20, seed=1)
    pair = (other["X"], other["y"])
    said = [
        CramClassifier(**QUICK, epochs=1).fit(*words, **named).predict_proba(data["X"])
        for words, named in (
            ((data["X"], data["y"], {"X": pair[0], "y": pair[1]}), {}),
            (({"X": data["X"], "y": data["y"]}, pair), {}),
            ((as_series(data["X"], data["y"]), as_series(*pair)), {}),
            ((data["X"],), {"y": data["y"], "val": pair}),
        )
    ]
    for each in said[1:]:
        np.testing.assert_array_equal(each, said[0])
    with pytest.raises(ValueError, match=r"fit takes \(train, val\), \(X, y\) or \(X, y, val\)"):
        CramClassifier(**QUICK).fit(data, data, data)


def test_files_keep_their_labels_and_their_order(tmp_path):
    h5py = pytest.importorskip("h5py")
    data = made.classes(60)
    y = np.array(["good", "ill", "well"])[data["y"] + (data["X"][:, 0, 0] > 1)]
    paths = []
    for name, rows in (("train", slice(0, 40)), ("val", np.flatnonzero((y != "ill") & (np.arange(60) >= 40)))):
        paths.append(tmp_path / f"{name}.h5")
        with h5py.File(paths[-1], "w") as file:
            file["X"], file["y"] = data["X"][rows], y[rows].astype("S")
    classifier = CramClassifier(**QUICK, epochs=1).fit(*paths)
    assert classifier.classes == ["good", "ill", "well"]
    assert classifier.predict_proba(paths[1]).shape[1] == 3
    classifier.save(tmp_path / "model")
    assert CramClassifier.load(tmp_path / "model", device="cpu").classes == ["good", "ill", "well"]


def test_channels_are_known_by_their_names():
    data = {**made.classes(40), "channels": ["hr", "temp", "spo2"]}
    classifier = CramClassifier(**QUICK, epochs=1).fit(data)
    classifier.predict({"X": data["X"]})  # without names, by their places
    with pytest.raises(ValueError, match="the data have the channels temp, hr, spo2; expected hr, temp, spo2"):
        classifier.predict({"X": data["X"], "channels": ["temp", "hr", "spo2"]})


def test_groups_and_rare_classes_are_parted_with_care():
    data = made.classes(60)
    rare = {**data, "y": (np.arange(60) < 8).astype(int)}
    for seed in range(5):
        learned, chosen = parts.parted(as_series(rare), seed)
        assert np.bincount(learned.labels).tolist() == [44, 7]
        assert np.bincount(chosen.labels).tolist() == [8, 1]
    people = as_series({**data, "groups": np.arange(60) // 6})
    learned, chosen = parts.parted(people, 0)
    assert not set(learned.groups.tolist()) & set(chosen.groups.tolist())
    with pytest.raises(ValueError, match="too few samples to keep some apart"):
        parts.parted(as_series({**data, "groups": [0] * 60}), 0)


def test_a_fit_leaves_torchs_numbers_alone_and_a_failed_one_the_model(monkeypatch):
    data = made.classes(40)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    classifier = CramClassifier(**QUICK, epochs=1).fit(data)
    assert torch.equal(torch.rand(1), expected)
    before, history = classifier.predict_proba(data), classifier.history
    monkeypatch.setattr(estimators.Fitting, "run", lambda self: (_ for _ in ()).throw(FloatingPointError("no")))
    with pytest.raises(FloatingPointError):
        classifier.fit(data)
    assert classifier.history is history
    np.testing.assert_array_equal(classifier.predict_proba(data), before)


def test_scikit_learn_can_use_it():
    base, selection = pytest.importorskip("sklearn.base"), pytest.importorskip("sklearn.model_selection")
    data = made.classes(60)
    classifier = base.clone(CramClassifier(**QUICK, epochs=1))
    assert classifier.get_params()["epochs"] == 1
    assert base.is_classifier(classifier)
    scores = selection.cross_val_score(classifier, data["X"], data["y"], cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert classifier.set_params(epochs=2).config.fit.epochs == 2


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda d: CramClassifier(depth=3), "depth is not a setting; allowed: .*epochs.*members"),
        (lambda d: CramClassifier(**QUICK).predict(d), "has not been fitted yet; call fit first"),
        (lambda d: CramClassifier(**QUICK).fit({"X": d["X"]}), "there are no labels"),
        (lambda d: CramClassifier(**QUICK).fit({**d, "y": 0 * d["y"]}), "nothing to tell apart"),
        (
            lambda d: CramClassifier(**QUICK).fit(d, {**d, "X": d["X"][:, :, :2]}),
            "validation has 2 features, training 3",
        ),
        (lambda d: CramClassifier(**QUICK).fit(d, {"X": d["X"]}), "the samples for validation have no labels"),
        (lambda d: CramLabeller(**QUICK).fit(d), r"y has shape \(40,\); expected \(40, 12\)"),
        (lambda d: CramClassifier(**QUICK, model="nothing").fit(d), "model = 'nothing' is not possible"),
        (lambda d: CramClassifier(**QUICK, preset="huge").fit(d), "preset = 'huge' is not possible"),
        (lambda d: CramClassifier(**QUICK, epochs=0), "epochs = 0 is not possible"),
    ],
    ids=[
        "setting",
        "unfitted",
        "no labels",
        "one class",
        "features",
        "val labels",
        "shape",
        "model",
        "preset",
        "epochs",
    ],
)
def test_mistakes_are_told(act, message):
    with pytest.raises(ValueError, match=message):
        act(made.classes(40))


@pytest.mark.gpu
def test_it_learns_on_a_gpu():
    data, test = made.classes(160), made.classes(100, seed=1)
    settings = {"progress": False, "rate": 3e-3, "epochs": 20, "batch": 32}
    classifier = CramClassifier(device="cuda", **settings, bf16=True).fit(data)
    assert classifier.score(test) >= 0.85
    assert classifier.explain({"X": data["X"][:1]})


def test_a_labeller_with_a_context_that_is_told_the_order_alone(tmp_path):
    data = made.labels(20, 24)
    rng = np.random.default_rng(0)
    data["time"] = np.cumsum(rng.random((20, 24)) + 0.1, axis=1)
    labeller = CramLabeller(**QUICK, epochs=12, context=8, times="order", acquire=0.1, ramp=0.1).fit(data)
    said = labeller.predict_proba(data)
    assert labeller.score(data) > 0.8
    np.testing.assert_array_equal(labeller.predict_proba({"X": data["X"], "time": data["time"] ** 2}), said)
    labeller.save(tmp_path)
    again = CramLabeller.load(tmp_path, device="cpu")
    assert (again.config.fit.context, again.config.fit.times) == (8, "order")
    np.testing.assert_array_equal(again.predict_proba(data), said)
    real = CramLabeller(**QUICK, epochs=1, context=8).fit(data)
    moved = real.predict_proba({"X": data["X"], "time": data["time"] ** 2})
    assert not np.array_equal(moved, real.predict_proba(data))


def test_an_explanation_follows_the_pieces_of_a_context():
    data = made.labels(20, 24)
    labeller = CramLabeller(**QUICK, epochs=1, context=8, times="order", price=0.0).fit(data)
    one = {"X": data["X"][:1], "time": np.arange(24.0)[None] * 3}
    labeller.predict_proba(one)
    told = labeller.explain(one)
    assert [each.time for each in told] == (np.arange(24) * 3.0).tolist()
    reads = sum(action == "read" for each in told for action in each.actions)
    assert reads > 0
    # Every read of a token that has some before it goes to these.
    first = sum(action == "read" for action in told[0].actions)
    assert sum(each.looked_at for each in told) == pytest.approx(reads - first, rel=1e-4)
    assert told[-1].looked_at == 0
    short = CramLabeller(**QUICK, epochs=1, context=64, seed=1).fit(data)
    assert len(short.explain(one)) == 24


def test_a_classifier_sees_the_whole_sample_whatever_the_context():
    data = made.classes(40)
    plain = CramClassifier(**QUICK, epochs=1).fit(data)
    bounded = CramClassifier(**QUICK, epochs=1, context=4).fit(data)
    np.testing.assert_array_equal(plain.predict_proba(data), bounded.predict_proba(data))


def test_layers_of_a_run_are_taken_over(tmp_path):
    folder = RunFolder(tmp_path)
    changes = {"steps": 1, "batch": 2, "evaluate_rows": 2, "model.contradiction.rank": 0}
    folder.begin(configure("srcd", "tiny", settings={"length": 32}, changes=changes))
    trainer = Trainer(folder.config)
    list(trainer.run(folder.checkpoints))
    given = trainer.model.get_parameter("blocks.1.semantic.up.weight")
    frozen = {"run": str(folder.path), "frozen": ["semantic"]}
    fitted = CramClassifier(epochs=1, start=frozen, progress=False).fit(made.classes(40))
    mine = fitted._fitted.networks[0].model
    assert mine.get_parameter("blocks.1.semantic.up.weight").equal(given)
    assert not mine.get_parameter("blocks.1.episodic.query.weight").equal(
        trainer.model.get_parameter("blocks.1.episodic.query.weight")
    )
    with pytest.raises(ValueError, match=r"the layers of .* are others"):
        CramClassifier(epochs=1, start=frozen, changes={"semantic.rank": 8}, progress=False).fit(made.classes(40))
