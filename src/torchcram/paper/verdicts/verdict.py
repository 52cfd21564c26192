"""What a verdict is, and how numbers of result files become one."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchcram.paper.claims import Claim
from torchcram.paper.claims.claim import Unit

Status = Literal[
    "holds", "holds differently", "does not hold", "not testable here", "not yet measured", "a setting, no result"
]

Results = Mapping[str, Mapping[str, Any]]
"""What result files hold, by name without `.json`."""

Row = Mapping[str, Any]

SPACE = "\u00a0"
POINTS = 0.005
"""How far an accuracy may be from the printed one to be called the same: half a point, what rounding hides."""
CLOSE = 0.1
"""How far a number may be from the printed one, relatively, to be called the same, unless a rule says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a claim here."""

    status: Status
    measured: str = ""
    """The numbers, in words, with spread and seeds; nothing where there are none."""
    why: str = ""
    files: tuple[str, ...] = ()
    """Names of the result files that it rests on."""
    command: str = ""
    """What measures it, or would."""

    def __post_init__(self) -> None:
        if bool(self.measured) != bool(self.files):
            raise ValueError(f"numbers come from result files, and files give numbers: {self.measured!r}, {self.files}")


Rule = Callable[[Claim, Results], Verdict | None]
"""None where the files it needs are not there."""


def rows(results: Results, file: str, **wanted: object) -> list[Row]:
    """Rows of a file that say what is wanted; none if there is no such file."""
    found = results.get(file, {}).get("rows", ())
    return [row for row in found if all(row.get(key) == value for key, value in wanted.items())]


def about(claim: Claim, results: Results) -> list[tuple[str, Row]]:
    """Rows of the paper's experiments that name a claim, each with its file."""
    return [
        (file, row)
        for file in sorted(results)
        if file.startswith("paper-")
        for row in rows(results, file, claim=claim.id)
    ]


def figure(value: float, unit: Unit, digits: int = 3) -> str:
    """A number as the page writes it, with its sign."""
    return _bare(value, unit, digits) + _SIGNS.get(unit, "")


_SIGNS: Mapping[Unit, str] = {"share": f"{SPACE}%", "times": f"{SPACE}×"}


def _bare(value: float, unit: Unit, digits: int) -> str:
    if unit == "share":
        text = _plain(100 * value, digits)
        # What is not all of them must not read as if it were.
        return text if text != "100" or value >= 1 else _plain(math.floor(1e4 * value) / 100, 4)
    return f"{value:,.0f}" if unit == "steps" else _plain(value, digits)


def _plain(value: float, digits: int) -> str:
    """To so many digits that say something, without the exponent that `g` writes for large numbers."""
    if not value:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def spread(values: Sequence[float], unit: Unit) -> str:
    """Mean ± standard deviation of a sample, and how many seeds there were."""
    mean = statistics.fmean(values)
    # 99.95 and 100 differ; three digits would not show it.
    digits = 4 if unit == "share" and mean > 0.1 else 3
    if len(values) == 1:
        return f"{figure(mean, unit, digits)} (1 seed)"
    deviation = figure(statistics.stdev(values), unit, 2)
    return f"{_bare(mean, unit, digits)} ± {deviation} ({len(values)} seeds)"


def near(value: float, printed: float, close: float = CLOSE) -> bool:
    """Whether a number is the printed one, but for a share of it."""
    return abs(value - printed) <= close * abs(printed)


def of_runs(claim: Claim, results: Results) -> Verdict | None:
    """What trained runs say: rows of the paper's experiments that name the claim, and what is printed and measured.

    A row is one run, with its `seed`, or several, with `sd` and how many `runs`. Models that differ are judged apart:
    if some agree with the paper and others do not, the claim holds differently. Too small a scale has a `caveat` and
    says nothing.
    """
    trained = [(file, row) for file, row in about(claim, results) if "scale" in row or row.get("seed") is not None]
    return _of_rows(claim, trained)  # what is calculated from the paper's own figures has no scale


def of_numbers(claim: Claim, results: Results) -> Verdict | None:
    """What any row of the paper's experiments says that names the claim, and what is printed and measured."""
    return _of_rows(claim, about(claim, results))


