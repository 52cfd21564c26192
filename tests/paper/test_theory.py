"""The theorems: calculators against their closed forms, and drawn routers and memories against the calculators."""

import math
from itertools import pairwise

import numpy as np
import pytest

from torchcram.paper import bounds, convergence, routers, theory
from torchcram.paper.routers import Queries

POSITIONS = 2_000_000


def rng():
    return np.random.default_rng(0)


def test_optimum_is_what_the_paper_prints():
    assert bounds.optimum(0.05, 0.7) == pytest.approx(0.015)


def test_the_appendix_proves_less_than_the_theorem_says():
    """f - ε is below (1 - ε) f, with the same ε, for every f below 1."""
    for error in (0.001, 0.01, 0.04):
        assert bounds.proved_bound(0.05, error) < bounds.printed_bound(0.05, error)


def test_the_bound_with_guesses():
    assert bounds.guessing_bound(0.05, 0.0, 64) == 0.05
    assert bounds.guessing_bound(0.05, 0.1, 2) == pytest.approx(0.04)
    assert bounds.guessing_bound(0.05, 0.5, 2) == 0.0  # guesses alone have that error
    assert bounds.guessing_bound(0.05, 0.9, 2) == 0.0
    assert bounds.guessing_bound(0.05, 0.1, 10**9) == pytest.approx(bounds.printed_bound(0.05, 0.1))
    with pytest.raises(ValueError, match="values = 1 is not possible"):
        bounds.guessing_bound(0.05, 0.1, 1)


@pytest.mark.parametrize("values", [2, 8, 64])
@pytest.mark.parametrize("read", [0.0, 0.4, 1.0])
def test_guessing_routers_are_at_their_bound_never_below(values, read):
    found = routers.guesser(Queries(values=values), POSITIONS, read, rng())
    assert found.accuracy == pytest.approx(read + (1 - read) / values, abs=0.006)
    assert found.reads == pytest.approx(bounds.guessing_bound(0.05, found.error, values), abs=0.0008)


def test_a_guessing_router_is_below_the_printed_bound():
    found = routers.guesser(Queries(values=2), POSITIONS, 0.5, rng())
    assert found.reads < 0.75 * bounds.printed_bound(0.05, found.error)


def test_deciding_by_pattern_is_no_better_than_by_chance():
    queries = Queries(values=2, recurring=1.0)
    found = routers.by_pattern(queries, POSITIONS, 40, rng())
    assert found.reads == pytest.approx(0.4 * 0.05, rel=0.02)
    assert found.reads == pytest.approx(bounds.guessing_bound(0.05, found.error, 2), abs=0.0015)


def test_knowing_the_table_by_heart_is_static_and_reads_the_optimum():
    found = routers.by_heart(Queries(), POSITIONS, rng())
    assert found.accuracy == 1.0
    assert found.reads == pytest.approx(bounds.optimum(0.05, 0.7), rel=0.03)
    assert found.reads < 0.5 * bounds.guessing_bound(0.05, found.error, 64)


def test_the_corollary_promises_nothing_at_the_papers_length():
    known = {"queries": 0.05, "unconsolidated": 0.3, "patterns": 100, "delta": 0.05}
    assert bounds.consolidated_bound(length=2048, **known) > 0.05
    enough = bounds.length_to_beat_static(**known)
    assert bounds.consolidated_bound(length=math.ceil(enough * 1.01), **known) < 0.05
    assert bounds.consolidated_bound(length=math.floor(enough * 0.99), **known) > 0.05
    assert bounds.length_to_beat_static(0.05, 1.0, 100, 0.05) == math.inf


def test_exact_gradients_converge_as_theorem_2_says():
    """For a convex squared error C = |w₀ - w*|²/2 is enough, at rates up to 1/L²."""
    for rate in (0.1, 0.5, 1.0):
        errors = convergence.squared_errors(2000, rate, sampled=False, misfit=0.1)
        assert convergence.least_constant(errors, rate, 0.1) <= 0.5
        assert errors[1000] <= bounds.consolidation_error(1000, rate, constant=0.5, floor=0.1)


def test_rates_beyond_the_limit_diverge():
    assert bounds.largest_rate(2.0) == 0.5
    # The mean input has second moments of 1/8 in each direction, so that exact gradients bear up to 16.
    below, above = (convergence.squared_errors(200, rate, sampled=False, misfit=0.0) for rate in (15.0, 17.0))
    assert below[-1] < below[0] < above[-1]
    # A single input of length 1 bears no more than 2 = 2/L².
    below, above = (convergence.squared_errors(200, rate, sampled=True, misfit=0.0) for rate in (1.8, 2.4))
    assert below[-1] < below[0] < above[-1]


def test_sampled_gradients_stop_at_a_floor_that_grows_with_the_rate():
    excess = [
        convergence.squared_errors(4000, rate, sampled=True, misfit=0.1, trials=256)[2000:].mean() - 0.1
        for rate in (0.1, 0.2, 0.4)
    ]
    assert all(1.7 < more / less < 2.7 for less, more in pairwise(excess))
    rate = 0.4
    errors = convergence.squared_errors(4000, rate, sampled=True, misfit=0.1, trials=256)
    assert convergence.least_constant(errors, rate, 0.1) > 3 * convergence.least_constant(errors[:1000], rate, 0.1)


def test_theorem_3_at_both_ends():
    assert bounds.attention_ratio(0.0, 0.0) == 1.0
    assert bounds.attention_ratio(1.0, 0.0) == 0.0
    assert bounds.reduction_steps(0.0, 0.1, 0.01, 0.05, 1.0) == -math.inf
    assert bounds.reduction_steps(0.05, 0.1, 0.01, 0.05, 1.0) == 0.0
    assert bounds.reduction_steps(0.5, 0.1, 0.01, 0.05, 2.0) == pytest.approx(2 * math.log(10) / 1e-4)


def test_attention_falls_to_what_does_not_recur():
    at = [convergence.attention_ratios(steps, 0.7, 100, 3) for steps in (0, 500, 100_000)]
    assert (at[0] == 1.0).all()
    assert 0.3 < at[1].mean() < 1.0
    assert at[2] == pytest.approx(0.3)


def test_steps_until_is_enough_and_not_much_more():
    steps = convergence.steps_until(0.4, 0.05, 0.7, 100, 2)

    def kept(count):
        return (convergence.attention_ratios(count, 0.7, 100, 2, seed=1, trials=2000) <= 0.4).mean()

    assert kept(round(1.1 * steps)) >= 0.95
    assert kept(round(0.9 * steps)) < 0.95
    assert convergence.steps_until(1.0, 0.05, 0.7, 100, 2) == 0
    with pytest.raises(ValueError, match=r"ratio = 0\.2 is not possible"):
        convergence.steps_until(0.2, 0.05, 0.7, 100, 2)


def test_rows_of_the_experiment():
    rows = list(theory.calculate("ci"))
    guessing = [row for row in rows if row["what"] == "static router that guesses"]
    assert any(row["below_printed"] for row in guessing)
    assert not any(row["below_guessing"] for row in guessing)
    (known,) = [row for row in rows if row["what"] == "static router that knows the table by heart"]
    assert known["below_guessing"]
    assert [row["holds"] for row in rows if row["what"] == "theorem 2"] == [True, True, True, False]
    assert {row["recurring"] for row in rows if row["what"] == "theorem 3"} == {n / 10 for n in range(11)}
    (edge,) = [row for row in rows if row["what"] == "theorem 3 where ρ = δ"]
    assert not edge["holds"]
