"""Measures agree with scikit-learn's; intervals come of resampling groups."""

import math

import numpy as np
import pytest

from torchcram.timeseries import metrics


def predictions(seed: int, classes: int, size: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Labels that have something to do with probabilities, many of which are equal."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=size)
    labels[:classes] = np.arange(classes)
    scores = rng.integers(1, 8, size=(size, classes)) + 3.0 * (labels[:, None] == np.arange(classes))
    return labels, scores / scores.sum(1, keepdims=True)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_measures_are_those_of_scikit_learn(seed, classes):
    theirs = pytest.importorskip("sklearn.metrics")
    labels, probabilities = predictions(seed, classes)
    said = probabilities.argmax(1)
    score = probabilities[:, 1] if classes == 2 else probabilities
    each = np.eye(classes, dtype=int)[labels]
    precision = [theirs.average_precision_score(each[:, k], probabilities[:, k]) for k in range(classes)]
    squared = [theirs.brier_score_loss(each[:, k], probabilities[:, k]) for k in range(classes)]
    expected = {
        "auroc": theirs.roc_auc_score(labels, score, multi_class="ovr"),
        "auprc": precision[1] if classes == 2 else np.mean(precision),
        "balanced_accuracy": theirs.balanced_accuracy_score(labels, said),
        "brier": squared[1] if classes == 2 else sum(squared),
        "accuracy": theirs.accuracy_score(labels, said),
        "macro_f1": theirs.f1_score(labels, said, average="macro"),
        "log_loss": theirs.log_loss(labels, probabilities),
    }
    for name, value in expected.items():
        assert getattr(metrics, name)(labels, probabilities) == pytest.approx(value, abs=1e-12), name


def test_classes_that_do_not_occur_count_only_where_they_are_said():
    labels = np.array([0, 0, 2, 2])
    probabilities = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.3, 0.1, 0.6]])
    assert metrics.auroc(labels, probabilities) == pytest.approx((0.75 + 1.0) / 2)
    assert metrics.balanced_accuracy(labels, probabilities) == pytest.approx((0.5 + 1.0) / 2)
    assert metrics.macro_f1(labels, probabilities) == pytest.approx((2 / 3 + 0.0 + 1.0) / 3)


def test_where_there_is_one_class_only_ranks_tell_nothing():
    labels, probabilities = np.zeros(4, dtype=int), np.full((4, 2), 0.5)
    assert math.isnan(metrics.auroc(labels, probabilities))
    assert math.isnan(metrics.auprc(labels, probabilities))


def test_certainty_that_was_wrong_costs_much_but_not_everything():
    loss = metrics.log_loss(np.array([1]), np.array([[1.0, 0.0]]))
    assert loss == pytest.approx(-math.log(1e-12))


def test_an_interval_holds_chance_if_scores_are_random_and_not_if_they_are_right():
    rng = np.random.default_rng(0)
    labels, chance = rng.integers(2, size=400), rng.random(400)
    groups = np.arange(400)
    random = metrics.interval(metrics.auroc, labels, np.stack([1 - chance, chance], 1), groups, draws=200)
    assert not random.without(0.5)
    assert 0.05 < random.high - random.low < 0.2  # 4 · 0.29 / √400 = 0.11
    sure = np.where(np.arange(2) == labels[:, None], 0.9, 0.1)
    perfect = metrics.interval(metrics.auroc, labels, sure, groups, draws=200)
    assert perfect == metrics.Interval(1.0, 1.0)
    assert perfect.without(0.5)


def test_95_of_100_intervals_hold_the_truth():
    held = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        right = rng.random(150) < 0.7
        probabilities = np.where(right[:, None], [0.0, 1.0], [1.0, 0.0])
        labels = np.ones(150, dtype=int)
        found = metrics.interval(metrics.accuracy, labels, probabilities, np.arange(150), draws=200, seed=seed)
        held += not found.without(0.7)
    assert 88 <= held <= 99


def test_a_group_is_drawn_as_a_whole():
    # Labels of a group are all right or all wrong: by group there are 20 of them, however many rows these have.
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(20), 30))
    labels = np.zeros(600, dtype=int)
    probabilities = np.where((groups % 2 == 0)[:, None], [0.9, 0.1], [0.1, 0.9])
    together = metrics.interval(metrics.accuracy, labels, probabilities, groups)
    apart = metrics.interval(metrics.accuracy, labels, probabilities, np.arange(600))
    assert apart.high - apart.low < 0.1
    assert 0.35 < together.high - together.low < 0.55  # 4 · 0.5 / √20 = 0.45

    seen = []

    def keep(labels, probabilities):
        seen.append(labels)
        return 0.0

    uneven = np.array(["b", "a", "b", "c", "c", "c"])
    metrics.interval(keep, np.arange(6), np.zeros((6, 2)), uneven, draws=50)
    members = [{1}, {0, 2}, {3, 4, 5}]
    for drawn in seen:
        count = np.bincount(drawn, minlength=6)
        assert all(len({int(count[row]) for row in rows}) == 1 for rows in members)
        assert sum(int(count[min(rows)]) for rows in members) == 3
    assert len({tuple(drawn) for drawn in seen}) > 5


def test_groups_may_have_names_and_one_row_each():
    labels, probabilities = predictions(0, 2, 50)
    names = np.array([f"patient {number:02}" for number in range(50)])
    by_number = metrics.interval(metrics.auroc, labels, probabilities, np.arange(50), draws=50)
    assert metrics.interval(metrics.auroc, labels, probabilities, names, draws=50) == by_number


def test_a_model_does_not_differ_from_itself_and_differs_from_a_worse_one():
    labels, ours = predictions(0, 3)
    theirs = np.full_like(ours, 1 / 3)
    groups = np.arange(len(labels)) // 3
    for measure in metrics.CLASSIFYING.values():
        assert metrics.difference(measure, labels, ours, ours, groups, draws=50) == metrics.Interval(0.0, 0.0)
    better = metrics.difference(metrics.auroc, labels, ours, theirs, groups, draws=200)
    worse = metrics.difference(metrics.auroc, labels, theirs, ours, groups, draws=200)
    assert better.low > 0
    assert (worse.low, worse.high) == pytest.approx((-better.high, -better.low))


def test_models_are_compared_on_the_same_draws():
    labels, ours = predictions(0, 2)
    # A model that is much the same has the same luck: drawn apart, the two would differ by more than either varies.
    theirs = ours.copy()
    theirs[:3] = theirs[:3, ::-1]
    groups = np.arange(len(labels))
    apart = metrics.interval(metrics.auroc, labels, ours, groups, draws=200)
    paired = metrics.difference(metrics.auroc, labels, ours, theirs, groups, draws=200)
    assert paired.high - paired.low < 0.9 * (apart.high - apart.low)


def test_draws_depend_on_the_seed_alone():
    labels, probabilities = predictions(0, 2)
    groups = np.arange(len(labels)) // 2

    def found(seed):
        return metrics.interval(metrics.auroc, labels, probabilities, groups, draws=50, seed=seed)

    assert found(1) == found(1)
    assert found(1) != found(2)


def test_draws_without_a_measure_are_left_out():
    labels = np.array([0, 0, 0, 1])
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.1, 0.9]])
    found = metrics.interval(metrics.auroc, labels, probabilities, np.arange(4), draws=100)
    assert found == metrics.Interval(1.0, 1.0)
