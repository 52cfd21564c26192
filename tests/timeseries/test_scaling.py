"""Scores of values go by rank among the training samples, and by nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from tests.timeseries.samples import random_series
from torchcram.timeseries.scaling import Scaling
from torchcram.timeseries.series import Series


def column(values, statics=None) -> Series:
    """One channel, a sample a value."""
    values = np.asarray(values, dtype=np.float32)
    count = len(values)
    return Series(
        ids=np.arange(count),
        groups=np.arange(count),
        offsets=np.arange(count + 1),
        times=np.zeros(count),
        values=values[:, None],
        channels=("channel",),
        statics=np.zeros((count, 1), np.float32) if statics is None else np.asarray(statics, np.float32)[:, None],
        static_names=("static",),
        labels=np.zeros(count, dtype=np.int64),
        classes=("a", "b"),
    )


def scored(train, values) -> np.ndarray:
    return Scaling.fit(column(train)).apply(column(values)).values[:, 0]


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_a_normal_distribution_at_the_same_rank(seed):
    rng = np.random.default_rng(seed)
    train = np.exp(3 * rng.normal(size=20_000))  # skewed, over many orders of magnitude
    at = [0.02, 0.1, 0.5, 0.9, 0.98]
    np.testing.assert_allclose(scored(train, np.quantile(train, at)), norm.ppf(at), atol=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_maps_are_monotone(seed):
    rng = np.random.default_rng(seed)
    train = np.round(rng.normal(size=500) * 3)
    asked = np.sort(rng.normal(size=400) * 5)
    assert (np.diff(scored(train, asked)) >= 0).all()
    inner = np.unique(train[np.abs(train) < 5])
    assert (np.diff(scored(train, inner)) > 0).all()


def test_missing_stays_missing_and_measured_stays_measured():
    train = random_series(0, samples=50, statics=3)
    found = Scaling.fit(train).apply(train)
    np.testing.assert_array_equal(np.isnan(found.values), np.isnan(train.values))
    np.testing.assert_array_equal(np.isnan(found.statics), np.isnan(train.statics))
    assert found.values.dtype == found.statics.dtype == np.float32
    assert found.times is train.times


def test_what_is_scaled_is_not_changed_in_place():
    train = random_series(0)
    before = train.values.copy()
    Scaling.fit(train).apply(train)
    np.testing.assert_array_equal(train.values, before)


def test_samples_that_are_scaled_together_do_not_touch_each_other():
    train, test = random_series(0, samples=50), random_series(1, samples=20)
    scaling = Scaling.fit(train)
    other = test.take(range(5))
    changed = replace(test, values=np.where(np.arange(len(test.times))[:, None] < other.offsets[-1], test.values, 1e6))
    rows = slice(0, int(other.offsets[-1]))
    np.testing.assert_array_equal(scaling.apply(changed).values[rows], scaling.apply(other).values)
    np.testing.assert_array_equal(scaling.apply(train).values, Scaling.fit(train).apply(train).values)


def test_equal_values_get_the_middle_of_their_ranks():
    train = np.repeat([1.0, 2.0, 3.0], [500, 300, 200])
    np.testing.assert_allclose(scored(train, [1, 2, 3]), norm.ppf([0.25, 0.65, 0.9]), atol=0.03)
    # A value that most have is far from none of the others, but these are told apart.
    rare = scored(np.repeat([0.0, 1.0], [997, 3]), [0, 1])
    assert abs(rare[0]) < 0.05
    assert rare[1] > 2


def test_values_between_those_of_training_are_scored_between():
    low, between, high = scored(np.repeat([1.0, 2.0], 500), [1.0, 1.5, 2.0])
    assert low < between < high


@pytest.mark.parametrize("value", [0.0, 7.0, -3.5])
def test_a_constant_channel_is_zero_whatever_comes(value):
    np.testing.assert_array_equal(scored(np.full(100, value), [value, value - 1, value + 1, 1e6]), 0)


def test_a_channel_that_was_never_measured_is_zero_when_it_is():
    found = scored(np.full(100, np.nan), [0.0, 5.0, -5.0, np.nan])
    np.testing.assert_array_equal(found, [0, 0, 0, np.nan])


def test_one_measurement_makes_a_constant_channel():
    np.testing.assert_array_equal(scored([np.nan, 4.0, np.nan], [4.0, 5.0]), 0)


def test_values_beyond_those_of_training_have_the_score_of_the_last():
    train = np.random.default_rng(0).normal(size=1000)
    low, least, most, high = scored(train, [-1e9, train.min(), train.max(), 1e9])
    assert low == least == pytest.approx(norm.ppf(0.01), abs=1e-6)
    assert high == most == pytest.approx(norm.ppf(0.99), abs=1e-6)


def test_statics_are_scaled_likewise():
    rng = np.random.default_rng(0)
    values = rng.exponential(size=500)
    found = Scaling.fit(column(values, values)).apply(column(values, values))
    np.testing.assert_array_equal(found.statics, found.values)


def test_units_do_not_matter():
    rng = np.random.default_rng(0)
    train, asked = rng.normal(size=500), rng.normal(size=50)
    fahrenheit = scored(train * 1.8 + 32, asked * 1.8 + 32)
    np.testing.assert_allclose(scored(train, asked), fahrenheit, atol=1e-4)


def test_it_can_be_saved(tmp_path):
    train, test = random_series(0, samples=50), random_series(1)
    scaling = Scaling.fit(train)
    np.savez(tmp_path / "scaling.npz", **scaling.arrays())
    with np.load(tmp_path / "scaling.npz") as arrays:
        again = Scaling.of(arrays)
    np.testing.assert_array_equal(again.apply(test).values, scaling.apply(test).values)
    np.testing.assert_array_equal(again.apply(test).statics, scaling.apply(test).statics)


def test_other_channels_are_refused():
    scaling = Scaling.fit(random_series(0))
    with pytest.raises(ValueError, match="values have 4 columns; expected 3"):
        scaling.apply(random_series(0, channels=4))
    with pytest.raises(ValueError, match="statics have 1 columns; expected 2"):
        scaling.apply(random_series(0, statics=1))
