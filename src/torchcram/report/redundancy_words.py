"""What probes of attention come to, in words: each sentence is one of several, and the numbers decide which."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torchcram.report.redundancy import between, growing, last, pick
from torchcram.report.words import percent, plain

Row = Mapping[str, Any]

CLAIMED = 0.88
"""Share of attention that the paper calls redundant."""


def inflation(rows: Sequence[Row]) -> list[str]:
    """What R says here, and what it does not."""
    found = {
        (weights, name): pick(rows, "group", weights=weights, group="overall", predictor=name)
        for weights, name in (("pretrained", "linear"), ("pretrained", "mean"), ("random", "linear"))
    }
    linear, mean, control = found.values()
    if linear is None or mean is None or linear["r2"] is None:
        return ["Too little was measured to say anything."]
    lines = []
    if mean["printed"] > 0:
        share, whole = mean["printed"] / max(linear["printed"], 1e-9), plain(linear["printed"])
        lines.append(
            f"The mean alone, which sees nothing of the input, has R {plain(mean['printed'])}: "
            + (f"{percent(share, 0)} of the probe's {whole}." if share < 1 else f"no less than the probe's {whole}.")
        )
    else:
        lines.append(
            f"The mean alone has R {plain(mean['printed'])}, not above that of saying nothing (0): over all layers, "
            "it does not raise R here."
        )
    where = _against(linear, "r2", CLAIMED)
    lines.append(
        f"Of the variance the probe tells {percent(linear['r2'], 0)}{_interval(linear, 'r2')}, which is {where} the "
        f"{percent(CLAIMED, 0)} that the paper calls redundant. That was said of other models."
    )
    if control is not None and control["r2"] is not None:
        how = _compared(control, linear, "r2")
        line = (
            f"With random weights, which have learned nothing, R² is {plain(control['r2'])}, {how} the trained model's."
        )
        if how == "clearly higher than":
            line += " So a high R² needs no learning."
        lines.append(line)
    return lines


def function(rows: Sequence[Row]) -> list[str]:
    """What replacing attention costs, in words."""
    alone = [row for row in rows if row["what"] == "one layer"]
    means, linear = ({row["layer"]: row for row in alone if row["predictor"] == name} for name in ("mean", "linear"))
    told = [linear[layer]["recovered"] for layer in means if linear[layer]["recovered"] is not None]
    lines = []
    if told:
        lines.append(
            f"In {len(told)} of {len(means)} layers the mean in attention's place clearly costs something; of that the "
            f"linear probe recovers {percent(statistics.median(told), 0)} in the median layer, "
            f"{percent(min(told), 0)} at least and {percent(max(told), 0)} at most."
        )
    elif means and all(row["cost_low"] is None for row in means.values()):
        lines.append(
            "The text is too short to tell in which layers the mean in attention's place clearly costs something."
        )
    else:
        lines.append("In no layer does the mean in attention's place clearly cost something on this much text.")
    if whole := growing(rows, "linear", "first to last"):
        cost = whole[-1]
        times = math.exp(cost["cost"])
        line = f"In all layers at once the linear probe costs {between(cost, 'cost')} nats a token"
        line += f", a perplexity {plain(times, 1)} times as high" if times > 1 else ""
        saved = cost["recovered"]
        line += f", and recovers {percent(saved, 0)} of what the mean costs." if saved is not None else "."
        if cost["cost_low"] is None:
            line += " The text is too short to tell how sure that is."
        elif cost["cost_low"] > 0:
            line += " So it cannot stand for all attention without loss."
        else:
            line += " That is not clearly above 0."
        lines.append(line)
    return lines


def copying(rows: Sequence[Row]) -> list[str]:
    """Whether what was copied by attention is still copied without it."""
    found = [row for row in rows if row["what"] == "copying"]
    if not found:
        return ["Copying was not measured: the model carries a state besides."]
    intact = next(row for row in found if row["replaced"] == "nothing")
    whole = next((row for row in found if (row["replaced"], row["predictor"]) == ("all layers", "linear")), None)
    line = (
        f"Copying random tokens that come a second time: {between(intact, 'loss')} nats a token, where a guess costs "
        f"{plain(intact['chance'])}"
    )
    if (intact["loss"] if intact["loss_high"] is None else intact["loss_high"]) >= intact["chance"]:
        return [f"{line}: no copying was seen, so none could be lost."]
    if whole is None:
        return [f"{line}."]
    line += f"; with the linear probe in all layers, {between(whole, 'loss')}"
    if whole["loss_low"] is None or intact["loss_high"] is None:
        return [f"{line}. There are too few sequences to tell how sure that is."]
    if whole["loss_low"] >= intact["chance"]:
        return [f"{line}: nothing of it is left."]
    if whole["loss_low"] > intact["loss_high"]:
        return [f"{line}: clearly worse."]
    return [f"{line}: not clearly worse."]


def changes(rows: Sequence[Row]) -> list[str]:
    """How a model's loss and redundancy moved, in words."""
    stages = stages_of(rows)
    name = one(last(rows), "about")["model"]
    if len(stages) < 2:
        return [f"{name}: one checkpoint only."]
    early, before, end = stages[0], stages[-2], stages[-1]
    lines = [
        f"{name}: from step {before[0]['step']:,} to {end[0]['step']:,} the loss went from "
        f"{plain(stage(before)[2], 3)} to {plain(stage(end)[2], 3)} nats."
    ]
    begin = next((each for each in stages if each[0]["step"] > 0), early)
    for key, words in (("printed", "R as printed"), ("r2", "Centred R²")):
        known = [(each[0]["step"], stage(each)[0]) for each in stages if stage(each)[0][key] is not None]
        if len(known) < 2:
            continue
        top, bottom = (choose(known, key=lambda each: each[1][key]) for choose in (max, min))
        first, final = stage(begin)[0], stage(end)[0]
        lines.append(
            f"{words}: {_moved(first, final, key)} from step {begin[0]['step']:,} ({plain(first[key])}) to the last "
            f"({plain(final[key])}); highest at step {top[0]:,} ({plain(top[1][key])}), lowest at {bottom[0]:,} "
            f"({plain(bottom[1][key])})."
        )
    return lines


