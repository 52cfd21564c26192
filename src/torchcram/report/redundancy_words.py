"""What probes of attention come to, in words: each sentence is one of several, and the numbers decide which."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torchcram.report.redundancy import between, growing, last, pick, single, variance
from torchcram.report.words import percent, plain

Row = Mapping[str, Any]

CLAIMED = 0.88
"""The mean of the paper's two Rs, which it calls the share of attention that is redundant."""


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
    where = _against(linear, "printed", CLAIMED)
    lines.append(
        f"R is {between(linear, 'printed')}, {where} the {CLAIMED} for which the paper calls {percent(CLAIMED, 0)} of "
        "attention redundant: of other models, by probes that learned from the same kind of text as they were judged "
        f"on. Of the variance the probe tells {variance(linear)}."
    )
    if control is not None and control["r2"] is not None:
        how = _compared(control, linear, "r2")
        line = (
            f"With random weights, which have learned nothing, R² is {plain(control['r2'])}, {how} the trained model's."
        )
        if how == "clearly higher than":
            line += " So an R² like the trained model's needs no learning."
        lines.append(line)
    return lines


def function(rows: Sequence[Row]) -> list[str]:
    """What replacing attention costs, in words."""
    alone = [row for row in rows if row["what"] == "one layer"]
    means, linear = ({row["layer"]: row for row in alone if row["predictor"] == name} for name in ("mean", "linear"))
    told = [linear[layer]["recovered"] for layer in means if linear[layer]["recovered"] is not None]
    lines = []
    if told:
        line = (
            f"In {len(told)} of {len(means)} layers the mean in attention's place clearly costs something; of that the "
            f"linear probe recovers {percent(statistics.median(told), 0)}"
        )
        spread = f" in the median layer, {percent(min(told), 0)} at least and {percent(max(told), 0)} at most"
        lines.append(f"{line}{spread if len(told) > 1 else ''}.")
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
        line += f", a perplexity {plain(times, 1)} times as high" if times >= 1.05 else ""
        saved = cost["recovered"]
        line += f", and recovers {percent(saved, 0)} of what the mean costs." if saved is not None else "."
        if cost["cost_low"] is None:
            line += " The text is too short to tell how sure that is."
        elif cost["cost_low"] <= 0:
            line += " The cost is not clearly above 0."
        line += " Where tokens meet by attention alone, each is then seen by itself, whatever the probe is."
        lines.append(line)
    return lines


def copying(rows: Sequence[Row]) -> list[str]:
    """Whether what was copied by attention is still copied without a layer's; without all of it nothing could be."""
    found = [row for row in rows if row["what"] == "copying"]
    if not found:
        return ["Copying was not measured: the model carries a state besides."]
    intact = next(row for row in found if row["replaced"] == "nothing")
    line = (
        f"Copying random tokens that come a second time: {between(intact, 'loss')} nats a token, where a guess costs "
        f"{plain(intact['chance'])}"
    )
    if (intact["loss"] if intact["loss_high"] is None else intact["loss_high"]) >= intact["chance"]:
        return [f"{line}: no copying was seen, so none could be lost."]
    alone = single(found, "linear")
    layer, worst = max(alone, key=lambda each: float(each[1]["loss"]))
    most = f"the loss is highest, {between(worst, 'loss')}, with layer {layer} replaced"
    if intact["loss_high"] is None:
        return [
            f"{line}. With the linear probe in one layer {most}. There are too few sequences to tell how sure that is."
        ]
    harmed = sum(row["loss_low"] > intact["loss_high"] for _, row in alone)
    return [
        f"{line}. With the linear probe in one layer it is clearly worse for {harmed or 'none'} of {len(alone)} "
        f"layers; {most}."
    ]


def changes(rows: Sequence[Row]) -> list[str]:
    """How a model's loss and redundancy moved, in words."""
    stages = stages_of(rows)
    name = one(last(rows), "about")["model"]
    if len(stages) < 2:
        return [f"{name}: one checkpoint only."]
    before, end = stages[-2:]
    lines = [
        f"{name}: from step {before[0]['step']:,} to {end[0]['step']:,} the loss went from "
        f"{plain(stage(before)[2], 3)} to {plain(stage(end)[2], 3)} nats."
    ]
    begin = _begin(stages)
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
        stages = {kind: stages_of(kinds[kind]) for kind in ("cram", "transformer")}
        if any(len(each) < 2 for each in stages.values()):
            continue
        cram, other = (_moved(stage(_begin(each))[0], stage(each[-1])[0], "r2") for each in stages.values())
        if _UNKNOWN in (cram, other):
            answer = "These runs do not tell"
        else:
            answer = "Yes, in these runs" if cram == "fell" != other else "No, not in these runs"
        spans = [f"step {_begin(each)[0]['step']:,} to {each[-1][0]['step']:,}" for each in stages.values()]
        reads = [_executed(each) for each in stages["cram"]]
        after = [each for each in reads if each is not None and each["released"]]
        executed = (
            f"CRAM was released before {len(after)} of its {len(reads)} checkpoints; at the last of them it reads at "
            f"{percent(after[-1]['reads'])} of the positions."
            if after
            else f"CRAM was released before none of its {len(reads)} checkpoints."
        )
        if 0 < len(after) < len(reads):
            held, end = (stage(stages["cram"][at]) for at in (-len(after) - 1, -1))
            step = stages["cram"][-len(after) - 1][0]["step"]
            executed += (
                f" Its R² {_moved(held[0], end[0], 'r2')} from the last checkpoint before that (step {step:,}, "
                f"{plain(held[0]['r2'])}) to the end ({plain(end[0]['r2'])})."
            )
        lines.append(
            f"Does CRAM's redundancy fall where the Transformer's does not (`{text}`)? {answer}: centred R² {cram} for "
            f"CRAM ({spans[0]}), and {other} for the Transformer ({spans[1]}). {executed} The two are not quite alike: "
            "CRAM's queries, keys and values also see its working memory, which the probe does not, and a position "
            "does not read itself, which in a Transformer is a part that a linear map can tell."
        )
    return lines


_UNKNOWN = "is not known to have changed (too little text)"


def _begin(stages: Sequence[Sequence[Row]]) -> Sequence[Row]:
    """What changes are told from: the first step that was trained, or step 0 if only the last was."""
    return next((each for each in stages[:-1] if each[0]["step"] > 0), stages[0])


def _moved(first: Row, final: Row, key: str) -> str:
    ends = [first[f"{key}_low"], first[f"{key}_high"], final[f"{key}_low"], final[f"{key}_high"]]
    if any(end is None for end in ends):
        return _UNKNOWN
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
    return linear, mean, one(rows, "loss")["loss"], growing(rows, "linear", "first to last")[-1], _executed(rows)


def _executed(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row["what"] == "reads"), None)


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
