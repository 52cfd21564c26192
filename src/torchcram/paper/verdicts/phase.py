"""Verdicts on how and when attention falls."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping

from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts.srcd import recipe
from torchcram.paper.verdicts.verdict import (
    SPACE,
    Results,
    Row,
    Rule,
    Status,
    Verdict,
    figure,
    near,
    reproduce,
    rows,
    spread,
)

_FILE = "paper-phase"
_OURS, _PAPERS = "cram", "cram, the paper's recipe"
_PAPERS_STEPS = CLAIMS["recipe/steps"].value
_POINTS = 0.02  # of what is saved: less is no fall
_ANSWERS = 0.9  # accuracy from which on a run counts: one that does not answer saves reads as well
_FIGURES = ("Figure 2, left", "Figure 3, A")


def _both(results: Results, kind: str) -> list[Row]:
    """A row for each of the two figures that plot attention; none if one is missing."""
    found = [row for plot in _FIGURES for row in rows(results, _FILE, what=f"{kind} {plot}")]
    return found if len(found) == len(_FIGURES) else []


def _fall(claim: Claim, results: Results) -> Verdict | None:
    falls = _both(results, "fall in")
    if not falls:
        return None
    halves = [f"{row['half_of_the_fall_at']:.0f}" for row in falls]
    least = [f"{100 * row['least']:.1f}{SPACE}%" for row in falls]
    ours = recipe(results)
    told = spread([1 / row["reads"] for row in ours], "times") if ours else ""
    return Verdict(
        status="holds" if all(near(row["measured"], claim.value) for row in falls) else "does not hold",
        measured=" and ".join(figure(row["measured"], "times") for row in falls)
        + " in the paper's own figures"
        + (f"; ours, from reads everywhere, {told}" if told else ""),
        why="matches none of the paper's own ratios (23.6, 16.7, 52.6, 25, 10); 37.8 is where figure 2 begins, in "
        f"percent. Half of the fall of figure 2 is over by step {halves[0]}, of figure 3 by {halves[1]}"
        + (
            f"; both go below the optimum, to {least[0]} and {least[1]}"
            if all(row["below_opt"] for row in falls)
            else ""
        ),
        files=(_FILE, *(["srcd-medium"] if ours else [])),
        command=reproduce(results, "phase"),
    )


def _step(claim: Claim, results: Results) -> Verdict | None:
    fits = _both(results, "sigmoid in")
    if not fits:
        return None
    if claim.id == "phase/step":
        agree = [row["low"] <= claim.value <= row["high"] for row in fits]
    else:
        agree = [near(row["measured"], claim.value) for row in fits]
    ours = recipe(results)
    return Verdict(
        status="holds" if all(agree) else "holds differently" if any(agree) else "does not hold",
        measured=" and ".join(f"{row['measured']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f})" for row in fits)
        + " by sigmoids through figures 2 and 3"
        + (f"; ours is released at {spread([row['released_at'] for row in ours], 'steps')}" if ours else ""),
        why="the paper's two figures of the same training differ. With our recipe attention falls once the model can "
        "retrieve, whatever the step; where it falls with the paper's is not yet measured",
        files=(_FILE, *(["srcd-medium"] if ours else [])),
        command=reproduce(results, "phase"),
    )


def _arrow(claim: Claim, results: Results) -> Verdict | None:
    for row in rows(results, _FILE, what="fall in Figure 2, left"):
        ends = (100 * row["first"], 100 * row["last"])
        return Verdict(
            status="holds"
            if all(near(e, p, 0.001) for e, p in zip(ends, claim.values, strict=True))
            else "does not hold",
            measured=f"{ends[0]:.1f} and {ends[1]:.1f}",
            why=f"the curve beside it has the same ends; but the arrow is marked 37.8×, and they are "
            f"{figure(row['measured'], 'times')} apart",
            files=(_FILE,),
            command=reproduce(results, "phase"),
        )
    return None


def _regions(claim: Claim, results: Results) -> Verdict | None:
    for row in rows(results, _FILE, what="sigmoid in Figure 3, A"):
        ends = (row["measured"] - row["duration"] / 2, row["measured"] + row["duration"] / 2)
        met = all(near(e, p, 0.01) for e, p in zip(ends, claim.values, strict=True))
        return Verdict(
            status="holds" if met else "holds differently",
            measured=f"{ends[0]:,.0f} to {ends[1]:,.0f}, by the sigmoid through the plotted points",
            why="shading of a figure; the plotted fall is over earlier",
            files=(_FILE,),
            command=reproduce(results, "phase"),
        )
    return None


def _quality_dynamics(claim: Claim, results: Results) -> Verdict | None:
    for row in rows(results, _FILE, claim=claim.id):
        return Verdict(
            # The figure is drawn to hundredths.
            status="holds" if row["rmse"] <= 0.01 else "does not hold",
            measured=f"root mean squared miss {row['rmse']:.2f}, at most {row['largest_miss']:.2f}",
            why=f"fitted to the paper's own q̄, the two equations miss it by {row['rmse']:.2f}",
            files=(_FILE,),
            command=reproduce(results, "phase"),
        )
    return None


def _routing_dynamics(claim: Claim, results: Results) -> Verdict | None:
    for row in rows(results, _FILE, claim=claim.id):
        against = row["must_fall"] and not row["falls"]
        return Verdict(
            status="does not hold" if against else "holds",
            measured=f"semantic routing × {row['times_more']:.1f} before q*",
            why="below q* the equation lets semantic routing fall; the plotted q̄ needs it to rise"
            if against
            else "the plotted q̄ moves as the equation says",
            files=(_FILE,),
            command=reproduce(results, "phase"),
        )
    return None


def _fixed_points(claim: Claim, results: Results) -> Verdict | None:
    points = rows(results, _FILE, what="fixed point")
    if not points:
        return None
    agree = [row["printed"] == row["measured"] for row in points]
    return Verdict(
        status="holds" if all(agree) else "holds differently" if any(agree) else "does not hold",
        measured="; ".join(f"({row['q']:g}, {row['p']:g}): {row['measured']}" for row in points),
        why="the saddle is at (q*, 0); (1, 1) is not a fixed point of the equations as printed, only if p is held in "
        "0..1, and below the separatrix they run off",
        files=(_FILE,),
        command=reproduce(results, "phase"),
    )


def _conditions(claim: Claim, results: Results) -> Verdict:
    """What consolidation saves of a static router's reads, over the share that recurs: from a half on, or little by
    little?"""
    file = "paper-theory"
    found = [row for row in rows(results, file, what="reads over the recurring share") if "caveat" not in row]
    found = [row for row in found if row["accuracy"] >= _ANSWERS]
    shares = sorted({float(row["recurring"]) for row in found})
    if claim.value not in shares or len(shares) < 3:
        return Verdict(
            status="not yet measured", why="needs runs over the recurring share", command=reproduce({}, "theory")
        )
    saved = {
        share: statistics.fmean(1 - row["ratio"] for row in found if row["recurring"] == share) for share in shares
    }
    most = max(saved.values())
    grows = all(saved[one] <= saved[other] + _POINTS for one, other in itertools.pairwise(shares))
    grows = grows and saved[shares[-1]] > saved[shares[0]] + _POINTS
    enough = {share: most > 0 and saved[share] >= 0.9 * most for share in shares}
    from_half = all(enough[share] == (share >= claim.value) for share in shares)
    counts = {share: sum(row["recurring"] == share for row in found) for share in shares}
    return Verdict(
        status="holds" if from_half else "holds differently" if grows else "does not hold",
        measured="; ".join(
            f"{figure(share, 'share')} recurring: {figure(saved[share], 'share')} of the reads saved"
            for share in shares
        )
        + f" ({min(counts.values())} seeds)",
        why=(
            "what is saved grows with what recurs, a half is no threshold"
            if grows and not from_half
            else "from a half on it saves as much as it ever does, and below it less"
            if from_half
            else "what is saved does not grow with what recurs"
        )
        + "; saved against a read for every query",
        files=(file,),
        command=reproduce(results, "theory"),
    )


def _trained_step(claim: Claim, results: Results) -> Verdict | None:
    """Where the paper's recipe lets attention fall, as a share of its training; and what moves it, with ours."""
    fits = _dated(results)
    none = [row for row in rows(results, _FILE, what="no fall", model=_PAPERS) if "caveat" not in row]
    theirs = next((row for row in fits if row.get("model") == _PAPERS), None)
    ours = next((row for row in fits if row.get("model") == _OURS), None)
    if (theirs is None and not none) or ours is None:
        return None
    moved = rows(results, _FILE, what="fall against the end of the temperature's fall")
    slopes = {row["model"]: row for row in moved if row.get("measured") is not None and "caveat" not in row}
    told = [f"ours at step {_limits(ours)}, released at {ours['released_at']:,.0f}"]
    status: Status = "does not hold"
    if theirs is None:
        told.insert(0, "with the paper's recipe no fall")
        why = f"with the paper's recipe, {none[0]['steps']:,} steps long, reads do not fall from anywhere to anywhere"
    else:
        expected = claim.value * theirs["steps"] / _PAPERS_STEPS
        told.insert(0, f"with the paper's recipe at step {_limits(theirs)} of {theirs['steps']:,}")
        if near(theirs["measured"], expected):
            status = "holds"
        why = (
            f"of reads that its router chooses, while q_t has all executed; its {theirs['steps']:,} steps, schedule "
            f"included, stand for the paper's {_PAPERS_STEPS:,.0f}: {expected:,.0f} would be the same place"
        )
    for model, row in slopes.items():
        which = "the paper's" if model == _PAPERS else "our"
        why += (
            f"; with {which} recipe it moves by {figure(row['measured'], 'number', 2)} steps for each step that the "
            "temperature takes longer to fall"
        )
        if row.get("low") is not None:
            why += f" ({figure(row['low'], 'number', 2)} to {figure(row['high'], 'number', 2)})"
    return Verdict(
        status=status, measured="; ".join(told), why=why, files=(_FILE,), command=reproduce(results, "phase")
    )


