"""Learners that see no order: each sample, or each time stamp, as one row of a table of summaries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from itertools import islice
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from torchcram.timeseries.metrics import log_loss
from torchcram.timeseries.scaling import Scaling
from torchcram.timeseries.series import UNKNOWN, Array, Series

WHOLE = ("last", "mean", "min", "max", "count", "missing")
"""Of each channel, in `table`."""

SO_FAR = ("last", "age", "mean", "min", "max", "count", "missing")
"""Of each channel, in `running_table`."""

_Part = TypeVar("_Part")


def table(series: Series) -> Array:
    """[S, C · len(WHOLE) + F] float32: summaries of each channel, then statics.

    NaN where nothing was measured; `count` is then 0 and `missing` 1.
    """
    found = np.empty((len(series), len(series.channels), len(WHOLE)), dtype=np.float32)
    begin = series.offsets[:-1]
    for number in range(len(series.channels)):
        column = np.asarray(series.values[:, number], dtype=np.float64)
        measured = ~np.isnan(column)
        count = np.add.reduceat(measured, begin, dtype=np.int64)
        last = np.maximum.reduceat(np.where(measured, np.arange(len(column)), 0), begin)
        total = np.add.reduceat(np.where(measured, column, 0), begin)
        features = {
            "last": np.where(count > 0, column[last], np.nan),
            "mean": np.where(count > 0, total / np.maximum(count, 1), np.nan),
            "min": np.fmin.reduceat(column, begin),
            "max": np.fmax.reduceat(column, begin),
            "count": count,
            "missing": count == 0,
        }
        for place, name in enumerate(WHOLE):
            found[:, number, place] = features[name]
    return np.concatenate([found.reshape(len(series), -1), series.statics], axis=1, dtype=np.float32)


def running_table(series: Series) -> Array:
    """[T, C · len(SO_FAR) + F] float32: at each time stamp, summaries of each channel up to it, then statics.

    `age` is the time since the last value. NaN where nothing was measured yet; `count` is then 0 and `missing` 1.
    """
    found = np.empty((len(series.times), len(series.channels), len(SO_FAR)), dtype=np.float32)
    for sample, (times, values) in enumerate(series):
        measured = ~np.isnan(values)
        count = measured.cumsum(0)
        last = np.maximum.accumulate(np.where(measured, np.arange(len(times))[:, None], 0))
        features = {
            "last": np.take_along_axis(values, last, axis=0),
            "age": np.where(count > 0, times[:, None] - times[last], np.nan),
            "mean": np.where(count > 0, np.nancumsum(values, axis=0, dtype=np.float64) / np.maximum(count, 1), np.nan),
            "min": np.fmin.accumulate(values),
            "max": np.fmax.accumulate(values),
            "count": count,
            "missing": count == 0,
        }
        for place, name in enumerate(SO_FAR):
            found[series.rows(sample), :, place] = features[name]
    statics = np.repeat(series.statics, series.lengths, axis=0)
    return np.concatenate([found.reshape(len(found), -1), statics], axis=1, dtype=np.float32)


def columns(series: Series, features: Sequence[str] = WHOLE) -> list[str]:
    """Names of the columns of `table`; with `SO_FAR`, of `running_table`."""
    return [f"{channel} {name}" for channel in series.channels for name in features] + list(series.static_names)


class Majority:
    """Says the shares of the classes among the training labels, whatever it sees."""

    def __init__(self) -> None:
        self.shares: Array | None = None

    def fit(self, train: Series, val: Series) -> Majority:
        """From the training labels alone; there is nothing to choose by validation."""
        labels = train.labels[train.labels != UNKNOWN]
        self.shares = np.bincount(labels, minlength=len(train.classes)) / len(labels)
        return self

    def predict_proba(self, series: Series) -> Array:
        """[S, K], or [T, K] for a label a time stamp."""
        return np.tile(_fitted(self.shares), (len(series.labels), 1))


class Logistic:
    """Logistic regression on the table of values scaled by rank; strength of the penalty chosen by validation.

    What is missing becomes the median of the training samples, beside a flag.
    """

    def __init__(self, *, seed: int = 0, strengths: Sequence[float] = (0.001, 0.01, 0.1, 1.0)) -> None:
        """`strengths` are values of scikit-learn's C: the smaller, the stronger the penalty."""
        self.seed = seed
        self.strengths = tuple(strengths)
        self.chosen: dict[str, float] = {}
        """What validation chose."""
        self._model: Any = None
        self._inputs: Callable[[Series], Array] | None = None

    def fit(self, train: Series, val: Series) -> Logistic:
        """The penalty with the least log loss on the validation samples."""
        linear = _scikit("linear_model")
        self._inputs = _standardised(train)
        inputs, labels = _labelled(train, self._inputs(train))
        judged, truth = _labelled(val, self._inputs(val))
        best = np.inf
        for strength in self.strengths:
            model = linear.LogisticRegression(C=strength, max_iter=2000, random_state=self.seed).fit(inputs, labels)
            loss = log_loss(truth, _spread(model.predict_proba(judged), model.classes_, len(train.classes)))
            if loss < best:
                best, self._model, self.chosen = loss, model, {"C": strength}
        return self

    def predict_proba(self, series: Series) -> Array:
        """[S, K], or [T, K] for a label a time stamp."""
        model, inputs = _fitted(self._model), _fitted(self._inputs)
        return _spread(model.predict_proba(inputs(series)), model.classes_, len(series.classes))


