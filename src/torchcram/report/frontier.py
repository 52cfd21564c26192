"""Charts of what trained runs trade: quality against reads and time, reads against price and against what recurs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from torchcram.paper.verdicts import Results
from torchcram.report import chart
from torchcram.report.chart import Axis, Curve
from torchcram.report.runs import Points
from torchcram.report.words import percent, plain

Row = Mapping[str, Any]

_COLOURS = ("ink", "action1", "novel", "recurring", "other1", "other2")
_QUALITY = {"srcd": ("accuracy", "queries answered"), "text": ("bits_per_byte", "bits a byte")}
_SHORT = {"semantic memory without L_cons": "no L_cons"}
_TASKS = {"srcd": "SRCD", "text": "language modelling of novels"}
_READS = Axis(
    low=0.0, high=1.0, bend=0.004, ticks=[(v, percent(v, 0)) for v in (0, 0.01, 0.1, 1)], title="positions that read"
)

_FILES = "paper-frontier", "paper-frontier-text"


def section(results: Results) -> str:
    """All of them that there are rows for; nothing if there are none."""
    found = [*_frontiers(results), *_prices(results), *_recurring(results)]
    return "".join(found)


def _heard(results: Results, file: str, what: str) -> list[Row]:
    rows = results.get(file, {}).get("rows", ())
    return [row for row in rows if row.get("what") == what and "caveat" not in row]


def _frontiers(results: Results) -> list[str]:
    places, runs = (
        [row for file in _FILES for row in _heard(results, file, what)]
        for what in ("place on the frontier", "run on the frontier")
    )
    found = []
    for task, (quality, words) in _QUALITY.items():
        mine = [row for row in places if row["task"] == task and row.get(quality) is not None]
        if not mine:
            continue
        form = _bits if quality == "bits_per_byte" else _share
        y = _axis([row[quality] for row in mine], form, words, zero=False)
        seeds = len({row["seed"] for row in runs if row["task"] == task})
        timed = [row for row in mine if row.get("forward_ms") is not None]
        charts = [
            _chart(f"{words} over reads, {_TASKS[task]}", _READS, y, _curves(mine, "reads", quality), form, percent)
        ]
        if timed:
            x = _axis([row["forward_ms"] for row in timed], _ms, "milliseconds of a forward pass")
            told = f"{words} over time, {_TASKS[task]}"
            charts.append(_chart(told, x, y, _curves(timed, "forward_ms", quality), form, _ms))
        note = f"Each model along what trades the one for the other; mean of {seeds} seeds, time of one of them."
        if task == "text":
            note += (
                " Fewer bits are better. Models with a price were released at a step, as the text was still learned."
            )
        found.append(_figure(f"The frontier: {_TASKS[task]}", charts, note))
    return found


def _prices(results: Results) -> list[str]:
    rows = _heard(results, "paper-theory", "reads at a price")
    if not rows:
        return []
    curves = _means(rows, "price", "reads")
    x = _axis([row["price"] for row in rows], _nats, "price of a read, nats", bend=0.02)
    y = _axis([row["reads"] for row in rows], _share, "positions that read")
    bound = statistics.fmean(row["guessing_bound"] for row in rows)
    levels = [chart.Level(label=f"static bound, about {_share(bound)}", value=bound)]
    drawn = _chart("Reads over the price of a read", x, y, curves, _share, _nats, levels=levels)
    novel = [row for row in rows if row.get("accuracy_novel") is not None]
    kept = _axis([row["accuracy_novel"] for row in novel], _share, "novel keys answered")
    right = _chart("Novel keys over the price", x, kept, _means(novel, "price", "accuracy_novel"), _share, _nats)
    below = [model for model, points in curves.items() if model != "cram" and min(reads for _, reads in points) < bound]
    note = ""
    if below:
        note = f"Static, and yet below the bound at some price: {', '.join(below)}. Weights learn recurring answers by "
        note += "heart; whether novel keys are still answered is beside it."
    return [_figure("Theorem 1: reads over the price of a read", [drawn, right], note)]


def _recurring(results: Results) -> list[str]:
    rows = _heard(results, "paper-theory", "reads over the recurring share")
    if len({row["recurring"] for row in rows}) < 2:
        return []
    ours = _means(rows, "recurring", "ratio")["cram"]
    curves = {"cram": ours, "what does not recur": [(x, 1 - x) for x, _ in ours]}
    x = Axis(low=0, high=1, ticks=[(v, percent(v, 0)) for v in (0, 0.25, 0.5, 0.75, 1)], title="queries that recur")
    y = _axis([value for points in curves.values() for _, value in points], _share, "reads, of a static router's")
    drawn = _chart("Reads over the recurring share", x, y, curves, _share, lambda v: percent(v, 0))
    return [_figure("Theorem 3: attention over what recurs", [drawn], "")]


def _curves(rows: Sequence[Row], x: str, y: str) -> dict[str, Points]:
    """Places of each model, in order."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        found.setdefault(str(row["model"]), []).append((float(row[x]), float(row[y])))
    return {model: sorted(points) for model, points in found.items()}


def _means(rows: Sequence[Row], x: str, y: str) -> dict[str, Points]:
    """Over seeds."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        found.setdefault(str(row["model"]), {}).setdefault(float(row[x]), []).append(float(row[y]))
    return {
        model: [(at, statistics.fmean(values)) for at, values in sorted(places.items())]
        for model, places in found.items()
    }


def _axis(
    values: Sequence[float], form: Callable[[float], str], title: str, *, zero: bool = True, bend: float | None = None
) -> Axis:
    axis = chart.linear_axis(values, form, title=title, zero=zero)
    if bend is None:
        return axis
    ticks = [(v, form(v)) for v in sorted(set(values))]
    return Axis(low=0, high=max(values), ticks=ticks, title=title, bend=bend)


def _share(value: float) -> str:
    return percent(value, 1)


def _bits(value: float) -> str:
    return plain(value, 2)


def _ms(value: float) -> str:
    return plain(value, 1)


def _nats(value: float) -> str:
    return plain(value, 3)


def _chart(
    name: str,
    x: Axis,
    y: Axis,
    drawn: Mapping[str, Points],
    form: Callable[[float], str],
    at: Callable[[float], str],
    **more: Any,
) -> str:
    curves = [
        Curve(
            label=_SHORT.get(label, label),
            colour=_COLOURS[i % len(_COLOURS)],
            middle=points,
            bolder=label == "cram",
        )
        for i, (label, points) in enumerate(drawn.items())
    ]
    told = f"{x.title} "
    return chart.line_chart(
        name=name,
        x=x,
        y=y,
        curves=curves,
        form=form,
        at=lambda value: told + at(value),
        beside=True,
        dots=True,
        height=280,
        **more,
    )


def _figure(title: str, charts: Sequence[str], note: str) -> str:
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    pair = "".join(f"<div>{each}</div>" for each in charts)
    return f'<div class="figure"><h3>{escape(title)}</h3><div class="pair">{pair}</div>{said}</div>'
