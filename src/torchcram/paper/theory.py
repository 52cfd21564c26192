"""The theorems, calculated and tried out: OPT, the static bound, the corollary, convergence, and attention saved."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchcram.paper import bounds, convergence, routers
from torchcram.paper.claims import CLAIMS
from torchcram.paper.routers import Outcome, Queries
from torchcram.paper.setup import Scale
from torchcram.results import Row

SRCD = Queries(
    share=CLAIMS["srcd/query-share"].value,
    recurring=CLAIMS["srcd/recurring-share"].value,
    patterns=int(CLAIMS["srcd/patterns"].value),
    values=64,
)
_ERRORS = (0.0, 0.01, 0.1, 0.3)
_DELTA = 0.05


def calculate(scale: Scale) -> Iterator[Row]:
    """Bounds of theorems 1 to 3, and drawn routers and memories to hold against them."""
    positions = 4_000_000 if scale == "ci" else 100_000_000
    yield {
        "what": "optimum",
        "claim": "theory/opt",
        "printed": CLAIMS["theory/opt"].value,
        "measured": bounds.optimum(SRCD.share, SRCD.recurring),
    }
    yield from _static(positions)
    yield from _corollary()
    yield from _convergence(4096 if scale == "ci" else 65_536)
    yield from _reduction(256 if scale == "ci" else 4096)


def _static(positions: int) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    for values in (2, 4, 16, 64):
        for error in _ERRORS:
            least = bounds.guessing_bound(SRCD.share, error, values)
            queries = Queries(share=SRCD.share, recurring=SRCD.recurring, patterns=SRCD.patterns, values=values)
            found = routers.guesser(queries, positions, least / SRCD.share, rng)
            yield {"what": "static router that guesses", **against(found, queries, error, positions)}
    alike = Queries(share=SRCD.share, recurring=1.0, patterns=SRCD.patterns, values=SRCD.values)
    for read in (50, 90, 99):
        found = routers.by_pattern(alike, positions, read, rng)
        yield {
            "what": "static router that decides by pattern",
            "patterns_read": read,
            **against(found, alike, (1 - read / alike.patterns) * (1 - 1 / alike.values), positions),
            "proved_bound": bounds.proved_bound(alike.share, found.error * alike.share),
        }
    yield {
        "what": "static router that knows the table by heart",
        **against(routers.by_heart(SRCD, positions, rng), SRCD, 0.0, positions),
    }


def against(found: Outcome, queries: Queries, error: float, positions: int) -> Row:
    """A router's reads beside the bounds at an error; below them only if by more than four standard errors."""
    printed = bounds.printed_bound(queries.share, error)
    guessing = bounds.guessing_bound(queries.share, error, queries.values)
    spread = 4 * (queries.share / positions) ** 0.5
    return {
        "claim": "theory/static-bound",
        "values": queries.values,
        "error_allowed": error,
        "error": found.error,
        "reads": found.reads,
        "printed_bound": printed,
        "guessing_bound": guessing,
        "below_printed": found.reads < printed - spread,
        "below_guessing": found.reads < guessing - spread,
    }


def _corollary() -> Iterator[Row]:
    unconsolidated = CLAIMS["theory/unconsolidated"].value
    for length in (2048, 8192, 131_072):
        bound = bounds.consolidated_bound(SRCD.share, unconsolidated, length, SRCD.patterns, _DELTA)
        yield {
            "what": "corollary with a constant of 1",
            "claim": "theory/consolidated-bound",
            "length": length,
            "consolidated_bound": bound,
            "static_bound": SRCD.share,
            "promises_less": bound < SRCD.share,
            "length_to_promise_less": bounds.length_to_beat_static(SRCD.share, unconsolidated, SRCD.patterns, _DELTA),
        }


def _convergence(steps: int) -> Iterator[Row]:
    for sampled, misfit in ((False, 0.0), (False, 0.1), (True, 0.0), (True, 0.1)):
        rate = 0.5
        errors = convergence.squared_errors(steps, rate, sampled=sampled, misfit=misfit)
        quarter = convergence.least_constant(errors[: steps // 4], rate, misfit)
        whole = convergence.least_constant(errors, rate, misfit)
        yield {
            "what": "theorem 2",
            "claim": "theory/convergence",
            "gradients": "sampled" if sampled else "exact",
            "least_error": misfit,
            "rate": rate,
            "rate_below": bounds.largest_rate(1.0),
            "steps": steps,
            "error": float(errors[-1]),
            "constant_needed_after_a_quarter": quarter,
            "constant_needed": whole,
            # Where it must grow with T, there is no C for all T.
            "holds": whole < 1.5 * quarter,
        }


def _reduction(trials: int) -> Iterator[Row]:
    error = 0.02
    for tenth in range(11):
        recurring = tenth / 10
        ratio = bounds.attention_ratio(recurring, error)
        row: Row = {
            "what": "theorem 3",
            "claim": "theory/reduction",
            "recurring": recurring,
            "opt": bounds.optimum(SRCD.share, recurring),
            "static_bound": SRCD.share,
            "ratio_bound": ratio,
            "times_less_at_most": 1 / ratio,
        }
        if recurring == 0:
            yield row  # nothing to consolidate, and nothing promised
            continue
        frequency = recurring / SRCD.patterns
        printed = bounds.reduction_steps(recurring, error, frequency, _DELTA, constant=1.0)
        for exposures in (1, 10):
            needed = convergence.steps_until(ratio, _DELTA, recurring, SRCD.patterns, exposures, trials=trials)
            yield {
                **row,
                "exposures": exposures,
                "retrievals_printed_per_constant": printed,
                "retrievals_needed": needed,
                "constant_needed": needed / printed,
            }
    # Where few retrievals recur, the theorem asks for no steps at all.
    recurring = _DELTA
    found = convergence.attention_ratios(0, recurring, SRCD.patterns, 1, trials=trials)
    yield {
        "what": "theorem 3 where ρ = δ",
        "claim": "theory/reduction-steps",
        "recurring": recurring,
        "retrievals_printed_per_constant": bounds.reduction_steps(
            recurring, error, recurring / SRCD.patterns, _DELTA, 1.0
        ),
        "ratio_bound": bounds.attention_ratio(recurring, error),
        "ratio": float(found.mean()),
        "holds": bool((found <= bounds.attention_ratio(recurring, error)).mean() >= 1 - _DELTA),
    }
