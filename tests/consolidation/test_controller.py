"""The quality controller: back off when the tolerance is broken, press on when it is kept."""

import math

import pytest

from torchcram.consolidation import QualityController


def watch(controller: QualityController, routed: float, dense: float, times: int = 1) -> float:
    for _ in range(times):
        controller.observe({"value": routed}, {"value": dense})
    return controller.pressure


def test_full_pressure_while_the_tolerance_is_kept():
    assert watch(QualityController(tolerance=0.01), 0.101, 0.1, times=10) == 1.0


def test_pressure_falls_while_it_is_broken_and_comes_back():
    controller = QualityController(tolerance=0.01)
    low = watch(controller, 0.5, 0.1, times=5)
    assert low == pytest.approx(0.5**5)
    assert watch(controller, 0.1, 0.1, times=30) == 1.0
    assert watch(controller, 9.0, 0.1, times=100) == pytest.approx(1e-3)


def test_only_what_lasts_counts():
    controller = QualityController(tolerance=0.01)
    watch(controller, 0.1, 0.1, times=3)
    assert watch(controller, 5.0, 0.1, times=2) == 1.0
    assert watch(controller, 5.0, 0.1) == 0.5
    assert watch(controller, 0.1, 0.1) == 0.75


def test_a_decaying_dense_path_does_not_lower_the_bar():
    controller = QualityController(tolerance=0.01, at_release={"value": 0.1})
    assert watch(controller, 0.5, 0.5, times=3) < 0.2
    fair = QualityController(tolerance=0.01)
    assert watch(fair, 0.5, 0.5, times=3) == 1.0


def test_the_worst_head_decides():
    controller = QualityController(tolerance=0.01)
    for _ in range(3):
        controller.observe({"a": 0.1, "b": 0.9}, {"a": 0.1, "b": 0.1})
    assert controller.excess == pytest.approx(0.8)
    assert controller.pressure < 0.2


def test_a_loss_that_is_not_finite_is_the_worst_of_all():
    controller = QualityController(tolerance=0.01)
    assert watch(controller, math.nan, 0.1, times=3) == pytest.approx(0.5**3)


def test_no_head_hides_anothers_nan():
    controller = QualityController(tolerance=0.01)
    for _ in range(2):
        controller.observe({"value": 0.1, "dynamics": math.nan}, {"value": 0.1, "dynamics": 0.5})
    assert controller.excess == math.inf
    assert controller.pressure == pytest.approx(0.25)
