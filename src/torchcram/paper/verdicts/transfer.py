"""Verdicts on transfer: attention on another task, with memory and router as they were."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts import timeseries, unmeasured
from torchcram.paper.verdicts.verdict import Results, Row, Rule, Verdict, about, figure, is_number, of_runs, reproduce

_FALLS = ("transfer/copy/fall", "transfer/physionet/fall", "transfer/activity/fall")
"""The targets of table 2, from SRCD."""
_ACTIVITY = "activity"
_LEARNED = 0.1
"""Accuracy from scratch below which a task was not learned."""
_CALLED = {"p12": "PhysioNet", "wearable": "wearable sensors"}


def _transferred(claim: Claim, results: Results) -> Verdict | None:
    """As rows say it, and what became of accuracy: fewer reads mean little where it fell with them."""
    verdict = of_runs(claim, results)
    if verdict is None:
        return None
    return replace(_beside_accuracy(claim, results, verdict), command=_command(claim, results))


def _command(claim: Claim, results: Results) -> str:
    """With the data that it takes."""
    data = [name for name, part in (("p12", "physionet"), ("mimic3", "mimic3")) if part in claim.id]
    return " ".join([reproduce(results, "transfer"), *(f"--data {name}=FOLDER" for name in data)])


def _credentialed(claim: Claim, results: Results) -> Verdict:
    return replace(timeseries.credentialed(claim, results), command=_command(claim, results))


def _to_activity(claim: Claim, results: Results) -> Verdict:
    """The same of what people do: from the whole data a verdict, from others of the kind numbers alone."""
    command = f"{reproduce(results, 'transfer')} --data p12=FOLDER --data activity=FOLDER"
    verdict = of_runs(claim, results) or unmeasured.in_vain(claim, results)
    if verdict is None:
        return Verdict(status="not testable here", why=timeseries.ABSENT, command=command)
    verdict = replace(_beside_accuracy(claim, results, verdict), command=command)
    told = [row for _, row in about(claim, results) if row.get("target") == _ACTIVITY]
    if told and all(map(timeseries.is_whole, told)):
        return verdict
    what = "of a fragment" if told else timeseries.OTHER
    return replace(verdict, status="not testable here", why=f"{what}: {verdict.why}; {timeseries.ABSENT}")


def _beside_accuracy(claim: Claim, results: Results, verdict: Verdict) -> Verdict:
    for _, row in about(claim, results):
        ends = [
            next((value for key, value in row.items() if key.endswith(end) and _is_score(key)), None)
            for end in ("_from_scratch", "_transferred")
        ]
        if all(map(is_number, ends)):
            before, after = (figure(float(value), "share") for value in ends if value is not None)
            measure = "AUROC" if row.get("measure") == "auroc" else "accuracy"
            why = f"{verdict.why}{_levels(claim, row)}; {measure} {before} from scratch, {after} after transfer"
            verdict = replace(verdict, why=why + _dense(claim, row))
            if measure == "accuracy" and float(ends[0] or 0) < _LEARNED:
                why = f"at this size the target is not learned from scratch, so nothing follows; {verdict.why}"
                return replace(verdict, status="not testable here", why=why)
            return verdict
    return verdict


def _levels(claim: Claim, row: Row) -> str:
    """What a fall is from and to, and whether seeds differ by as much."""
    words, ends, errors = [], [], []
    for name, told in (("from_scratch", "from scratch"), ("transferred", "after transfer")):
        mean, deviation = row.get(f"layer_reads_{name}"), row.get(f"layer_reads_{name}_sd")
        if mean is None or deviation is None or claim.unit != "share":
            return ""
        words.append(f"{figure(float(mean), 'share')} ± {figure(float(deviation), 'share', 2)} {told}")
        ends.append(float(mean))
        errors.append(float(deviation) ** 2 / int(row.get("runs") or 1))
    same = abs(ends[0] - ends[1]) <= 2 * math.sqrt(sum(errors))
    return f"; reads in a layer {', '.join(words)}{', which is no more than seeds differ by' if same else ''}"


def _dense(claim: Claim, row: Row) -> str:
    """A warning where a fall is from reads that nothing was to bring down: of CRAM that was never released."""
    released, runs = row.get("scratch_released"), row.get("runs")
    if row.get("model") != "cram" or not (is_number(released) and is_number(runs)) or claim.unit != "share":
        return ""
    left = int(runs or 0) - int(released or 0)
    return f"; {left} of {runs} from scratch were never released, and so read everywhere" if left else ""


def _is_score(key: str) -> bool:
    return key.startswith(("accuracy_", "auroc_"))


def _in_short(claim: Claim, results: Results) -> Verdict | None:
    """The abstract's range, from the falls of table 2 that there are."""
    found = [
        (file, _CALLED.get(str(row.get("target")), fall.split("/")[1]), float(row["measured"]))
        for fall in _FALLS
        for file, row in about(CLAIMS[fall], results)
        if is_number(row.get("measured")) and is_number(row.get("printed")) and "caveat" not in row
    ]
    if not found:
        return None
    low, high = min(claim.values), max(claim.values)
    inside = [low - 0.05 <= value <= high + 0.05 for _, _, value in found]
    return Verdict(
        status="holds" if all(inside) else "holds differently" if any(inside) else "does not hold",
        measured="; ".join(f"{target} {figure(value, 'share')}" for _, target, value in found),
        why=f"less attention than from scratch, {figure(statistics.fmean(v for *_, v in found), 'share')} on average; "
        "more is below nothing. What accuracy did stands beside each of them",
        files=tuple(dict.fromkeys(file for file, _, _ in found)),
        command=f"{reproduce(results, 'transfer')} --data p12=FOLDER --data wearable=FOLDER",
    )


def _itself(claim: Claim, results: Results) -> Verdict:
    return Verdict(
        status="a setting, no result",
        why="by definition: what was trained on the task stands beside itself",
        command=reproduce(results, "transfer"),
    )


_SELF = ("transfer/from/physionet/physionet", "transfer/from/copy/copy")

FIRST: Mapping[str, Rule] = {
    **{name: _to_activity if _ACTIVITY in name else _transferred for name in CLAIMS if name.startswith("transfer/")},
    "transfer/fall": _in_short,
}
"""Before what rows of runs say by themselves."""

RULES: Mapping[str, Rule] = {
    **{name: _itself for name in _SELF if name in CLAIMS},
    **{name: _credentialed for name in CLAIMS if name.startswith("transfer/") and "mimic3" in name},
}
