"""How good predictions are: measures, intervals by resampling patients or people, and differences between models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from torchcram.resampling import resampled
from torchcram.timeseries.series import Array

Measure = Callable[[Array, Array], float]
"""Of labels [P] and probabilities [P, K]."""


def auroc(labels: Array, probabilities: Array) -> float:
    """Area under the ROC curve of the last class of two; for more, the mean over classes of each against the rest."""
    classes = range(probabilities.shape[1]) if probabilities.shape[1] > 2 else (1,)
    return float(np.mean([_area(labels == k, probabilities[:, k]) for k in classes if _both(labels == k)] or [np.nan]))


def auprc(labels: Array, probabilities: Array) -> float:
    """Average precision, likewise; chance is the share of the class."""
    classes = range(probabilities.shape[1]) if probabilities.shape[1] > 2 else (1,)
    found = [_precision(labels == k, probabilities[:, k]) for k in classes if _both(labels == k)]
    return float(np.mean(found or [np.nan]))


def balanced_accuracy(labels: Array, probabilities: Array) -> float:
    """Mean over the classes that occur of the share of theirs that is found."""
    right = probabilities.argmax(1) == labels
    return float(np.mean([right[labels == k].mean() for k in np.unique(labels)]))


def brier(labels: Array, probabilities: Array) -> float:
    """Mean squared difference between probabilities and what came true; for two classes, of the last alone."""
    true = labels[:, None] == np.arange(probabilities.shape[1])
    squared = (probabilities - true) ** 2
    return float(squared[:, 1].mean() if probabilities.shape[1] == 2 else squared.sum(1).mean())


def accuracy(labels: Array, probabilities: Array) -> float:
    """Share that is right."""
    return float((probabilities.argmax(1) == labels).mean())


def macro_f1(labels: Array, probabilities: Array) -> float:
    """Mean over the classes that occur, or are predicted, of the harmonic mean of precision and recall."""
    said, classes = probabilities.argmax(1), probabilities.shape[1]
    hits = np.bincount(labels[said == labels], minlength=classes)
    told = np.bincount(labels, minlength=classes) + np.bincount(said, minlength=classes)
    return float(np.mean(2 * hits[told > 0] / told[told > 0]))


def log_loss(labels: Array, probabilities: Array, weights: Array | None = None) -> float:
    """Mean negative log-likelihood, in nats; weights: what a label of each class counts."""
    given = np.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0]
    return float(-np.average(np.log(np.clip(given, 1e-12, 1)), weights=None if weights is None else weights[labels]))


CLASSIFYING: Mapping[str, Measure] = {
    "auroc": auroc,
    "auprc": auprc,
    "balanced_accuracy": balanced_accuracy,
    "brier": brier,
    "accuracy": accuracy,
}
"""Of one label a sample."""

LABELLING: Mapping[str, Measure] = {"accuracy": accuracy, "macro_f1": macro_f1}
"""Of one label a time stamp."""


@dataclass(frozen=True)
class Interval:
    """95 % of what resampling gives."""

    low: float
    high: float

    def without(self, value: float) -> bool:
        """Whether it is all above the value, or all below; not if it could not be told."""
        return self.low > value or self.high < value


def interval(
    measure: Measure, labels: Array, probabilities: Array, groups: Array, *, draws: int = 1000, seed: int = 0
) -> Interval:
    """Of a measure, when groups (patients, people) are drawn with replacement."""
    found = [measure(labels[rows], probabilities[rows]) for rows in resampled(groups, draws, seed)]
    return Interval(*map(float, np.nanquantile(found, [0.025, 0.975])))


def difference(
    measure: Measure,
    labels: Array,
    ours: Array,
    theirs: Array,
    groups: Array,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """Of what a measure differs by between two models on the same samples, drawn together."""
    found = [
        measure(labels[rows], ours[rows]) - measure(labels[rows], theirs[rows])
        for rows in resampled(groups, draws, seed)
    ]
    return Interval(*map(float, np.nanquantile(found, [0.025, 0.975])))


def _both(is_class: Array) -> bool:
    return bool(is_class.any() and not is_class.all())


def _area(is_class: Array, score: Array) -> float:
    ranks = rankdata(score)
    positive = int(is_class.sum())
    negative = len(is_class) - positive
    return float((ranks[is_class].sum() - positive * (positive + 1) / 2) / (positive * negative))


def _precision(is_class: Array, score: Array) -> float:
    order = np.argsort(-score, kind="stable")
    hits, sorted_score = np.cumsum(is_class[order]), score[order]
    # Equal scores are taken together: a threshold cannot tell them apart.
    last = np.append(np.nonzero(np.diff(sorted_score))[0], len(score) - 1)
    found = hits[last]
    return float((np.diff(found, prepend=0) * found / (last + 1)).sum() / found[-1])
