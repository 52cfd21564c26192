"""Verdicts on the law of practice."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchcram.paper.claims import Claim
from torchcram.paper.verdicts.verdict import Results, Rule, Verdict, figure, reproduce, rows

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
