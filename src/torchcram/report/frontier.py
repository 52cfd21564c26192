"""Charts of what trained runs trade: quality against reads and time, reads against price and against what recurs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from torchcram.paper.claims.claim import Unit
from torchcram.paper.verdicts import Results
from torchcram.paper.verdicts.verdict import spread
from torchcram.report import chart, drawing
from torchcram.report.chart import Axis, Curve
from torchcram.report.markdown import table
from torchcram.report.runs import Points
from torchcram.report.words import percent, plain

Row = Mapping[str, Any]

_COLOURS = {
    "cram": "ink",
    "gate": "action1",
    "seqboat+cost": "novel",
    "mod": "recurring",
    "entropy": "other1",
    "semantic memory without L_cons": "other2",
    "what does not recur": "dynamics",
}
_QUALITY = {"srcd": ("accuracy", "queries answered"), "text": ("bits_per_byte", "bits a byte")}
_SHORT = {"semantic memory without L_cons": "no L_cons"}
_TASKS = {"srcd": "SRCD", "text": "language modelling of novels"}
_SAME = {"srcd": "half a point of accuracy", "text": "a hundredth of a bit"}
TASKS = tuple(_TASKS)
_NAMES = {"srcd": "SRCD", "text": "Novels"}
_WIDTH, _HEIGHT = 440, 300  # of a chart
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


def picture(results: Results, task: str) -> str | None:
    """The frontier on a task as a drawing of its own; None if there are no rows of it."""
    charts = _pair(results, task, standalone=drawing.ALONE)
    if not charts:
        return None
    quality = _QUALITY[task][1]
    return drawing.beside(f"{quality} over reads and over time, {_TASKS[task]}", [(x, _WIDTH) for x in charts], _HEIGHT)


def document(results: Results, folder: str) -> str:
    """Pictures and what they show as a part of a Markdown page; empty if there is nothing to show.

    folder: Where the page finds the result files.
    """
    parts = []
    for (task, (quality, words)), file in zip(_QUALITY.items(), _FILES, strict=True):
        runs = [row for row in _heard(results, file, "run on the frontier") if row.get(quality) is not None]
        if not runs:
            continue
        name = f"{words} over reads and over the time of a forward pass, {_TASKS[task]}"
        parts += [f"![{name}](images/frontier-{task}.svg)", _note(task, runs) + _no_matter(task)]
        heads = ("model", "setting", words, "positions that read", "ms", "no other model is as good for less")
        best = {(row["model"], row["place"]): _unbeaten(row) for row in _heard(results, file, "place on the frontier")}
        lines = table(heads, [[*_place(mine, quality), best[key]] for key, mine in _places(runs).items()])
        parts.append(f"<details><summary>{_TASKS[task]}, place by place</summary>\n\n{lines}\n\n</details>")
        parts.append(f"[{file}]({folder}/{file}.json)")
    return "\n\n".join(["### The frontier", *parts]) if parts else ""


def _places(runs: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in runs:
        found.setdefault((str(row["model"]), str(row["place"])), []).append(row)
    return found


def _place(mine: Sequence[Row], quality: str) -> list[str]:
    """Seeds of one place as a line: mean ± deviation, and a time."""
    unit: Unit = "number" if quality == "bits_per_byte" else "share"
    times = _times(mine)
    return [
        str(mine[0]["model"]),
        f"`{mine[0]['place']}`",
        spread([float(row[quality]) for row in mine], unit),
        spread([float(row["reads"]) for row in mine], "share"),
        _ms(times[0]) if times else "–",
    ]


def _unbeaten(place: Row) -> str:
    """Of which of its two costs."""
    return " and ".join(
        told for cost, told in (("reads", "reads"), ("forward_ms", "time")) if place.get(f"unbeaten by {cost}")
    )


def _note(task: str, runs: Sequence[Row]) -> str:
    seeds = len({row["seed"] for row in runs})
    said = f"mean of {seeds} seeds, time of one of them" if seeds > 1 else "one seed"
    note = f"Each model along what trades the one for the other; {said}."
    if task == "text":
        note += " Fewer bits are better. Models with a price were released at a step, as the text was still learned."
    return note + _standing(task, runs) + _steady(runs)


def _standing(task: str, runs: Sequence[Row]) -> str:
    """CRAM where it is best, on average over seeds, beside the best of the others; and who takes longest."""
    quality, _ = _QUALITY[task]
    sign, form, unit = (-1, _bits, " bits a byte") if quality == "bits_per_byte" else (1, _share, "")
    places: dict[str, list[list[Row]]] = {}
    for (model, _), mine in _places([row for row in runs if row.get(quality) is not None]).items():
        places.setdefault(model, []).append(mine)

    def good(mine: Sequence[Row]) -> float:
        return statistics.fmean(row[quality] for row in mine)

    def told(mine: Sequence[Row]) -> str:
        reads = percent(statistics.fmean(row["reads"] for row in mine))
        return f"{form(good(mine))}{unit} with {reads} reads" + "".join(f" in {_ms(x)} ms" for x in _times(mine)[:1])

    best = {model: max(each, key=lambda mine: sign * good(mine)) for model, each in places.items()}
    others = [model for model in best if model != "cram"]
    if "cram" not in best or not others:
        return ""
    rival = max(others, key=lambda model: sign * good(best[model]))
    said = f" CRAM is best at {told(best['cram'])}; of the others {rival} is, at {told(best[rival])}."
    times = {model: max((x for mine in each for x in _times(mine)), default=0.0) for model, each in places.items()}
    slowest = max(times, key=lambda model: times[model])
    return said + (" No other model takes as long as CRAM." if slowest == "cram" and times["cram"] else "")


def _times(rows: Sequence[Row]) -> list[float]:
    return [float(row["forward_ms"]) for row in rows if row.get("forward_ms") is not None]


def _no_matter(task: str) -> str:
    """What models may differ by and still be as good, or as cheap, for the table's last column."""
    return f" In the last column, {_SAME[task]}, or a twentieth of the reads or of the time, makes no difference."


