"""The page about a pretrained model: what can be told of its attention without attending, and what that is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from torchcram.report import chart
from torchcram.report.chart import Axis, Curve
from torchcram.report.html import document, section
from torchcram.report.words import percent, plain

Row = Mapping[str, Any]

_PART = "without bias"
LADDER = {
    "zero": "nothing",
    "mean": "the mean",
    "position": "the mean at a position",
    "token": "the mean for a token",
    "shuffled": "linear, of another place's input",
    "linear": "linear",
    "adapter": "narrow, with a ReLU",
    "descent": "linear, by descent",
}


CHEAP = 0.01
"""Of the loss: what more it may be for attention to count as replaceable."""

SLIGHT = 0.001
"""Of the loss: what the mean must clearly cost over training for shares of it to be told."""

GUESSED = 0.9
"""Of what a guess costs: from this loss on, a model hardly predicts a text."""

HEADS = (
    *("layers", "R as printed", "the mean's R", "excess R", "centred R²", "cosine"),
    *("recovered", "R², random weights"),
)
"""Of the table of groups."""


def groups(rows: Sequence[Row], *, intervals: bool = True) -> list[list[str]]:
    """Thirds of the layers: what the linear probe reaches, with intervals over documents, and with random weights."""
    lines = []
    for group in ("early", "middle", "late", "overall"):
        linear, mean = (pick(rows, "group", group=group, predictor=name) for name in ("linear", "mean"))
        if linear is None or mean is None:
            continue
        form = between if intervals else _only
        cells = [form(linear, key) for key in ("printed", "excess", "r2", "cosine")]
        control = pick(rows, "group", weights="random", group=group, predictor="linear")
        wanted = {"what": "one of a group", "group": group, "predictor": "linear"}
        saved = next((row for row in rows if wanted.items() <= row.items()), None)
        ends = [form(row, key) if row else "–" for row, key in ((saved, "recovered"), (control, "r2"))]
        lines.append([group, cells[0], plain(mean["printed"]), *cells[1:], *ends])
    return lines


def parts(rows: Sequence[Row]) -> list[list[Row]]:
    """Those of each model, on each text that was judged on."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["model"], row["text"]), []).append(row)
    return list(found.values())


def last(rows: Sequence[Row]) -> list[Row]:
    """Those of the last step, if there are several."""
    step = max((row["step"] for row in rows if row.get("step") is not None), default=None)
    return [row for row in rows if row.get("step") == step]


def over_training(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[list[str]]]:
    """A line a step: its loss, what the linear probe reaches overall, and what it costs in all layers."""
    heads = (
        "step",
        "nats",
        "R as printed",
        "the mean's R",
        "centred R²",
        "all layers replaced: nats",
        "recovered",
        "reads",
    )
    lines = []
    for step in sorted({row["step"] for row in rows}):
        mine = [row for row in rows if row["step"] == step]
        linear, mean = (pick(mine, "group", group="overall", predictor=name) for name in ("linear", "mean"))
        assert linear is not None
        assert mean is not None
        loss = next(row["loss"] for row in mine if row["what"] == "loss")
        whole, without = (growing(mine, name, "first to last")[-1] for name in ("linear", "mean"))
        saved = whole["recovered"] if costly(without) else None
        reads = next((row["reads"] for row in mine if row["what"] == "reads"), None)
        cells = [loss, linear["printed"], mean["printed"], linear["r2"], whole["loss"], saved]
        lines.append([f"{step:,}", *map(plain, cells), percent(reads)])
    return heads, lines


def costly(mean: Row) -> bool:
    """Whether the mean clearly costs more than next to nothing, so that one can speak of shares of it."""
    return (mean["cost_low"] or 0.0) > SLIGHT * float(mean["intact"])


def own_loss(rows: Sequence[Row]) -> str:
    """Of the model as it is, beside that of a guess; nothing if it was not measured."""
    intact, guess = _intact(rows)
    if intact is None:
        return ""
    told = f"The model's own loss on this text is {plain(intact)} nats a token"
    return f"{told}; a uniform guess over its vocabulary costs {plain(guess)}." if guess is not None else f"{told}."


def _intact(rows: Sequence[Row]) -> tuple[float | None, float | None]:
    """Nats a token with all attention in place, and of a uniform guess; earlier files do not tell the vocabulary."""
    intact = next((float(row["loss"]) for row in rows if row["what"] == "loss"), None)
    words = next((row.get("vocabulary") for row in rows if row["what"] == "about"), None)
    return intact, math.log(words) if words else None


