"""Verdicts on theorems and bounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from torchcram.paper.claims import Claim
from torchcram.paper.verdicts.srcd import BASELINES, MEDIUM, column, finals, recipe
from torchcram.paper.verdicts.verdict import Results, Rule, Verdict, figure, near, reproduce, rows, spread

_FILE = "paper-theory"
_GUESSES, _BY_PATTERN, _BY_HEART = (
    f"static router that {does}" for does in ("guesses", "decides by pattern", "knows the table by heart")
)


def _static_order(claim: Claim, results: Results) -> Verdict | None:
    known, all_recur = rows(results, _FILE, what=_BY_HEART), rows(results, _FILE, what="theorem 3", recurring=1.0)
    if not known or not all_recur:
        return None
    reads, none = known[0]["reads"], all_recur[0]["opt"]
    return Verdict(
        status="does not hold" if known[0]["below_printed"] and none == 0 else "holds",
        measured=f"{figure(reads, 'share')} of the positions where f is {figure(known[0]['printed_bound'], 'share')}",
        why="a router that knows the table by heart is static, too, and reads for novel keys only; where all "
        "keys recur it "
        "reads nothing, whatever f",
        files=(_FILE,),
        command=reproduce(results, "theory"),
    )


def _static_bound(claim: Claim, results: Results) -> Verdict | None:
    guesses, known = rows(results, _FILE, what=_GUESSES), rows(results, _FILE, what=_BY_HEART)
    below = [row for row in guesses if row["below_printed"]]
    if not guesses or not known:
        return None
    corrected = not any(row["below_guessing"] for row in guesses)
    worst = next((row for row in below if row["error_allowed"] == 0.1), below[0] if below else None)
    told = (
        f"at V = {worst['values']}, ε = {worst['error_allowed']:g} routers that guess read "
        f"{figure(worst['reads'], 'share')} "
        f"where (1-ε) f n asks for {figure(worst['printed_bound'], 'share')}; "
        if worst
        else ""
    )
    return Verdict(
        status="holds" if not below else "holds differently" if corrected else "does not hold",
        measured=f"{told}knowing the table by heart, {figure(known[0]['reads'], 'share')} without errors",
        why="with guesses it is (1 - ε V/(V-1)) f n, which routers that can only read or guess reach and none "
        "undercuts. "
        "Without parametric or recurrent recall only",
        files=(_FILE,),
        command=reproduce(results, "theory"),
    )


def _by_pattern(claim: Claim, results: Results) -> Verdict | None:
    """Appendix B counts a query that does not read as wrong; a guess is right once in V."""
    found = rows(results, _FILE, what=_BY_PATTERN)
    if not found:
        return None
    row = min(found, key=lambda row: row["patterns_read"])
    share = row["patterns_read"] / 100
    exact, told = {
        "theory/static-error": (
            near(row["error"], 1 - share, 0.001),
            f"{figure(row['error'], 'share')} of the queries wrong where {figure(1 - share, 'share')} are not read",
        ),
        "theory/static-patterns": (
            share >= 1 - row["error"],
            f"{row['patterns_read']} patterns read where {100 * (1 - row['error']):.1f} are asked for",
        ),
        "theory/static-bound-proved": (
            row["reads"] >= row["proved_bound"],
            f"{figure(row['reads'], 'share', 4)} read where {figure(row['proved_bound'], 'share', 4)} is the least",
        ),
    }[claim.id]
    return Verdict(
        status="holds" if exact else "holds differently",
        measured=told,
        why=f"but for guesses, which are right once in {row['values']}",
        files=(_FILE,),
        command=reproduce(results, "theory"),
    )


def _corollary(claim: Claim, results: Results) -> Verdict | None:
    found, ours = rows(results, _FILE, what="corollary with a constant of 1", length=2048), recipe(results)
    if not found or not ours:
        return None
    (row,), reads = found, statistics.fmean(column(ours, "reads"))
    return Verdict(
        status="holds" if row["promises_less"] else "holds differently",
        measured=f"{spread(column(ours, 'reads'), 'share')}, below the "
        f"{figure(row['consolidated_bound'], 'share')} that it "
        "allows with a constant of 1"
        if reads <= row["consolidated_bound"]
        else f"{figure(reads, 'share')}, above {figure(row['consolidated_bound'], 'share')}",
        why="says little at this length: it promises less than a static router's "
        f"{figure(row['static_bound'], 'share')} from {row['length_to_promise_less']:,.0f} positions on, if "
        "its constant is 1",
        files=(_FILE, MEDIUM),
        command=reproduce(results, "theory"),
    )


def _of_task(claim: Claim, results: Results) -> Verdict | None:
    """A share that the task's own sequences show."""
    found = recipe(results)
    if not found:
        return None
    values = column(found, "static_bound")
    if claim.id == "theory/unconsolidated":
        values = [row["opt"] / row["static_bound"] for row in found]
    return Verdict(
        status="holds" if near(statistics.fmean(values), claim.value, 0.02) else "does not hold",
        measured=spread(values, "share"),
        why="of held-out sequences",
        files=(MEDIUM,),
        command="torchcram train srcd --preset medium --out RUN; torchcram evaluate RUN",
    )