def _steady(runs: Sequence[Row]) -> str:
    """How much the time of one and the same model changes with what it reads: what else differs, models differ in."""
    times: dict[str, list[float]] = {}
    for row in runs:
        if row.get("forward_ms") is not None:
            times.setdefault(str(row["model"]), []).append(float(row["forward_ms"]))
    most = max((max(each) / min(each) for each in times.values() if len(each) > 1), default=None)
    if most is None:
        return ""
    return (
        " Time is of a forward pass as it is, not compiled; along its own setting no model's changes by more than "
        f"{percent(most - 1, 0)}."
    )


def _pair(results: Results, task: str, standalone: str = "") -> list[str]:
    """Quality over reads, and over time where it was taken; nothing without rows."""
    quality, words = _QUALITY[task]
    found = [row for file in _FILES for row in _heard(results, file, "place on the frontier")]
    mine = [row for row in found if row["task"] == task and row.get(quality) is not None]
    if not mine:
        return []
    form = _bits if quality == "bits_per_byte" else _share
    y = _axis([row[quality] for row in mine], form, words, zero=False)

    def drawn(told: str, x: Axis, key: str, rows: Sequence[Row], at: Callable[[float], str]) -> str:
        name = f"{words} over {told}, {_TASKS[task]}"
        more = {"standalone": standalone, "heading": f"{_NAMES[task]}: over {told}"} if standalone else {}
        return _chart(name, x, y, _curves(rows, key, quality), form, at, **more)

    charts = [drawn("reads", _READS, "reads", mine, percent)]
    timed = [row for row in mine if row.get("forward_ms") is not None]
    if timed:
        x = _axis([row["forward_ms"] for row in timed], _ms, "milliseconds of a forward pass")
        charts.append(drawn("time", x, "forward_ms", timed, _ms))
    return charts


def _frontiers(results: Results) -> list[str]:
    found = []
    for task in _QUALITY:
        charts = _pair(results, task)
        runs = [row for file in _FILES for row in _heard(results, file, "run on the frontier") if row["task"] == task]
        if charts:
            found.append(_figure(f"The frontier: {_TASKS[task]}", charts, _note(task, runs)))
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
            colour=_COLOURS.get(label, "other3"),
            middle=points,
            bolder=label == "cram",
        )
        for label, points in drawn.items()
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
        width=_WIDTH,
        height=_HEIGHT,
        **more,
    )


def _figure(title: str, charts: Sequence[str], note: str) -> str:
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    pair = "".join(f"<div>{each}</div>" for each in charts)
    return f'<div class="figure"><h3>{escape(title)}</h3><div class="pair">{pair}</div>{said}</div>'
