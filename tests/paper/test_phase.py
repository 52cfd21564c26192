"""The coupled equations and the fits of a falling curve, against answers known beforehand."""

import math

import numpy as np
import pytest

from torchcram.paper import phase
from torchcram.paper.claims import CLAIMS, CURVES
from torchcram.paper.dynamics import System, simulate, stability
from torchcram.paper.transition import FITS, change_point, intervals, sigmoid

SYSTEMS = [System(), System(threshold=0.6, quality_rate=0.02, routing_rate=0.003)]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_the_only_fixed_point_is_a_saddle_at_p_0(system):
    q, p = system.fixed_point
    assert system.flow(q, p) == (0.0, 0.0)
    assert stability(system.jacobian(q, p)) == "saddle"
    growth = np.linalg.eigvals(system.jacobian(q, p)).real.max()
    assert growth == pytest.approx(1 / system.time_scale)
    assert system.flow(1.0, 1.0)[1] > 0  # so that (1, 1), which the paper calls stable, is not at rest


def test_the_jacobian_is_that_of_the_flow():
    system, q, p, tiny = SYSTEMS[1], 0.4, 0.3, 1e-6
    columns = [np.subtract(system.flow(q + a, p + b), system.flow(q - a, p - b)) for a, b in ((tiny, 0), (0, tiny))]
    assert system.jacobian(q, p) == pytest.approx(np.stack(columns, 1) / (2 * tiny), abs=1e-7)


def test_kinds_of_fixed_points():
    assert stability(np.diag([-1.0, -2.0])) == "stable"
    assert stability(np.diag([1.0, 2.0])) == "unstable"
    assert stability(np.diag([1.0, -2.0])) == "saddle"
    assert stability(np.array([[0.0, 1.0], [-1.0, 0.0]])) == "undecided"


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_something_is_conserved(system):
    times = np.linspace(0, 2 * system.time_scale, 50)
    q, p = simulate(system, 0.3, 1.5 * system.separatrix(0.3), times, held=False)
    kept = [system.conserved(*state) for state in zip(q, p, strict=True)]
    assert np.ptp(q) > 0.1
    assert kept == pytest.approx([kept[0]] * len(kept), abs=1e-6)


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
@pytest.mark.parametrize("held", [False, True])
def test_the_separatrix_parts_trajectories(system, held):
    start = system.threshold - 0.2
    edge = system.separatrix(start)
    times = np.linspace(0, 20 * system.time_scale, 400)
    below, above = (simulate(system, start, factor * edge, times, held=held)[0] for factor in (0.99, 1.01))
    assert np.nanmax(below) < system.threshold
    # With p held at 1, q goes to 1 in its own time.
    assert above[-1] > system.threshold
    assert 1 - above[-1] < 0.5 * (1 - system.threshold)


def test_as_printed_nothing_keeps_the_probability_within_bounds():
    system, times = System(), np.linspace(0, 30, 300)
    q, p = simulate(system, 0.62, 1.1 * system.separatrix(0.62), times, held=False)
    assert p.max() > 1
    q, p = simulate(system, 0.62, 0.9 * system.separatrix(0.62), times, held=False)
    assert np.isnan(q[-1])
    assert np.nanmin(p) < 0


def test_held_it_rests_at_p_0_wherever_it_gets_there():
    system, times = System(), np.linspace(0, 200, 300)
    for start in (0.1, 0.5, 0.8):
        q, p = simulate(system, start, 0.0, times, held=True)
        assert (q == start).all()
        assert (p == 0).all()


def test_held_it_follows_the_exponential_at_p_1():
    system = System(quality_rate=0.1)
    times = np.linspace(0, 30, 50)
    q, p = simulate(system, 0.9, 1.0, times, held=True)
    assert (p == 1).all()
    assert q == pytest.approx(1 - 0.1 * np.exp(-0.1 * times), abs=1e-8)


def test_impossible_systems_are_refused():
    with pytest.raises(ValueError, match=r"threshold = 1\.0 is not possible"):
        System(threshold=1.0)
    with pytest.raises(ValueError, match="rates must be above 0"):
        System(quality_rate=0.0)
    with pytest.raises(ValueError, match=r"p = 1\.2 is not possible"):
        simulate(System(), 0.5, 1.2, np.linspace(0, 1, 5), held=True)


STEPS = np.arange(0.0, 4000.0, 50.0)