def _dated(results: Results) -> list[Row]:
    """When reads of each model fall: the middle of a sigmoid; of one that begins with more reads than there are
    positions, which is to say before the first evaluation, the change-point."""
    laws = [
        {str(row.get("model")): row for row in rows(results, _FILE, what=f"{law} in reads over training")}
        for law in ("sigmoid", "change-point")
    ]
    smooth, sudden = laws
    found = [
        sudden[model] if model in sudden and float(row.get("before") or 0) > 1 + _POINTS else row
        for model, row in smooth.items()
    ]
    return [row for row in found if "caveat" not in row]


def _limits(row: Row) -> str:
    return f"{row['measured']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f})"


def _drawn(claim: Claim, results: Results) -> Verdict:
    model = "seqboat" if "seqboat" in claim.id else "jamba"
    return Verdict(
        status="not testable here",
        why="a formula in the source of the figure, no measurement; what the model really uses is in table 1",
        command=f"torchcram train srcd --preset medium --model {model} --out RUN",
    )


RULES: Mapping[str, Rule] = {
    "phase/fall": _fall,
    "phase/step": _step,
    "phase/step-about": _step,
    "phase/arrow": _arrow,
    "phase/regions": _regions,
    "phase/conditions": _conditions,
    "phase/quality-dynamics": _quality_dynamics,
    "phase/routing-dynamics": _routing_dynamics,
    "phase/fixed-points": _fixed_points,
    "phase/seqboat-plot": _drawn,
    "phase/jamba-plot": _drawn,
}

FIRST: Mapping[str, Rule] = {"phase/step": _trained_step, "phase/step-about": _trained_step}
"""Before what rows of runs say by themselves."""