def _static_srcd(claim: Claim, results: Results) -> Verdict | None:
    gate = finals(results, "gate")
    if not gate:
        return None
    reads = column(gate, "reads")
    return Verdict(
        status="does not hold" if max(reads) < claim.value else "holds",
        measured=f"a gate without semantic memory reads {spread(reads, 'share')}",
        why="its weights know the recurring keys by heart; its accuracy is "
        f"{figure(statistics.fmean(column(gate, 'accuracy')), 'share', 4)}",
        files=(BASELINES,),
        command="torchcram sweep srcd --preset medium --device cuda --out RUNS --vary model=gate --vary seed=0,1,2",
    )


def _consolidated_srcd(claim: Claim, results: Results) -> Verdict | None:
    found = recipe(results)
    if not found:
        return None
    values = column(found, "reads")
    return Verdict(
        status="holds" if near(statistics.fmean(values), claim.value, 0.05) else "does not hold",
        measured=spread(values, "share"),
        why="with our recipe",
        files=(MEDIUM,),
        command="torchcram train srcd --preset medium --device cuda --out RUN --set seed=SEED; torchcram evaluate RUN",
    )


def _opt(claim: Claim, results: Results) -> Verdict | None:
    for row in rows(results, _FILE, claim="theory/opt"):
        return Verdict(
            status="holds" if near(row["measured"], claim.value, 0.001) else "does not hold",
            measured=figure(row["measured"], "share"),
            why="calculated",
            files=(_FILE,),
            command=reproduce(results, "theory"),
        )
    return None


def _convergence(claim: Claim, results: Results) -> Verdict | None:
    found = rows(results, _FILE, what="theorem 2")
    if not found:
        return None
    held = [row for row in found if row["holds"]]
    return Verdict(
        status="holds" if len(held) == len(found) else "holds differently" if held else "does not hold",
        measured=f"holds in {len(held)} of {len(found)} simulations",
        why="with exact gradients, or where every read can be returned; with sampled ones and a constant rate "
        "an error in "
        "proportion to η remains",
        files=(_FILE,),
        command=reproduce(results, "theory"),
    )


def _reduction(claim: Claim, results: Results) -> Verdict | None:
    found, ours = rows(results, _FILE, what="theorem 3", recurring=0.7), recipe(results)
    if not found or not ours:
        return None
    ratios = [row["reads"] / row["static_bound"] for row in ours]
    bound = found[0]["ratio_bound"]
    return Verdict(
        status="holds" if max(ratios) <= bound else "does not hold",
        measured=f"{spread(ratios, 'number')} of what reading for every query takes; the bound at ρ = 0.7 is "
        f"{bound:.2f}",
        why=f"it promises {figure(found[0]['times_less_at_most'], 'times')} less at most, not 37.8",
        files=(_FILE, MEDIUM),
        command=reproduce(results, "theory"),
    )


def _reduction_steps(claim: Claim, results: Results) -> Verdict | None:
    for row in rows(results, _FILE, claim=claim.id):
        return Verdict(
            status="holds" if row["holds"] else "does not hold",
            measured=f"after 0 steps the ratio is {row['ratio']:g}, the bound {row['ratio_bound']:.2f}",
            why="where ρ = δ it asks for no steps at all",
            files=(_FILE,),
            command=reproduce(results, "theory"),
        )
    return None


RULES: Mapping[str, Rule] = {
    "theory/static-order": _static_order,
    "theory/static-bound": _static_bound,
    "theory/static-error": _by_pattern,
    "theory/static-patterns": _by_pattern,
    "theory/static-bound-proved": _by_pattern,
    "theory/consolidated-bound": _corollary,
    "theory/query-share": _of_task,
    "theory/unconsolidated": _of_task,
    "theory/static-srcd": _static_srcd,
    "theory/consolidated-srcd": _consolidated_srcd,
    "theory/opt": _opt,
    "srcd/cram/bound": _opt,
    "theory/convergence": _convergence,
    "theory/reduction": _reduction,
    "theory/reduction-steps": _reduction_steps,
}