class _Shape(NamedTuple):
    """Of the trees: what stops them from growing."""

    max_leaf_nodes: int
    min_samples_leaf: int
    l2_regularization: float


_SHAPES = (_Shape(31, 20, 0.0), _Shape(31, 100, 1.0), _Shape(8, 20, 1.0), _Shape(8, 100, 10.0))


class Trees:
    """Gradient boosted trees on the table; their shape and number chosen by validation."""

    def __init__(self, *, seed: int = 0, rounds: int = 300) -> None:
        """At most `rounds` rounds, each of a tree a class."""
        self.seed = seed
        self.rounds = rounds
        self.chosen: dict[str, float] = {}
        """What validation chose."""
        self._model: Any = None

    def fit(self, train: Series, val: Series) -> Trees:
        """The shape and number of rounds with the least log loss on the validation samples."""
        ensemble = _scikit("ensemble")
        inputs, labels = _labelled(train, _rows(train))
        judged, truth = _labelled(val, _rows(val))
        best = np.inf
        for shape in _SHAPES:
            model = ensemble.HistGradientBoostingClassifier(
                learning_rate=0.05,
                max_iter=self.rounds,
                early_stopping=False,
                random_state=self.seed,
                **shape._asdict(),
            ).fit(inputs, labels)
            losses = [
                log_loss(truth, _spread(said, model.classes_, len(train.classes)))
                for said in model.staged_predict_proba(judged)
            ]
            if min(losses) < best:
                best, self._model = min(losses), model
                self.chosen = {"max_iter": 1 + int(np.argmin(losses)), **shape._asdict()}
        return self

    def predict_proba(self, series: Series) -> Array:
        """[S, K], or [T, K] for a label a time stamp."""
        model = _fitted(self._model)
        stages = model.staged_predict_proba(_rows(series))
        said = next(islice(stages, int(self.chosen["max_iter"]) - 1, None))
        return _spread(said, model.classes_, len(series.classes))


def _rows(series: Series) -> Array:
    """The table with a row for each label."""
    return running_table(series) if series.per_step else table(series)


def _labelled(series: Series, inputs: Array) -> tuple[Array, Array]:
    """Rows with a label, and these."""
    known = series.labels != UNKNOWN
    return inputs[known], series.labels[known]


def _standardised(train: Series) -> Callable[[Series], Array]:
    """The table without NaN, each column with mean 0 and variance 1 on the training samples."""
    scaling = Scaling.fit(train)
    statics = len(train.static_names)

    def flagged(series: Series) -> Array:
        rows = _rows(scaling.apply(series)).astype(np.float64)
        return np.concatenate([rows, np.isnan(rows[:, rows.shape[1] - statics :])], axis=1)

    rows = flagged(train)
    median = np.array([np.median(known) if len(known := column[~np.isnan(column)]) else 0.0 for column in rows.T])
    rows = np.where(np.isnan(rows), median, rows)
    mean, deviation = rows.mean(0), rows.std(0)
    deviation[deviation == 0] = 1

    def standardised(series: Series) -> Array:
        rows = flagged(series)
        scaled: Array = (np.where(np.isnan(rows), median, rows) - mean) / deviation
        return scaled

    return standardised


def _spread(said: Array, classes: Array, size: int) -> Array:
    """[P, K] of probabilities of the classes that occur in training; the others have 0."""
    found = np.zeros((len(said), size))
    found[:, classes] = said
    return found


def _fitted(part: _Part | None) -> _Part:
    if part is None:
        raise ValueError("nothing was learned yet; call fit first")
    return part


def _scikit(module: str) -> ModuleType:
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise ValueError("this needs scikit-learn; pip install 'torchcram[timeseries]'") from error