def verdict(rows: Sequence[Row]) -> str:
    """What it comes to, in plain words."""
    about: Row = next((row for row in rows if row["what"] == "about"), {"model": "the model", "text": "this text"})
    name = about["model"]
    linear, mean = (pick(rows, "group", group="overall", predictor=key) for key in ("linear", "mean"))
    several = growing(rows, "linear")
    if linear is None or linear["r2"] is None or mean is None or not several:
        return f"{name}: too little was measured for a verdict; give more text, and more --tested-tokens."
    # Of all layers, on the whole text: there is no order to be chosen on a half of it.
    whole, layers = growing(rows, "linear", "first to last")[-1], several[-1]["count"]
    count, other = (_cheap(growing(rows, key)) for key in ("linear", "mean"))
    if count:
        least = f"in {count} of {layers} layers, chosen on the other half of the text, it cost at most 1 % of the loss"
        same = "the mean, put into layers in the same order,"
        if other:
            least += f" ({same} in {other})"
        else:
            few = several[0]["count"]
            least += f" ({same} cost more than that in the first{f' {few}' if few > 1 else ''} already)"
    else:
        cost = several[0]
        sure_of_it = cost["cost_low"] is None or cost["cost_low"] > CHEAP * cost["intact"]
        least = (
            f"even in {cost['count']} of {layers} layers, chosen on the other half of the text, it cost "
            f"{_of_loss(cost)} of the loss, which {'is' if sure_of_it else 'may be'} more than 1 %"
        )
    sure = ""
    intact, guess = _intact(rows)
    if intact is not None and guess is not None and intact >= GUESSED * guess:
        sure = (
            f" But the model hardly predicts this text: its loss is {plain(intact)}, a guess costs {plain(guess)}, so "
            "costs say little."
        )
    if whole["cost_low"] is None:
        sure += " This text is too short to tell how sure the costs are."
    elif several[-1]["cost_low"] is None:
        sure += " Half of this text is too short to tell how sure the number of layers is."
    return (
        f"{name}, on {about['text']}: a linear map of what goes into attention tells {variance(linear)} of the "
        f"variance of what comes out; R as the paper measures it is {plain(linear['printed'])}, the mean's alone "
        f"{plain(mean['printed'])}. Instead of attention {least}; in all layers, {between(whole, 'cost')} nats a "
        f"token.{sure}"
    )


def _of_loss(row: Row) -> str:
    """What a replacement costs, as a share of the loss."""
    shares = {key: None if row[key] is None else row[key] / row["intact"] for key in ("cost", "cost_low", "cost_high")}
    return between(shares, "cost", lambda value: percent(value, 1))


def _cheap(several: Sequence[Row]) -> int:
    """Layers replaced before the cost, or the upper end of its interval, is above 1 % of the loss."""
    count = 0
    for row in several:
        if (row["cost"] if row["cost_high"] is None else row["cost_high"]) > CHEAP * row["intact"]:
            break
        count = row["count"]
    return count


def page(data: Row) -> str:
    """One self-contained HTML page, a part for each text."""
    body = [part for every in parts(data["rows"]) for part in _part(every)]
    made = section("Made by", f"{data['machine']}; commit {data['commit']}", f"<pre>{escape(data['command'])}</pre>")
    names = ", ".join(dict.fromkeys(row["model"] for row in data["rows"]))
    return document(f"{names}: torchcram probe", [*body, made], style=_STYLE)


