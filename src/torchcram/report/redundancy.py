"""The page about a pretrained model: what can be told of its attention without attending, and what that is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torchcram.report import chart
from torchcram.report.chart import Axis, Curve
from torchcram.report.html import document, section
from torchcram.report.words import percent, plain

Row = Mapping[str, Any]

_PART = "without bias"
_LADDER = {
    "zero": "nothing",
    "mean": "the mean",
    "position": "the mean at a position",
    "token": "the mean for a token",
    "shuffled": "linear, of another place's input",
    "linear": "linear",
    "adapter": "narrow, with a ReLU",
    "descent": "linear, by descent",
}


HEADS = ("layers", "R as printed", "the mean's R", "excess R", "centred R²", "cosine")
"""Of the table of groups."""


def groups(rows: Sequence[Row], *, intervals: bool = True) -> list[list[str]]:
    """Thirds of the layers: what the linear probe reaches, with intervals over documents."""
    lines = []
    for group in ("early", "middle", "late", "overall"):
        linear, mean = (_pick(rows, "group", group=group, predictor=name) for name in ("linear", "mean"))
        if linear is None or mean is None:
            continue
        form = _between if intervals else _only
        cells = [form(linear, key) for key in ("printed", "excess", "r2", "cosine")]
        lines.append([group, cells[0], plain(mean["printed"]), *cells[1:]])
    return lines


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
        linear, mean = (_pick(mine, "group", group="overall", predictor=name) for name in ("linear", "mean"))
        assert linear is not None
        assert mean is not None
        loss = next(row["loss"] for row in mine if row["what"] == "loss")
        whole = [row for row in mine if row["what"] == "layers" and row["predictor"] == "linear"][-1]
        reads = next((row["reads"] for row in mine if row["what"] == "reads"), None)
        cells = [loss, linear["printed"], mean["printed"], linear["r2"], whole["loss"], whole["recovered"]]
        lines.append([f"{step:,}", *map(plain, cells), percent(reads)])
    return heads, lines


def verdict(rows: Sequence[Row]) -> str:
    """What it comes to, in plain words."""
    name = next((row["model"] for row in rows if row["what"] == "about"), "the model")
    linear, mean = (_pick(rows, "group", group="overall", predictor=key) for key in ("linear", "mean"))
    loss = next(row for row in rows if row["what"] == "loss")
    growing = _best_first(rows, "linear")
    if linear is None or mean is None or not growing:
        return f"{name}: too little was measured for a verdict."
    cheap = [row for row in growing if row["cost"] <= 0.01 * loss["loss"]]
    count, layers = (cheap[-1]["count"] if cheap else 0), len(growing)
    told = percent(max(0.0, linear["r2"]))
    return (
        f"A linear map of what goes into attention tells {told} of the variance of what comes out of it; as the paper "
        f"measures it, that is R = {plain(linear['printed'])}, and the mean alone has {plain(mean['printed'])}. In "
        f"{count} of {layers} layers of {name} the map can take attention's place for at most 1 % more loss; in all of "
        f"them it costs {plain(growing[-1]['cost'])} nats a token."
    )


def page(data: Row) -> str:
    """One self-contained HTML page."""
    every: Sequence[Row] = data["rows"]
    rows = last(every)
    about = next(row for row in rows if row["what"] == "about")
    noted = f"; {about['note']}" if about["note"] else ""
    lead = (
        f"{about['model']}{noted}. Probes learned from {about['train_tokens']:,} tokens, judged on "
        f"{about['eval_tokens']:,} of {about['documents']} documents, windows of {about['window']:,}."
    )
    body = [
        f'<header><p class="kicker">torchcram probe</p><h1>{escape(verdict(rows))}</h1>'
        f'<p class="lead">{escape(lead)}</p></header>',
        section(
            "Layers",
            "The linear probe, positions from the fifth on; 95 % over documents, if there are ten or more. R is the "
            "paper's measure; what the mean reaches by it is no knowledge of attention at all.",
            _table(HEADS, groups(rows)),
        ),
        section("Over training", "The linear probe at each checkpoint.", _table(*over_training(every)))
        if any(row.get("step") is not None for row in every)
        else "",
        section("The ladder", "Centred R² of every predictor, layer by layer.", _ladder(rows)),
        section(
            "Heads",
            "The linear probe, head by head: R as the paper measures it, and centred R².",
            f"{_heat(rows, 'printed')}{_heat(rows, 'r2')}{_shares(rows)}",
        ),
        section(
            "What attention is worth",
            "Loss with attention replaced in more and more layers, those first whose replacement by the linear probe "
            "alone costs least. Probes were learned from the whole model, not from one with layers replaced.",
            _removed(rows),
        ),
        section(
            "Copying",
            "Random tokens, all of them twice: what looks back to the first time can tell the second. A model whose "
            "loss is no less than a guess's does not copy.",
            _copies(rows),
        ),
        section("Made by", f"{data['machine']}; commit {data['commit']}", f"<pre>{escape(data['command'])}</pre>"),
    ]
    return document(f"{about['model']}: torchcram probe", body, style=_STYLE)


_STYLE = """
table.heat { border-spacing: 1px; border-collapse: separate; }
table.heat td { padding: .15rem .3rem; text-align: right; font-size: .8rem; }
"""


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _ladder(rows: Sequence[Row]) -> str:
    found = [row for row in rows if _is(row, "layer")]
    names = [name for name in _LADDER if any(row["predictor"] == name for row in found) and name != "zero"]
    layers = sorted({row["layer"] for row in found})
    by_key = {(row["layer"], row["predictor"]): row["r2"] for row in found}
    lines = [[str(layer + 1), *(plain(by_key[layer, name]) for name in names)] for layer in layers]
    return _table(("layer", *(_LADDER[name] for name in names)), lines)


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
        f'<h3>{escape(title)}</h3><div class="scroll"><table class="heat"><thead><tr><th>layer</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _shares(rows: Sequence[Row]) -> str:
    lines = [
        [
            {"printed": "R as printed", "r2": "centred R²"}[row["measure"]],
            *(percent(row[key]) for key in ("high", "middle", "low")),
        ]
        for row in rows
        if _is(row, "heads")
    ]
    return _table(("heads by", "above 0.8", "0.5 to 0.8", "below 0.5"), lines)


def _removed(rows: Sequence[Row]) -> str:
    base = next(row for row in rows if row["what"] == "loss")["loss"]
    curves = []
    for name, colour in (("mean", "other0"), ("adapter", "other1"), ("linear", "novel")):
        found = _best_first(rows, name)
        if found:
            points = [(0.0, base), *((float(row["count"]), float(row["loss"])) for row in found)]
            curves.append(Curve(label=_LADDER[name], colour=colour, middle=points, bolder=name == "linear"))
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
    intact = next(row for row in found if row["replaced"] == "nothing")
    lines = [["nothing", "–", plain(intact["loss"])]]
    for name in dict.fromkeys(row["predictor"] for row in found if row["predictor"]):
        alone = [row for row in found if row["predictor"] == name and row["replaced"] != "all layers"]
        worst = max(alone, key=lambda row: float(row["loss"]))
        lines.append(
            [
                f"the layer that matters most ({int(worst['replaced'].split()[1]) + 1})",
                _LADDER[name],
                plain(worst["loss"]),
            ]
        )
        (whole,) = [row for row in found if row["predictor"] == name and row["replaced"] == "all layers"]
        lines.append(["all layers", _LADDER[name], plain(whole["loss"])])
    return _table(("replaced", "by", "nats a token, the second time"), lines) + (
        f'<p class="note">A guess among all tokens costs {plain(intact["chance"])} nats.</p>'
    )


def _best_first(rows: Sequence[Row], predictor: str) -> list[Row]:
    """More and more layers replaced by a predictor, those first that cost least alone."""
    wanted = {"what": "layers", "order": "best first", "predictor": predictor}
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def _between(row: Row, key: str) -> str:
    if row[f"{key}_low"] is None:
        return plain(row[key])
    return f"{plain(row[key])} ({plain(row[f'{key}_low'])} to {plain(row[f'{key}_high'])})"


def _only(row: Row, key: str) -> str:
    return plain(row[key])


def _is(row: Row, what: str, weights: str = "pretrained", positions: str = "later") -> bool:
    wanted = {"what": what, "weights": weights, "positions": positions}
    return all(row.get(key) == value for key, value in wanted.items()) and row.get("part", _PART) == _PART


def _pick(rows: Sequence[Row], what: str, **wanted: object) -> Row | None:
    found = (row for row in rows if _is(row, what) and all(row[key] == value for key, value in wanted.items()))
    return next(found, None)
