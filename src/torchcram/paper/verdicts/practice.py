"""Verdicts on the law of practice."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchcram.paper.claims import Claim
from torchcram.paper.verdicts.verdict import Results, Rule, Verdict, figure, is_number, reproduce, rows

_FILE = "paper-practice"
_OTHERS = "a result of other people's studies; human memory is not measured here"


def _gamma(claim: Claim, results: Results) -> Verdict | None:
    found = rows(results, _FILE, what="γ by least squares of logarithms")
    if not found:
        return None
    (row,) = found
    laws = {name: rows(results, _FILE, what=f"{name} through the plotted points") for name in ("power", "APEX")}
    better = all(laws.values()) and laws["APEX"][0]["aic"] < laws["power"][0]["aic"]
    inside = row["low"] <= claim.value <= row["high"]
    return Verdict(
        status="holds" if inside else "does not hold",
        measured=f"γ = {row['measured']:.2f} ({row['low']:.2f} to {row['high']:.2f}) of the paper's own points",
        why=(
            f"refitting the {row['points']} plotted points"
            + (" gives it" if inside else " gives another exponent")
            + ("; a power law times an exponential fits them better" if better else "")
            + ". Decisions of runs of ours are not yet measured"
        ),
        files=(_FILE,),
        command=reproduce(results, "practice"),
    )


def _of_decisions(claim: Claim, results: Results) -> Verdict | None:
    """γ of read decisions of trained runs, and whether a power law is what they follow; beside the refitted points."""
    found = [row for row in rows(results, _FILE, what="γ of one power law without a floor") if "caveat" not in row]
    if not found:
        return None
    reach = claim.values[1] if len(claim.values) > 1 else 0.0
    low, high = claim.value - reach, claim.value + reach
    meets = [row for row in found if is_number(row.get("low")) and row["low"] <= high and row["high"] >= low]
    best = {
        (row["model"], row["counted"]): str(row["what"]).partition(",")[0]
        for row in rows(results, _FILE, best=True)
        if "one curve for all patterns" in str(row["what"]) and "caveat" not in row
    }
    by_power = [row for row in meets if best.get((row["model"], row["counted"])) == "power"]
    refitted = rows(results, _FILE, what="γ by least squares of logarithms")
    told = [
        f"{row['model']}, k {row['counted']}: {figure(row['measured'], 'number', 2)} "
        f"({figure(row['low'], 'number', 2)} to {figure(row['high'], 'number', 2)})"
        for row in found
    ]
    laws = list(dict.fromkeys(best.values()))
    return Verdict(
        status="holds" if len(by_power) == len(found) else "holds differently" if meets else "does not hold",
        measured="; ".join(told),
        why=(f"of what decisions follow, the best is {' or '.join(laws)}" if laws else "of read decisions")
        + (
            f"; refitting the {refitted[0]['points']} plotted points gives {refitted[0]['measured']:.2f} "
            f"({refitted[0]['low']:.2f} to {refitted[0]['high']:.2f})"
            if refitted
            else ""
        ),
        files=(_FILE,),
        command=reproduce(results, "practice"),
    )


def _fit(claim: Claim, results: Results) -> Verdict | None:
    for row in rows(results, _FILE, what="the curve drawn as a fit, at the plotted points"):
        return Verdict(
            status="holds" if row["points_met"] == row["points"] else "does not hold",
            measured=f"meets {row['points_met']} of {row['points']} points",
            why=f"{row['points_below_it']} points lie below the curve that is drawn as their fit; at k = 100 it is at "
            f"{figure(row['drawn_at_100'], 'number')}, where {figure(row['plotted_at_100'], 'number')} is plotted",
            files=(_FILE,),
            command=reproduce(results, "practice"),
        )
    return None


def _law(claim: Claim, results: Results) -> Verdict | None:
    for row in rows(results, _FILE, what="repetitions of a pattern in a training step"):
        step = math.ceil(row["step_of_repetition_100"])
        return Verdict(
            status="not testable here",
            measured=f"{row['repetitions_a_step']:.0f} repetitions a step at the paper's batch",
            why=f"{_OTHERS}. As a law of routing it would be over early: at the paper's batch k = 100 is "
            "reached in step "
            f"{step}, long before the fall at 3K",
            files=(_FILE,),
            command=reproduce(results, "practice"),
        )
    return None


def _human(claim: Claim, results: Results) -> Verdict:
    for row in rows(results, _FILE, claim=claim.id):
        return Verdict(
            status="not testable here",
            measured=f"compared with γ = {row['measured']:.2f} ({row['low']:.2f} to {row['high']:.2f}) of the paper's "
            "points",
            why=f"{_OTHERS}. It is {'inside' if row['inside'] else 'outside'} the interval of the paper's "
            "plotted points",
            files=(_FILE,),
            command=reproduce(results, "practice"),
        )
    return Verdict(status="not testable here", why=_OTHERS)


_STUDIES = ("human", "human-curve", "rickard", "rickard-interval", "newell-rosenbloom", "newell-rosenbloom-interval")

RULES: Mapping[str, Rule] = {
    "practice/gamma": _gamma,
    "practice/gamma-interval": _gamma,
    "practice/fit": _fit,
    "practice/law": _law,
    **{f"practice/{name}": _human for name in _STUDIES},
}

FIRST: Mapping[str, Rule] = {"practice/gamma": _of_decisions, "practice/gamma-interval": _of_decisions}
"""Before what rows of runs say by themselves."""