def _part(every: Sequence[Row]) -> list[str]:
    """What was found on one text."""
    rows = last(every)
    about = next(row for row in rows if row["what"] == "about")
    noted = f"; {about['note']}" if about["note"] else ""
    lead = (
        f"{about['model']}{noted}. Probes learned from {about['train_tokens']:,} tokens of {about['learned_from']}, "
        "judged on "
        f"{about['eval_tokens']:,} of {about['documents']} documents, windows of {about['window']:,}. {own_loss(rows)}"
    ).rstrip()
    _, _, said = verdict(rows).partition(": ")
    return [
        f'<header class="text"><p class="kicker">torchcram probe</p>'
        f"<h1>{escape(about['model'])}, on {escape(about['text'])}</h1>"
        f'<p class="verdict">{escape(said[:1].upper() + said[1:])}</p><p class="lead">{escape(lead)}</p></header>',
        section(
            "Layers",
            "The linear probe, positions from the fifth on; 95 % over documents, or over passages of them "
            "where they are fewer than ten. R is the paper's measure; what the mean reaches by it is no knowledge of "
            "attention at all. Recovered: one layer at a time, the share of the mean's cost that the probe saves.",
            _table(HEADS, groups(rows)),
        ),
        section("Over training", "The linear probe at each checkpoint.", _table(*over_training(every)))
        if any(row.get("step") is not None for row in every)
        else "",
        section(
            "The ladder",
            "Centred R² of every predictor, layer by layer; in the last column, in a model with random weights.",
            _ladder(rows),
        ),
        section(
            "Heads",
            "The linear probe, head by head: R as the paper measures it, and centred R².",
            f'<div class="maps">{_heat(rows, "printed")}{_heat(rows, "r2")}</div>{_shares(rows)}',
        ),
        section(
            "One layer without attention",
            "Nats a token more when a predictor stands for the attention of a single layer; 95 % likewise. "
            "Recovered: the share of the mean's cost that a predictor saves, told only where "
            "the mean's cost is clearly above 0.",
            _alone(rows),
        ),
        section(
            "More and more layers without attention",
            "Loss with attention replaced, those layers first whose replacement by the linear probe alone costs least: "
            "their order was chosen on another half of the text than these losses are of. Probes were learned from the "
            "whole model, not from one with layers replaced.",
            _removed(rows),
        ),
        section(
            "Copying",
            "Tokens of the text in random order, all of them twice: what looks back to the first time can tell the "
            "second. 95 % over sequences. Where the loss is not below a guess's, no copying was seen here. With all "
            "layers replaced nothing can be looked back to, whatever stands in their place.",
            _copies(rows),
        ),
    ]


_STYLE = """
header.text:not(:first-of-type) { border-top: 2px solid currentColor; margin-top: 3rem; padding-top: 1rem; }
p.verdict { font-size: 1.15rem; line-height: 1.5; max-width: 46rem; }
div.maps { display: flex; flex-wrap: wrap; gap: 0 2.5rem; margin-bottom: 1rem; }
div.maps h3 { margin: .75rem 0 .25rem; }
table.heat { border-spacing: 1px; border-collapse: separate; width: auto; }
table.heat td, table.heat thead th { padding: .15rem .3rem; text-align: right; font-size: .8rem; }
table.heat th:first-child { text-align: left; }
"""


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _ladder(rows: Sequence[Row]) -> str:
    found = [row for row in rows if _is(row, "layer")]
    names = [name for name in LADDER if any(row["predictor"] == name for row in found) and name != "zero"]
    layers = sorted({row["layer"] for row in found})
    by_key = {(row["layer"], row["predictor"]): row["r2"] for row in found}
    control = {row["layer"]: row["r2"] for row in rows if _is(row, "layer", "random") and row["predictor"] == "linear"}
    lines = [
        [str(layer + 1), *(plain(by_key[layer, name]) for name in names), plain(control.get(layer))] for layer in layers
    ]
    return _table(("layer", *(LADDER[name] for name in names), "linear, random weights"), lines)