def _of_rows(claim: Claim, found: Sequence[tuple[str, Row]]) -> Verdict | None:
    numbers = [(file, row) for file, row in found if is_number(row.get("measured")) and is_number(row.get("printed"))]
    numbers = [(file, row) for file, row in numbers if "caveat" not in row]
    if not numbers or not claim.values:
        return None
    # One kind of row speaks for the claim: the first that its experiment names.
    what = numbers[0][1].get("what")
    chosen = [(file, row) for file, row in numbers if row.get("what") == what]
    models: dict[str, list[Row]] = {}
    for _, row in chosen:
        models.setdefault(str(row.get("model") or ""), []).append(row)
    agree = {model: _agrees(claim, mine) for model, mine in models.items()}
    told = [f"{model}: {_told(claim, mine)}" if model else _told(claim, mine) for model, mine in models.items()]
    for model in _without(found, models):
        agree[model] = False
        told.append(f"{model}: none")
    more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    against = [model for model, agrees in agree.items() if not agrees]
    mixed = f"; not with {', '.join(against[:_SHOWN])}" if against and len(against) < len(agree) else ""
    sides = {_side(claim, models[model]) for model in against if model in models}
    side = f"; {sides.pop()} than printed" if len(sides) == 1 else ""
    return Verdict(
        status="holds" if not against else "holds differently" if mixed else "does not hold",
        measured="; ".join(told[:_SHOWN]) + more,
        why=f"{what or ''}{mixed}{side}",
        files=tuple(dict.fromkeys(file for file, _ in chosen)),
    )


def _side(claim: Claim, mine: Sequence[Row]) -> str:
    """Where a model's number is that is not the printed one."""
    return "less" if statistics.fmean(float(row["measured"]) for row in mine) < _printed(claim)[0] else "more"


def _without(found: Sequence[tuple[str, Row]], models: Container[str]) -> list[str]:
    """Models of which there was nothing to measure: what the claim is about did not happen."""
    missing = [row for _, row in found if "caveat" not in row and row.get("measured", 0) is None and row.get("model")]
    return [model for model in dict.fromkeys(str(row["model"]) for row in missing) if model not in models]


_SHOWN = 3  # models that are told of


def _told(claim: Claim, mine: Sequence[Row]) -> str:
    """A model's number: with its deviation, or with where it may be."""
    values, row = [float(row["measured"]) for row in mine], mine[0]
    if len(mine) > 1 or row.get("seed") is not None:
        return spread(values, claim.unit)
    runs = f" ({row['runs']} seed{'s' if row['runs'] != 1 else ''})" if row.get("runs") else ""
    if is_number(row.get("sd")):
        return f"{_bare(values[0], claim.unit, 4)} ± {figure(float(row['sd']), claim.unit, 2)}{runs}"
    limits = [figure(float(row[end]), claim.unit) for end in ("low", "high") if is_number(row.get(end))]
    return figure(values[0], claim.unit) + (f" ({' to '.join(limits)})" if len(limits) == 2 and not runs else runs)


def _agrees(claim: Claim, mine: Sequence[Row]) -> bool:
    """Whether a model has the printed number: but for a tenth of it, or two standard errors, at most twice that."""
    values, row = [float(row["measured"]) for row in mine], mine[0]
    deviation = statistics.stdev(values) if len(values) > 1 else float(row.get("sd") or 0.0)
    count = len(values) if len(values) > 1 else int(row.get("runs") or 1)
    low, high = _printed(claim)
    usual = _slack(claim, low, high)
    slack = max(usual, min(2 * deviation / math.sqrt(count), 2 * usual))  # runs that differ wildly agree with nothing
    return low - slack <= statistics.fmean(values) <= high + slack


def _printed(claim: Claim) -> tuple[float, float]:
    """From where to where a claim's number may be: a range, a mean and its deviation, or the number itself."""
    values = claim.values
    if "±" in claim.printed:
        return values[0] - values[1], values[0] + values[1]
    return min(values), max(values)


def _slack(claim: Claim, low: float, high: float) -> float:
    """A tenth of the number; of a high share, a tenth of what is missing to 1, or 99 % would be as good as 95 %."""
    most = max(abs(low), abs(high))
    if (claim.unit in ("share", "AUC") or "accuracy" in claim.measures) and 0.5 < most <= 1:
        return max(POINTS, CLOSE * (1 - most))
    return CLOSE * most


def is_number(value: object) -> bool:
    """Whether it is one, and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def reproduce(results: Results, experiment: str) -> str:
    """The command of an experiment, at the scale that its result file was made at; `gpu` if there is none."""
    told = str(results.get(f"paper-{experiment}", {}).get("command", ""))
    scale = re.search(r"--scale (\w+)", told)
    return f"torchcram reproduce {experiment} --scale {scale[1] if scale else 'gpu'}"
