"""Tables of summaries are what a plain loop gives; learners on them learn, and choose by validation."""

import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.timeseries.samples import random_series
from torchcram.timeseries.metrics import log_loss
from torchcram.timeseries.rivals import Logistic, Majority, Trees, columns, running_table, table
from torchcram.timeseries.rivals.tabular import SO_FAR, WHOLE
from torchcram.timeseries.series import UNKNOWN, Series

LEARNERS = {"logistic": lambda: Logistic(), "trees": lambda: Trees(rounds=40)}


def of_channel(times: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Summaries of one channel of one sample, at its last time stamp."""
    seen = [float(value) for value in values if not np.isnan(value)]
    when = [moment for moment, value in zip(times, values, strict=True) if not np.isnan(value)]
    if not seen:
        return dict.fromkeys(("last", "age", "mean", "min", "max"), np.nan) | {"count": 0, "missing": 1}
    return {
        "last": seen[-1],
        "age": times[-1] - when[-1],
        "mean": sum(seen) / len(seen),
        "min": min(seen),
        "max": max(seen),
        "count": len(seen),
        "missing": 0,
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("missing", [0.0, 0.6, 0.95])
def test_the_table_is_that_of_a_plain_loop(seed, missing):
    series = random_series(seed, samples=12, missing=missing)
    expected = []
    for sample, (times, values) in enumerate(series):
        each = [of_channel(times, values[:, channel]) for channel in range(3)]
        expected.append([told[name] for told in each for name in WHOLE] + series.statics[sample].tolist())
    found = table(series)
    assert found.dtype == np.float32
    assert found.shape[1] == len(columns(series))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("missing", [0.0, 0.6, 0.95])
def test_the_running_table_is_that_of_a_plain_loop(seed, missing):
    series = random_series(seed, samples=12, missing=missing, per_step=True)
    expected = []
    for sample, (times, values) in enumerate(series):
        for end in range(1, len(times) + 1):
            each = [of_channel(times[:end], values[:end, channel]) for channel in range(3)]
            expected.append([told[name] for told in each for name in SO_FAR] + series.statics[sample].tolist())
    found = running_table(series)
    assert found.dtype == np.float32
    assert found.shape[1] == len(columns(series, SO_FAR))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


def test_columns_have_names():
    series = random_series(0, channels=2, statics=1)
    assert columns(series)[:2] == ["channel0 last", "channel0 mean"]
    assert columns(series)[6:7] + columns(series)[-1:] == ["channel1 last", "static0"]
    first = table(series)[:, columns(series).index("channel1 missing")]
    assert first[0] == 1


def test_twelve_thousand_samples_take_seconds():
    series = random_series(0, samples=50, channels=12, longest=80)
    many = series.take(np.arange(12_000) % 50)
    begin = time.perf_counter()
    assert table(many).shape == (12_000, 12 * len(WHOLE) + 2)
    assert time.perf_counter() - begin < 10


def told_by_the_mean(seed: int, samples: int, per_step: bool = False) -> Series:
    """Three classes by the mean of channel 0, or by its last value; some labels are unknown."""
    series = random_series(seed, samples=samples, classes=3, per_step=per_step)
    rows, names = (running_table(series), columns(series, SO_FAR)) if per_step else (table(series), columns(series))
    score = np.nan_to_num(rows[:, names.index("channel0 last" if per_step else "channel0 mean")], nan=-2.0)
    labels = np.digitize(score, [-0.3, 0.3])
    labels[::11] = UNKNOWN
    return replace(series, labels=labels)


def judged(model, series: Series) -> float:
    known = series.labels != UNKNOWN
    probabilities = model.predict_proba(series)
    assert probabilities.shape == (len(series.labels), 3)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    return log_loss(series.labels[known], probabilities[known])


def test_the_majority_says_shares():
    train, test = told_by_the_mean(0, 100), told_by_the_mean(1, 10)
    found = Majority().fit(train, test).predict_proba(test)
    known = train.labels[train.labels != UNKNOWN]
    np.testing.assert_allclose(found, np.tile([(known == k).mean() for k in range(3)], (10, 1)))


def test_the_majority_of_time_stamps_is_said_at_each():
    train, test = told_by_the_mean(0, 20, per_step=True), told_by_the_mean(1, 10, per_step=True)
    assert Majority().fit(train, test).predict_proba(test).shape == (len(test.times), 3)


@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_more_than_shares(name, per_step):
    pytest.importorskip("sklearn")
    train, val, test = (told_by_the_mean(seed, size, per_step) for seed, size in enumerate((300, 100, 100)))
    learned = judged(LEARNERS[name]().fit(train, val), test)
    assert learned < 0.6 * judged(Majority().fit(train, val), test)


@pytest.mark.parametrize("name", LEARNERS)
def test_it_depends_on_training_and_validation_alone(name):
    pytest.importorskip("sklearn")
    train, val, test = (told_by_the_mean(seed, 120) for seed in range(3))
    model = LEARNERS[name]().fit(train, val)
    found = model.predict_proba(test)
    np.testing.assert_array_equal(LEARNERS[name]().fit(train, val).predict_proba(test), found)
    # Each sample by itself, whatever the others are; and labels are not looked at.
    few = test.take(range(5))
    np.testing.assert_allclose(model.predict_proba(few), found[:5], rtol=1e-12)
    np.testing.assert_array_equal(model.predict_proba(replace(test, labels=np.zeros_like(test.labels))), found)


@pytest.mark.parametrize("name", LEARNERS)
def test_labels_that_are_unknown_are_left_out(name):
    pytest.importorskip("sklearn")
    train, val, test = (told_by_the_mean(seed, 120) for seed in range(3))
    known = [part.take(np.flatnonzero(part.labels != UNKNOWN)) for part in (train, val)]
    if name == "logistic":  # its scale is of all training samples, with a label or without
        known[0] = train
    found = LEARNERS[name]().fit(*known).predict_proba(test)
    np.testing.assert_array_equal(LEARNERS[name]().fit(train, val).predict_proba(test), found)


@pytest.mark.parametrize("name", LEARNERS)
def test_classes_that_training_lacks_are_never_said(name):
    pytest.importorskip("sklearn")
    train, val, test = (told_by_the_mean(seed, 120) for seed in range(3))
    train = train.take(np.flatnonzero(train.labels != 1))
    found = LEARNERS[name]().fit(train, val).predict_proba(test)
    assert (found[:, 1] == 0).all()
    np.testing.assert_allclose(found.sum(1), 1)


def test_logistic_regression_takes_the_penalty_that_validates_best():
    pytest.importorskip("sklearn")
    train, val, _ = (told_by_the_mean(seed, 120) for seed in range(3))
    losses = {c: judged(Logistic(strengths=[c]).fit(train, val), val) for c in (0.0001, 0.1, 1000.0)}
    best = min(losses, key=losses.__getitem__)
    assert Logistic(strengths=list(losses)).fit(train, val).chosen == {"C": best}
    assert best == 0.1


def test_logistic_regression_bears_any_unit_and_columns_without_values():
    pytest.importorskip("sklearn")
    train, val, test = (told_by_the_mean(seed, 120) for seed in range(3))

    def changed(series: Series) -> Series:
        values = np.exp(5 * series.values)
        values[:, 2] = np.nan
        return replace(series, values=values, statics=np.full_like(series.statics, np.nan))

    model = Logistic().fit(changed(train), changed(val))
    assert judged(model, changed(test)) < 0.8 * judged(Majority().fit(train, val), test)
    assert np.isfinite(model.predict_proba(test)).all()  # values where there were none before


def test_trees_take_the_round_that_validates_best():
    pytest.importorskip("sklearn")
    train, val, _ = (told_by_the_mean(seed, 150) for seed in range(3))
    rng = np.random.default_rng(0)
    noisy = replace(train, labels=np.where(rng.random(150) < 0.4, rng.integers(3, size=150), train.labels))
    model = Trees(rounds=120).fit(noisy, val)
    assert 1 < model.chosen["max_iter"] < 120
    best = judged(model, val)
    for rounds in (model.chosen["max_iter"] - 1, model.chosen["max_iter"] + 1):
        other = Trees()
        other._model, other.chosen = model._model, {"max_iter": rounds}
        assert judged(other, val) >= best


@pytest.mark.parametrize("learner", [Majority, Logistic, Trees])
def test_nothing_is_said_before_something_is_learned(learner):
    with pytest.raises(ValueError, match="call fit first"):
        learner().predict_proba(random_series(0))


@pytest.mark.parametrize(("learner", "module"), [(Logistic, "sklearn.linear_model"), (Trees, "sklearn.ensemble")])
def test_without_scikit_learn_it_says_what_to_install(learner, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=r"pip install 'torchcram\[timeseries\]'"):
        learner().fit(random_series(0), random_series(1))
