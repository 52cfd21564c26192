"""A verdict on every claim of the paper, from the numbers in result files. Needs nothing but Python."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from torchcram import results as files
from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts import (
    ablations,
    phase,
    practice,
    redundancy,
    settings,
    srcd,
    theory,
    timeseries,
    transfer,
    unmeasured,
)
from torchcram.paper.verdicts.verdict import Results, Rule, Status, Verdict, of_numbers, of_runs

__all__ = ["HEADLINES", "SECTIONS", "STATUSES", "Results", "Status", "Verdict", "counts", "judge", "read"]

STATUSES: tuple[Status, ...] = get_args(Status)

SECTIONS: Mapping[str, str] = {
    "redundancy": "Redundancy of attention (sections 2 and G)",
    "theory": "Theory (5 and B)",
    "srcd": "SRCD (6 and 7.1)",
    "ablation": "Ablations (7.5 and E)",
    "phase": "The fall of attention (7.2, 8 and C)",
    "transfer": "Transfer (7.3 and D)",
    "practice": "Law of practice (7.4 and H)",
    "timeseries": "Irregular time series (7.6 and F)",
    "recipe": "The paper's recipe (4 and A)",
}
"""What the page's parts are called, by the first word of a claim's id."""

_RULES: Mapping[str, Rule] = {
    **theory.RULES,
    **srcd.RULES,
    **ablations.RULES,
    **phase.RULES,
    **practice.RULES,
    **settings.RULES,
    **redundancy.RULES,
    **timeseries.RULES,
    **transfer.RULES,
}

_FIRST: Mapping[str, Rule] = {**phase.FIRST, **practice.FIRST, **ablations.FIRST, **transfer.FIRST}
"""What says more of runs than their rows do by themselves."""

_WELL_KNOWN = (
    "srcd/jamba-in-text",
    "srcd/ablation-fall",
    "theory/static-bound",
    "theory/convergence",
    "phase/fixed-points",
    "timeseries/physionet-in-text",
    "timeseries/mimic3-in-text",
    "timeseries/activity-in-text",
)
_RUNS_FIRST = ("phase/", "practice/", "redundancy/", "transfer/", "timeseries/", "ablation/")
"""Of these, what trained runs say comes before what is calculated or was tried with one seed."""

HEADLINES: tuple[str, ...] = tuple(
    dict.fromkeys(
        claim.id
        for subject in ("srcd", "phase", *SECTIONS)
        for claim in CLAIMS.values()
        if claim.id.startswith(f"{subject}/")
        and (claim.id in _WELL_KNOWN or any(place.section == "abstract" for place in claim.places))
    )
)
"""What the abstract says, and what else is best known; the main results first."""


def read(folder: str | os.PathLike[str]) -> Results:
    """All result files of a folder."""
    return {path.stem: files.read(path) for path in sorted(Path(folder).glob("*.json"))}


def judge(results: Results) -> dict[str, Verdict]:
    """A verdict on each claim, by id."""
    return {claim.id: _judge(claim, results) for claim in CLAIMS.values()}


def _judge(claim: Claim, results: Results) -> Verdict:
    own = [_RULES[claim.id]] if claim.id in _RULES else []
    rules = [of_runs, *own] if claim.id.startswith(_RUNS_FIRST) else [*own, of_runs]
    rules = [*([_FIRST[claim.id]] if claim.id in _FIRST else []), *rules, of_numbers, unmeasured.in_vain]
    found = [verdict for rule in rules if (verdict := rule(claim, results)) is not None]
    # Rather one that rests on numbers.
    found.sort(key=lambda verdict: not verdict.files)
    if not found:
        return unmeasured.waiting(claim)
    return found[0] if found[0].command else replace(found[0], command=unmeasured.command(claim, results))


def counts(verdicts: Mapping[str, Verdict]) -> dict[Status, int]:
    """How many claims have each verdict."""
    found = Counter(verdict.status for verdict in verdicts.values())
    return {status: found[status] for status in STATUSES}