def compared(every: Sequence[Sequence[Row]]) -> list[str]:
    """Whether CRAM's redundancy falls where the Transformer's does not, on each text."""
    by_text: dict[str, dict[str, Sequence[Row]]] = {}
    for rows in every:
        by_text.setdefault(rows[0]["text"], {})[one(last(rows), "about")["kind"]] = rows
    lines = []
    for text, kinds in by_text.items():
        if not {"cram", "transformer"} <= kinds.keys():
            continue
        moved = {kind: _movement(kinds[kind]) for kind in ("cram", "transformer")}
        falls = {kind: way == "fell" for kind, way in moved.items()}
        said = f"centred R² {moved['cram']} for CRAM, and {moved['transformer']} for the Transformer"
        if falls["cram"] and not falls["transformer"]:
            answer = f"Yes, in these runs: {said}"
        else:
            answer = f"No, not in these runs: {said}"
        reads = stage(stages_of(kinds["cram"])[-1])[4]
        executed = ""
        if reads is not None:
            executed = (
                f" At the end CRAM reads at {percent(reads['reads'])} of the positions"
                f"{'' if reads['released'] else ', since it was never released'}."
            )
        lines.append(f"Does CRAM's redundancy fall where the Transformer's does not (`{text}`)? {answer}.{executed}")
    return lines


def _movement(rows: Sequence[Row]) -> str:
    """Of centred R², from the first step after 0 to the last."""
    stages = [each for each in stages_of(rows) if each[0]["step"] > 0] or stages_of(rows)
    return _moved(stage(stages[0])[0], stage(stages[-1])[0], "r2")


def _moved(first: Row, final: Row, key: str) -> str:
    ends = [first[f"{key}_low"], first[f"{key}_high"], final[f"{key}_low"], final[f"{key}_high"]]
    if any(end is None for end in ends):
        return "is not known to have changed (too little text)"
    if ends[2] > ends[1]:
        return "rose"
    return "fell" if ends[3] < ends[0] else "did not clearly change"


def stages_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of each step, in order."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["step"], []).append(row)
    return [found[step] for step in sorted(found)]


def stage(rows: Sequence[Row]) -> tuple[Row, Row, float, Row, Row | None]:
    """Of a step: the linear probe, the mean, the loss, all layers replaced, and what was executed."""
    linear, mean = (pick(rows, "group", group="overall", predictor=name) for name in ("linear", "mean"))
    assert linear is not None
    assert mean is not None
    reads = next((row for row in rows if row["what"] == "reads"), None)
    return linear, mean, one(rows, "loss")["loss"], growing(rows, "linear", "first to last")[-1], reads


def one(rows: Sequence[Row], what: str) -> Row:
    """The first row of a kind."""
    return next(row for row in rows if row["what"] == what)


def _against(row: Row, key: str, value: float) -> str:
    """Where an interval lies."""
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    if low is None:
        return f"{'above' if row[key] > value else 'below'}, on a text too short to be sure,"
    if high < value:
        return "clearly below"
    return "clearly above" if low > value else "not clearly different from"


def _compared(row: Row, other: Row, key: str) -> str:
    if any(each[f"{key}_low"] is None for each in (row, other)):
        return "not known to differ from"
    if row[f"{key}_low"] > other[f"{key}_high"]:
        return "clearly higher than"
    return "clearly lower than" if row[f"{key}_high"] < other[f"{key}_low"] else "not clearly different from"


def _interval(row: Row, key: str) -> str:
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return "" if low is None else f" ({percent(low, 0)} to {percent(high, 0)})"