def fall(centre, duration, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    width = duration / (2 * math.log(9))
    return 0.02 + 0.9 / (1 + np.exp((STEPS - centre) / width)) + noise * rng.standard_normal(len(STEPS))


def test_a_step_is_found_exactly():
    found = change_point(STEPS, np.where(STEPS < 1975, 0.8, 0.1))
    assert found.centre == 1975
    assert (found.before, found.after) == (pytest.approx(0.8), pytest.approx(0.1))
    assert found.squares == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("centre", "duration"), [(1000, 300), (2210, 1500), (3200, 120)])
def test_a_sigmoid_is_found(centre, duration):
    found = sigmoid(STEPS, fall(centre, duration))
    assert found.centre == pytest.approx(centre, abs=2)
    assert found.duration == pytest.approx(duration, rel=0.02)
    assert found.at(STEPS) == pytest.approx(fall(centre, duration), abs=1e-4)


def test_the_better_law_is_preferred():
    sudden, slow = np.where(STEPS < 1975, 0.8, 0.1), fall(2000, 1500)
    noise = 0.02 * np.random.default_rng(0).standard_normal(len(STEPS))
    assert change_point(STEPS, sudden + noise).aic < sigmoid(STEPS, sudden + noise).aic
    assert change_point(STEPS, slow + noise).aic > sigmoid(STEPS, slow + noise).aic


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for seed in range(20):
        low, high = intervals("sigmoid", STEPS, fall(2000, 800, noise=0.05, seed=seed), draws=60, seed=seed)["centre"]
        covered += low <= 2000 <= high
    assert covered >= 15


def test_intervals_over_seeds_are_as_wide_as_seeds_differ():
    centres = (1500, 1700, 1900, 2100, 2300)
    low, high = intervals("change-point", STEPS, np.stack([fall(c, 100) for c in centres]), draws=200)["centre"]
    assert 1400 < low < 1850
    assert 1950 < high < 2400


def test_the_mean_of_sudden_falls_looks_slow():
    """Why each seed's own curve must be fitted, too."""
    curves = np.stack([fall(centre, 100) for centre in range(1000, 3001, 200)])
    assert sigmoid(STEPS, curves[0]).duration < 150
    assert sigmoid(STEPS, curves.mean(0)).duration > 1000


@pytest.mark.parametrize("fit", FITS.values())
def test_curves_that_cannot_be_fitted_are_refused(fit):
    with pytest.raises(ValueError, match="5 or more"):
        fit(STEPS[:4], STEPS[:4])
    with pytest.raises(ValueError, match="steps must rise"):
        fit(STEPS[::-1], STEPS)


def test_a_curve_that_does_not_fall_can_be_fitted():
    for fit in FITS.values():
        found = fit(STEPS, np.full(len(STEPS), 0.5))
        assert found.before == pytest.approx(0.5)
        assert found.after == pytest.approx(0.5)


@pytest.fixture(scope="module")
def rows():
    return list(phase.calculate("ci"))


def test_rows_name_claims(rows):
    assert {row["claim"] for row in rows} <= set(CLAIMS) | set(CURVES)


def test_the_text_is_right_about_the_saddle_and_wrong_about_the_attractor(rows):
    found = {(row["q"], row["p"]): row["measured"] for row in rows if row["what"] == "fixed point"}
    assert found == {(0.83, 0.0): "saddle", (1.0, 1.0): "not a fixed point"}


def test_the_plotted_quality_needs_what_the_equations_forbid(rows):
    (row,) = [row for row in rows if row["claim"] == "phase/routing-dynamics"]
    assert row["times_more"] > 2
    assert not row["falls"]
    (fit,) = [row for row in rows if row["claim"] == "phase/quality-dynamics"]
    assert fit["rmse"] > 0.05  # of a curve that goes from 0.62 to 1.00


def test_the_two_figures_disagree(rows):
    falls = {row["what"]: row for row in rows if row["claim"] == "phase/fall"}
    first, second = falls["fall in Figure 2, left"], falls["fall in Figure 3, A"]
    assert (round(first["measured"], 1), round(second["measured"], 1)) == (23.6, 16.7)
    assert first["below_opt"]
    assert second["below_opt"]
    slow, sudden = (row for row in rows if str(row["what"]).startswith("sigmoid in"))
    assert slow["duration_low"] > 4 * sudden["duration_high"]
    assert slow["high"] < 3000 < sudden["low"]
