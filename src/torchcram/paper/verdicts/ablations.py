"""Verdicts on what the paper's ablations show: table 4, and the row of table 1 without consolidation."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping

from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts.srcd import BASELINES, MEDIUM, column, finals, recipe
from torchcram.paper.verdicts.verdict import (
    POINTS,
    Results,
    Row,
    Rule,
    Verdict,
    about,
    figure,
    is_number,
    near,
    reproduce,
    rows,
    spread,
)

_OPTIONS = "torchcram train srcd --preset medium --device cuda --out RUN --set"


def _ablated(claim: Claim, results: Results) -> tuple[list[Row], str, str]:
    """Rows of the variant that a claim is about, their file, and the command."""
    if "no-semantic" in claim.id:
        return finals(results, "gate"), BASELINES, f"{_OPTIONS} model.semantic.rank=0"
    return rows(results, MEDIUM, what="no L_cons"), MEDIUM, f"{_OPTIONS} consolidation.consolidation=0"


def _accuracy(claim: Claim, results: Results) -> Verdict | None:
    found, file, command = _ablated(claim, results)
    if not found:
        return None
    values = column(found, "accuracy")
    return Verdict(
        status="holds" if statistics.fmean(values) >= claim.value - POINTS else "does not hold",
        measured=spread(values, "share"),
        why="with our recipe",
        files=(file,),
        command=command,
    )


def _attention(claim: Claim, results: Results) -> Verdict | None:
    found, file, command = _ablated(claim, results)
    if not found:
        return None
    values = column(found, "reads")
    as_many = near(statistics.fmean(values), claim.value)
    return Verdict(
        status="holds" if as_many else "does not hold",
        measured=f"{spread(values, 'times')} by positions, "
        f"{figure(statistics.fmean(column(found, 'layer_reads')), 'times')} by tokens of a layer",
        why="" if as_many else "with a price for reads and our recipe attention falls without it, too",
        files=(file,),
        command=command,
    )


def _ratio(claim: Claim, results: Results) -> Verdict | None:
    found, file, command = _ablated(claim, results)
    if not found:
        return None
    values = column(found, "reads")
    return Verdict(
        status="holds" if near(statistics.fmean(values), claim.value) else "does not hold",
        measured=spread(values, "number"),
        why="reads at the end ÷ 1: with our recipe every position reads until release",
        files=(file,),
        command=command,
    )


def _fall(claim: Claim, results: Results) -> Verdict | None:
    """Attention without consolidation ÷ with it."""
    ours, without = recipe(results), rows(results, MEDIUM, what="no L_cons")
    if not ours or not without:
        return None
    least = statistics.fmean(column(ours, "reads"))
    values = [row["reads"] / least for row in without]
    return Verdict(
        status="holds" if near(statistics.fmean(values), claim.value) else "does not hold",
        measured=spread(values, "times"),
        why="on SRCD the loss of consolidation is not what makes reads fall",
        files=(MEDIUM,),
        command=f"{_OPTIONS} consolidation.consolidation=0",
    )


def _plateau(claim: Claim, results: Results) -> Verdict | None:
    gate, without = finals(results, "gate"), rows(results, MEDIUM, what="no L_cons")
    if not gate or not without:
        return None
    reads = [*column(gate, "reads"), *column(without, "reads")]
    return Verdict(
        status="holds" if all(near(value, claim.value) for value in reads) else "does not hold",
        measured=f"no semantic memory {spread(column(gate, 'reads'), 'share')}; "
        f"no consolidation loss {spread(column(without, 'reads'), 'share')}",
        why="the other two ablations are not yet measured",
        files=(BASELINES, MEDIUM),
        command=reproduce(results, "ablations"),
    )


def _dynamics(claim: Claim, results: Results) -> Verdict | None:
    ours, without = recipe(results), rows(results, MEDIUM, what="no L_cons")
    if not ours or not without:
        return None
    ratio = without[0]["dynamics_mse"] / statistics.fmean(column(ours, "dynamics_mse"))
    printed = claim.value / CLAIMS["srcd/cram/dynamics-mse"].value
    return Verdict(
        status="holds differently" if near(ratio, printed, 0.02) else "does not hold",
        measured=spread(column(without, "dynamics_mse"), "number"),
        why=f"the variance of the paper's noise is not given; {ratio:.2f} times CRAM's, where {printed:.2f} "
        "times is printed",
        files=(MEDIUM,),
        command=f"{_OPTIONS} consolidation.consolidation=0",
    )


def _fast_gamma(claim: Claim, results: Results) -> Verdict | None:
    """The number that the text gives for the row of the table."""
    found = [(file, row) for file, row in about(CLAIMS["ablation/fast/gamma"], results) if "caveat" not in row]
    found = [(file, row) for file, row in found if is_number(row.get("measured"))]
    if not found:
        return None
    file, row = found[0]
    return Verdict(
        status="holds" if near(row["measured"], claim.value) else "does not hold",
        measured=f"γ = {figure(row['measured'], 'number')}",
        why=str(row["what"]),
        files=(file,),
        command=reproduce(results, "ablations"),
    )


def _gamma(claim: Claim, results: Results) -> Verdict | None:
    """Whether an exponent is near those of human studies, as table 4 says in words, and often in a number, too."""
    found = [(file, row) for file, row in about(claim, results) if is_number(row.get("measured"))]
    found = [(file, row) for file, row in found if "caveat" not in row]
    if not found:
        return None
    value, (low, high) = float(found[0][1]["measured"]), CLAIMS["practice/human"].values
    number = re.search(r"γ = ([\d.]+)", claim.printed)
    agrees = (low <= value <= high) == claim.printed.startswith("Yes")
    same = number is None or near(value, float(number[1]))
    return Verdict(
        status="holds" if agrees and same else "holds differently" if agrees else "does not hold",
        measured=f"γ = {figure(value, 'number')}",
        why=f"{found[0][1]['what']}; compared with {low:g} to {high:g}",
        files=(found[0][0],),
        command=reproduce(results, "ablations"),
    )


_WITHOUT = "srcd/cram-without-consolidation"
_VARIANTS = (_WITHOUT, "ablation/no-semantic", "ablation/no-loss")

RULES: Mapping[str, Rule] = {
    "srcd/ablation-fall": _fall,
    "ablation/plateau": _plateau,
    f"{_WITHOUT}/dynamics-mse": _dynamics,
    **{name: _gamma for name in CLAIMS if name.startswith("ablation/") and name.endswith("/gamma")},
    **{f"{variant}/accuracy": _accuracy for variant in _VARIANTS},
    **{f"{variant}/attention": _attention for variant in _VARIANTS},
    **{f"{variant}/ratio": _ratio for variant in _VARIANTS},
}

FIRST: Mapping[str, Rule] = {"ablation/fast-gamma": _fast_gamma}
"""Before what rows of runs say by themselves."""
