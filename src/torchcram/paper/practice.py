"""The law of practice: what the 13 plotted points say, compared with what is printed, and what averages hide."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import stats
from scipy.optimize import least_squares

from torchcram.paper.claims import CLAIMS, CURVES
from torchcram.paper.exposures import Exposures
from torchcram.paper.laws import LAWS, Array, Name
from torchcram.paper.likelihood import compare
from torchcram.paper.setup import Scale
from torchcram.results import Row

_START, _GAMMA = 0.89, CLAIMS["practice/gamma"].value  # the curve that figure 4 draws as a fit


def calculate(scale: Scale) -> Iterator[Row]:
    """The plotted points refitted, the printed law beside the paper's own batch, and an average of sudden stops."""
    k, chance = np.array(CURVES["practice/episodic"].points).T
    yield from _exponents(k, chance)
    yield _printed_curve(k, chance)
    for law in LAWS:
        if law != "change-point":
            yield _through_points(law, k, chance)
    yield _exposures_a_step()
    yield from _human()
    data = sudden_stops(patterns=50 if scale == "ci" else 1000)
    yield from averaging(data)


def log_slope(k: Array, chance: Array) -> tuple[float, float, float]:
    """γ of a straight line through the logarithms, and its 95 % interval."""
    line = stats.linregress(np.log(k), np.log(chance))
    # Where all chances are the same it is not a number.
    reach = float(stats.t.ppf(0.975, len(k) - 2)) * float(np.nan_to_num(line.stderr))
    return -float(line.slope), -float(line.slope) - reach, -float(line.slope) + reach


def rounded_slopes(k: Array, chance: Array, digits: int = 2) -> tuple[float, float]:
    """Least and largest γ of a straight line through the logarithms, if each chance was rounded to so many digits."""
    logs = np.log(k)
    pull = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    half = 0.5 * 10.0**-digits
    slopes = [
        -float(pull @ np.log(chance + np.where(up, half, -half))) for up in (pull > 0, pull < 0)
    ]  # each point as far to either side as rounding lets it be
    return min(slopes), max(slopes)


def _exponents(k: Array, chance: Array) -> Iterator[Row]:
    gamma, low, high = log_slope(k, chance)
    rounding = rounded_slopes(k, chance)
    logs = np.log(k)
    held = -float(logs @ (np.log(chance) - math.log(_START)) / (logs @ logs))
    squares = _through_points("power", k, chance)
    claim: Row = {"claim": "practice/gamma", "printed": _GAMMA}
    yield {
        "what": "γ by least squares of logarithms",
        **claim,
        "measured": gamma,
        "low": low,
        "high": high,
        "low_by_rounding": rounding[0],
        "high_by_rounding": rounding[1],
        "points": len(k),
    }
    yield {"what": "γ by least squares of logarithms, start held at 0.89", **claim, "measured": held}
    yield {"what": "γ by least squares of shares", **claim, "measured": squares["gamma"]}


def _printed_curve(k: Array, chance: Array) -> Row:
    drawn = _START * k**-_GAMMA
    return {
        "what": "the curve drawn as a fit, at the plotted points",
        "claim": "practice/fit",
        "points": len(k),
        "points_met": int((abs(drawn - chance) <= 0.005 + 1e-9).sum()),
        "points_below_it": int((chance < drawn - 0.005).sum()),
        "rmse": float(((drawn - chance) ** 2).mean()) ** 0.5,
        "drawn_at_100": float(drawn[-1]),
        "plotted_at_100": float(chance[-1]),
    }


def _through_points(name: Name, k: Array, chance: Array) -> Row:
    """A law without a floor through shares, by least squares; less AIC is better."""
    law = LAWS[name]

    def residuals(x: Array) -> Array:
        misses: Array = x[0] * law.shape(k, *np.exp(x[1:])) - chance
        return misses

    def begin(start: tuple[float, ...]) -> list[float]:
        scaled = (v / k.max() if each == "rate" else v for each, v in zip(law.parameters, start, strict=True))
        return [float(chance[0]), *(math.log(v) for v in scaled)]

    best = min((least_squares(residuals, begin(start)) for start in law.starts), key=lambda fit: float(fit.cost))
    squares, free = 2 * float(best.cost), len(law.parameters) + 2
    return {
        "what": f"{name} through the plotted points",
        "claim": "practice/gamma",
        "start": float(best.x[0]),
        **dict(zip(law.parameters, (float(v) for v in np.exp(best.x[1:])), strict=True)),
        "rmse": (squares / len(k)) ** 0.5,
        "aic": len(k) * math.log(squares / len(k)) + 2 * free,
    }


def _exposures_a_step() -> Row:
    """How soon the repetitions of figure 4 are over in the paper's own training, and what figure 3 has then."""
    value = {name: CLAIMS[name].value for name in CLAIMS if CLAIMS[name].values}
    asked = value["recipe/batch"] * value["srcd/length"] * value["srcd/query-share"] * value["srcd/recurring-share"]
    each = asked / value["srcd/patterns"]
    transition = value["phase/step-about"]
    return {
        "what": "repetitions of a pattern in a training step",
        "claim": "practice/law",
        "repetitions_a_step": each,
        "step_of_repetition_100": 100 / each,
        "repetitions_before_the_transition": each * transition,
        "law_says_of_a_recurring_query": _START * (each * transition) ** -_GAMMA,
        "figure_3_says_of_all_positions": dict(CURVES["phase/attention-again"].points)[transition] / 100,
    }


def _human() -> Iterator[Row]:
    gamma, low, high = log_slope(*np.array(CURVES["practice/episodic"].points).T)
    for name in ("rickard", "newell-rosenbloom"):
        claim = CLAIMS[f"practice/{name}"]
        yield {
            "what": f"compared with {claim.measures}",
            "claim": claim.id,
            "printed": claim.value,
            "measured": gamma,
            "low": low,
            "high": high,
            "inside": low <= claim.value <= high,
        }


def sudden_stops(*, patterns: int, longest: int = 100, shape: float = 0.56) -> Exposures:
    """Patterns that read always, and from one exposure on never again, each at its own; k up to `longest`.

    A share k^-shape of the patterns has not stopped at k: so the average is a power law, and none follows it.
    """
    last = np.floor(((np.arange(patterns) + 0.5) / patterns) ** (-1 / shape)).astype(np.int64)
    k = np.tile(np.arange(1, longest + 1), patterns)
    pattern = np.repeat(np.arange(patterns), longest)
    return Exposures(
        pattern=pattern,
        seed=np.zeros_like(pattern),
        k=k,
        asked=np.ones_like(k),
        read=(k <= last[pattern]).astype(np.int64),
    )


def averaging(data: Exposures) -> Iterator[Row]:
    """The same decisions, fitted as one curve and pattern by pattern: what is best, and by how much."""
    for by_pattern in (False, True):
        fits = compare(data, by_pattern=by_pattern)
        ranked = sorted(fits, key=lambda law: fits[law].aic)
        yield {
            "what": f"sudden stops fitted {'pattern by pattern' if by_pattern else 'as one curve'}",
            "claim": "practice/gamma",
            "patterns": len(np.unique(data.pattern)),
            "best": ranked[0],
            "second": ranked[1],
            "aic_between": fits[ranked[1]].aic - fits[ranked[0]].aic,
            "aic_power": fits["power"].aic,
            "aic_change_point": fits["change-point"].aic,
            **({} if by_pattern else {"gamma": fits["power"].parameters["gamma"]}),
        }
