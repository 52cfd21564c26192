"""What the paper's theorems say, as calculators: the optimum of SRCD and the bounds of theorems 1 to 3.

f is the share of positions that query, ρ the share of queries whose answer recurs, ε an error, V the number of values
an answer can have, n the positions of a sequence. Reads are shares of positions, in expectation.
"""

from __future__ import annotations

import math


def optimum(queries: float, recurring: float) -> float:
    """OPT (eq. 13): reads of a model that knows what recurs by heart, f (1 - ρ)."""
    return queries * (1 - recurring)


def printed_bound(queries: float, error: float) -> float:
    """Theorem 1 as printed: (1 - ε) f. It takes every query that does not read to be answered wrongly."""
    return (1 - error) * queries


def proved_bound(queries: float, error: float) -> float:
    """What appendix B derives before its last sentence (eq. 17): f - ε, the error a share of all positions."""
    return max(0.0, queries - error)


def guessing_bound(queries: float, error: float, values: int) -> float:
    """Theorem 1 with guesses: (1 - ε V/(V-1)) f, the error a share of queries.

    A query that does not read is guessed right once in V. The bound holds for routers that have nothing but the read to
    tell an answer by: neither weights that know the table, nor a state that carries the binding.
    """
    if values < 2:
        raise ValueError(f"values = {values} is not possible; allowed: 2 or more, or there is nothing to guess")
    return max(0.0, 1 - error * values / (values - 1)) * queries


def consolidated_bound(
    queries: float, unconsolidated: float, length: int, patterns: int, delta: float, constant: float = 1.0
) -> float:
    """Corollary 1 as a share of positions: ε_cons f + c √(n log(K/δ)) / n. The paper does not say what c is."""
    return unconsolidated * queries + constant * math.sqrt(math.log(patterns / delta) / length)


def length_to_beat_static(
    queries: float, unconsolidated: float, patterns: int, delta: float, constant: float = 1.0
) -> float:
    """Positions from which on corollary 1 promises fewer reads than a static router without errors makes, f n."""
    gain = (1 - unconsolidated) * queries
    return constant**2 * math.log(patterns / delta) / gain**2 if gain > 0 else math.inf


def largest_rate(lipschitz: float) -> float:
    """Theorem 2: learning rates must be below 2/L²."""
    return 2 / lipschitz**2


def consolidation_error(steps: int, rate: float, constant: float, floor: float = 0.0) -> float:
    """Theorem 2 (eq. 11): squared error of semantic memory after T updates, at most ε_approx² + C/(T η).

    floor: ε_approx², the least squared error that the architecture can have.
    """
    return floor + constant / (steps * rate)


def attention_ratio(recurring: float, error: float) -> float:
    """Theorem 3 (eq. 12): attention at step T ÷ at step 0, at most 1 - ρ + ε."""
    return 1 - recurring + error


def reduction_steps(recurring: float, error: float, least_frequency: float, delta: float, constant: float) -> float:
    """Theorem 3: steps after which its bound holds, C/(ε² f_min) · log(ρ/δ). Below 0 where ρ < δ."""
    if recurring <= 0:
        return -math.inf
    return constant / (error**2 * least_frequency) * math.log(recurring / delta)
