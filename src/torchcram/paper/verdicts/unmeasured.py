"""What was not measured yet: the command that would; and what was looked for in vain."""

from __future__ import annotations

from torchcram.paper.claims import Claim
from torchcram.paper.verdicts import timeseries
from torchcram.paper.verdicts.verdict import Results, Verdict, about, reproduce


def command(claim: Claim, results: Results) -> str:
    """What measures a claim, if nothing better is known: its subject's experiment."""
    subject, _, _ = claim.id.partition("/")
    if subject == "timeseries":
        return timeseries.command(claim)
    return reproduce(results, {"ablation": "ablations"}.get(subject, subject))


def waiting(claim: Claim) -> Verdict:
    """Of what no result file tells: what it takes."""
    subject, _, _ = claim.id.partition("/")
    needs = {
        "transfer": "needs models trained on one task and tried on another",
        "timeseries": "needs the data set, which its owners give out",
        "phase": "needs runs that keep their quality over training",
        "practice": "needs the decisions of trained runs",
        "ablation": "needs runs of this variant",
    }
    return Verdict(status="not yet measured", why=needs.get(subject, "needs a run"), command=command(claim, {}))


def in_vain(claim: Claim, results: Results) -> Verdict | None:
    """Of what runs were made for, and none of them showed: what it is about did not happen."""
    found = [(file, row) for file, row in about(claim, results) if "scale" in row and "caveat" not in row]
    found = [(file, row) for file, row in found if row.get("measured", 0) is None]
    if not found:
        return None
    models = list(dict.fromkeys(str(row.get("model") or "the model") for _, row in found))
    without, made = (sum(int(row.get(key) or 1) for _, row in found) for key in ("runs_without", "runs"))
    some = without < made
    return Verdict(
        status="holds differently" if some else "does not hold",
        measured=f"in {made - without} of {made} runs" if some else f"none, with {', '.join(models[:3])}",
        why=f"{found[0][1].get('what')}: what it is about did not happen{' in the others' if some else ''}",
        files=tuple(dict.fromkeys(file for file, _ in found)),
    )
