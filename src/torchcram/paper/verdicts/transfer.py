"""Verdicts on transfer: attention on another task, with memory and router as they were."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts import timeseries, unmeasured
from torchcram.paper.verdicts.verdict import (
    Results,
    Row,
    Rule,
    Status,
    Verdict,
    about,
    figure,
    is_number,
    of_runs,
    reproduce,
)

_FALLS = (
    "transfer/copy/fall",
    "transfer/physionet/fall",
    "transfer/from/srcd/associative",
    "transfer/activity/fall",
)
"""From SRCD: the targets of table 2, and the one that table 3 adds."""
_ACTIVITY = "activity"
_LEARNED = 0.1
"""Accuracy from scratch below which a task was not learned."""
_LOST = 0.05
"""Accuracy or AUROC, less than from scratch, that fewer reads do not make up for."""
_CALLED = {"p12": "PhysioNet", "wearable": "wearable sensors"}


def _transferred(claim: Claim, results: Results) -> Verdict | None:
    """As rows say it, and what became of accuracy: fewer reads mean little where it fell with them."""
    verdict = of_runs(claim, results)
    if verdict is None:
        return None
    return replace(_beside_accuracy(claim, results, verdict), command=_command(claim, results))


def _command(claim: Claim, results: Results) -> str:
    """With the data that it takes."""
    parts = (("p12", "physionet"), ("mimic3", "mimic3"), (_ACTIVITY, _ACTIVITY))
    data = [name for name, part in parts if part in claim.id]
    return " ".join([reproduce(results, "transfer"), *(f"--data {name}=FOLDER" for name in data)])


def _credentialed(claim: Claim, results: Results) -> Verdict:
    return replace(timeseries.credentialed(claim, results), command=_command(claim, results))


def _to_activity(claim: Claim, results: Results) -> Verdict:
    """The same of what people do: from the whole data a verdict, from others of the kind numbers alone."""
    command = _command(claim, results)
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
    """What became of reads and of accuracy, and a verdict that regards both."""
    for _, row in about(claim, results):
        ends = [
            next((value for key, value in row.items() if key.endswith(end) and _is_score(key)), None)
            for end in ("_from_scratch", "_transferred")
        ]
        if all(map(is_number, ends)):
            before, after = (float(value) for value in ends if value is not None)
            measure = "AUROC" if row.get("measure") == "auroc" else "accuracy"
            scores = f"{measure} {figure(before, 'share')} from scratch, {figure(after, 'share')} after transfer"
            if claim.unit == "share" and is_number(row.get("measured")):
                verdict = _fallen(claim, row, verdict, f"{measure} is lost" if before - after > _LOST else "")
            else:
                verdict = replace(verdict, why=verdict.why.removeprefix(f"{row.get('what')}; "))  # as the claim says
            verdict = replace(verdict, why=f"{verdict.why}; {scores}{_dense(claim, row)}")
            if measure == "accuracy" and before < _LEARNED:
                why = f"at this size the target is not learned from scratch, so nothing follows; {verdict.why}"
                return replace(verdict, status="not testable here", why=why)
            return verdict
    return verdict


def _fallen(claim: Claim, row: Row, verdict: Verdict, lost: str) -> Verdict:
    """A fall in plain words. With accuracy lost it is not the paper's; and what seeds cannot tell from the printed one,
    nor from none, decides nothing."""
    fall, printed, status = float(row["measured"]), float(claim.value or 0), verdict.status
    side = "more is read, not less" if fall < 0 else f"a {'smaller' if fall < printed else 'larger'} fall than printed"
    first = "as printed" if status == "holds" else side
    if lost:
        first, status = lost, "holds differently" if status == "holds" else status
    elif _possible(row, 0.0) and _possible(row, printed):
        first, status = f"seeds differ too much for {row.get('runs')} of them to tell", "not testable here"
    return replace(
        verdict,
        status=status,
        measured=f"{row.get('model')}: {_change(fall)} ({row.get('runs')} seeds)",
        why="; ".join(filter(None, [first, _levels(row)])),
    )


def _change(fall: float) -> str:
    """A fall of reads as a share of them; a rise as how many times as many."""
    return figure(fall, "share") if fall >= 0 else f"{figure(1 - fall, 'number')} times as many reads"


def _levels(row: Row) -> str:
    """What a fall is from and to, and whether seeds differ by as much."""
    levels = _ends(row)
    if levels is None:
        return ""
    words = [
        f"{figure(mean, 'share')} ± {figure(deviation, 'share', 2)} {told}"
        for (mean, deviation), told in zip(levels, ("from scratch", "after transfer"), strict=True)
    ]
    same = ", which is no more than seeds differ by" if _possible(row, 0.0) else ""
    return f"reads in a layer {', '.join(words)}{same}"


def _ends(row: Row) -> list[tuple[float, float]] | None:
    """Reads from scratch and after transfer: means over seeds, and deviations."""
    found = []
    for name in ("from_scratch", "transferred"):
        mean, deviation = row.get(f"layer_reads_{name}"), row.get(f"layer_reads_{name}_sd")
        if mean is None or deviation is None:
            return None
        found.append((float(mean), float(deviation)))
    return found


def _possible(row: Row, fall: float) -> bool:
    """Whether reads may have fallen by this share, two standard errors allowed for. Divides by no reads, of which there
    may be next to none."""
    levels = _ends(row)
    if levels is None:
        return False
    (before, before_sd), (after, after_sd) = levels
    left = 1 - fall
    error = math.hypot(after_sd, left * before_sd) / math.sqrt(int(row.get("runs") or 1))
    return abs(after - left * before) <= 2 * error


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
    """The abstract's range, from what is said of each target."""
    found: dict[str, tuple[float, Verdict]] = {}
    for name in _FALLS:
        target = CLAIMS[name]
        verdict = _rule(name)(target, results)
        row = next((row for _, row in about(target, results) if _is_heard(row)), None)
        if verdict is not None and row is not None:
            called = _CALLED.get(str(row.get("target")), target.id.split("/")[3 if "/from/" in name else 1])
            found[called] = float(row["measured"]), verdict
    if not found:
        return None
    decided = {called: verdict for called, (_, verdict) in found.items() if verdict.status != "not testable here"}
    statuses = {verdict.status for verdict in decided.values()}
    mixed: Status = "does not hold" if statuses == {"does not hold"} else "holds differently"
    undecided = [called for called in found if called not in decided]
    words = "what reads fall by, or how many times as many there are; what became of accuracy stands beside each"
    if undecided:
        words += f". Of {' and '.join(undecided)} nothing follows, as is said there"
    return Verdict(
        status="not testable here" if not decided else "holds" if statuses == {"holds"} else mixed,
        measured="; ".join(f"{called} {_change(fall)}" for called, (fall, _) in found.items()),
        why=words,
        files=tuple(dict.fromkeys(file for _, verdict in found.values() for file in verdict.files)),
        command=f"{reproduce(results, 'transfer')} --data p12=FOLDER --data wearable=FOLDER",
    )


def _is_heard(row: Row) -> bool:
    return is_number(row.get("measured")) and is_number(row.get("printed")) and "caveat" not in row


def _rule(name: str) -> Rule:
    return _to_activity if _ACTIVITY in name else _transferred


def _itself(claim: Claim, results: Results) -> Verdict:
    return Verdict(
        status="a setting, no result",
        why="by definition: what was trained on the task stands beside itself",
        command=reproduce(results, "transfer"),
    )


_SELF = ("transfer/from/physionet/physionet", "transfer/from/copy/copy")

FIRST: Mapping[str, Rule] = {
    **{name: _rule(name) for name in CLAIMS if name.startswith("transfer/")},
    "transfer/fall": _in_short,
}
"""Before what rows of runs say by themselves."""

RULES: Mapping[str, Rule] = {
    **{name: _itself for name in _SELF if name in CLAIMS},
    **{name: _credentialed for name in CLAIMS if name.startswith("transfer/") and "mimic3" in name},
}