def _heat(rows: Sequence[Row], measure: str) -> str:
    found = {(row["layer"], row["head"]): row[measure] for row in rows if _is(row, "head")}
    layers, heads = (sorted({key[place] for key in found}) for place in (0, 1))
    title = {"printed": "R as printed", "r2": "centred R²"}[measure]
    head = "".join(f"<th>{number + 1}</th>" for number in heads)
    body = ""
    for layer in layers:
        cells = ""
        for number in heads:
            value = found[layer, number]
            share = 100 * min(1.0, max(0.0, value or 0.0))
            shade = f"background:color-mix(in srgb, currentColor {share / 2:.0f}%, transparent)"
            cells += f'<td style="{shade}">{plain(value)}</td>'
        body += f"<tr><th>{layer + 1}</th>{cells}</tr>"
    return (
        f'<div class="scroll"><h3>{escape(title)}</h3><table class="heat"><thead><tr><th>layer</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _shares(rows: Sequence[Row]) -> str:
    lines = [
        [
            {"printed": "R as printed", "r2": "centred R²"}[row["measure"]],
            *(percent(row[key], 0) for key in ("high", "middle", "low")),
        ]
        for row in rows
        if _is(row, "heads")
    ]
    return _table(("heads by", "above 0.8", "0.5 to 0.8", "below 0.5"), lines)


def _alone(rows: Sequence[Row]) -> str:
    found = {(row["layer"], row["predictor"]): row for row in rows if row["what"] == "one layer"}
    names = list(dict.fromkeys(name for _, name in found))
    lines = []
    for layer in sorted({layer for layer, _ in found}):
        cells = [between(found[layer, name], "cost", _nats) for name in names]
        cells += [between(found[layer, name], "recovered") for name in names if name != "mean"]
        lines.append([str(layer + 1), *cells])
    heads = [f"{LADDER[name]}: cost" for name in names]
    heads += [f"{LADDER[name]}: recovered" for name in names if name != "mean"]
    return _table(("layer", *heads), lines)


def _removed(rows: Sequence[Row]) -> str:
    curves = []
    for name, colour in (("mean", "other0"), ("adapter", "other1"), ("linear", "novel")):
        found = growing(rows, name)
        if found:
            points = [(0.0, float(found[0]["intact"])), *((float(row["count"]), float(row["loss"])) for row in found)]
            curves.append(Curve(label=LADDER[name], colour=colour, middle=points, bolder=name == "linear"))
    if not curves:
        return ""
    count = max(point[0] for curve in curves for point in curve.middle)
    across = Axis(low=0, high=count, ticks=[(x, f"{x:.0f}") for x in chart.nice(0, count, 6)], title="layers replaced")
    down = chart.linear_axis([y for curve in curves for _, y in curve.middle], plain, title="nats a token", zero=False)
    return chart.line_chart(
        name="Loss against layers replaced", x=across, y=down, curves=curves, form=plain, width=720, height=360
    )


def _copies(rows: Sequence[Row]) -> str:
    found = [row for row in rows if row["what"] == "copying"]
    if not found:
        return "<p>Not measured: this model has a state besides its attention, and may copy by it.</p>"
    intact = next(row for row in found if row["replaced"] == "nothing")
    lines = [["nothing", "–", between(intact, "loss")]]
    for name in dict.fromkeys(row["predictor"] for row in found if row["predictor"]):
        layer, worst = max(single(found, name), key=lambda each: float(each[1]["loss"]))
        lines.append([f"layer {layer}, with the highest loss of all here", LADDER[name], between(worst, "loss")])
        (whole,) = [row for row in found if row["predictor"] == name and row["replaced"] == "all layers"]
        lines.append(["all layers", LADDER[name], between(whole, "loss")])
    return _table(("replaced", "by", "nats a token, the second time"), lines) + (
        f'<p class="note">A guess among the tokens of the text costs {plain(intact["chance"])} nats.</p>'
    )


def single(rows: Sequence[Row], predictor: str) -> list[tuple[int, Row]]:
    """Of copying, with the attention of a single layer replaced by a predictor: the layer, from 1 on, and its row."""
    found = (row for row in rows if row["what"] == "copying" and row["predictor"] == predictor)
    return [(int(row["replaced"].split()[1]) + 1, row) for row in found if row["replaced"] != "all layers"]


def growing(rows: Sequence[Row], predictor: str, order: str = "best first") -> list[Row]:
    """More and more layers replaced by a predictor."""
    wanted = {"what": "layers", "order": order, "predictor": predictor}
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def between(row: Row, key: str, form: Callable[[float | None], str] = plain) -> str:
    if row[f"{key}_low"] is None:
        return form(row[key])
    return f"{form(row[key])} ({form(row[f'{key}_low'])} to {form(row[f'{key}_high'])})"


def variance(row: Row) -> str:
    """The share of it that is told."""
    return between(row, "r2", lambda value: percent(value, 0)) if row["r2"] > 0 else "nothing"


def _nats(value: float | None) -> str:
    return plain(value, 4)


def _only(row: Row, key: str) -> str:
    return plain(row[key])


def _is(row: Row, what: str, weights: str = "pretrained", positions: str = "later") -> bool:
    wanted = {"what": what, "weights": weights, "positions": positions}
    return all(row.get(key) == value for key, value in wanted.items()) and row.get("part", _PART) == _PART


def pick(rows: Sequence[Row], what: str, weights: str = "pretrained", **wanted: object) -> Row | None:
    found = (row for row in rows if _is(row, what, weights) and all(row[key] == value for key, value in wanted.items()))
    return next(found, None)
