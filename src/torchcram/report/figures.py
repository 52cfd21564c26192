"""The paper's figures: what each plots, as printed, and beside it what was measured here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from torchcram.paper.claims import CLAIMS, CURVES
from torchcram.paper.verdicts import Results
from torchcram.report import chart, curves
from torchcram.report.chart import Axis, Curve
from torchcram.report.curves import Drawn
from torchcram.report.runs import Points
from torchcram.report.words import plain, short

Chart = tuple[str, str]
"""A chart, and what has to be said of it; an empty one was not measured."""

_COLOURS = ("ink", "action1", "novel", "recurring", "other1")


def section(results: Results) -> str:
    """Every figure that plots something: the paper's on the left, ours on the right."""
    reads, quality = curves.over_training(results, "reads"), curves.over_training(results, "mean_quality")
    spread = curves.densities(results)
    attention = _over_training("Attention over training, here", reads, _axis_of_reads(), _percent, 100)
    densities = _quality_chart("How quality is spread, here", spread.curves), spread.note
    return "".join(
        (
            _pair("Figure 2, left: attention over training", _attention("phase/attention", others=True), attention),
            _pair(
                "Figure 2, right: how quality is spread",
                _densities("phase/quality-start", "phase/quality-3000", "phase/quality-after"),
                densities,
            ),
            _pair("Figure 3, A: attention, once more", _attention("phase/attention-again"), attention),
            _pair(
                "Figure 3, B: mean quality",
                _mean_quality(),
                _over_training("Mean quality over training, here", quality, _shares("mean q̄"), plain),
            ),
            _pair(
                "Figure 3, C: how quality is spread, once more",
                _densities("phase/quality-3000-again", "phase/quality-3100", "phase/quality-4000"),
                densities,
            ),
            _pair(
                "Figure 4, A: reads of a recurring pattern, by how often it was seen",
                _practice(results),
                _our_practice(curves.practice(results)),
            ),
            _pair("Figure 4, B: exponents", _exponents(results), None),
        )
    )


def _pair(title: str, printed: Chart, ours: Chart | None) -> str:
    """Two charts side by side; None: both are in the first."""
    nothing = "Not yet measured here: <code>torchcram reproduce</code>, or <code>torchcram explore</code> for one run."
    right, heading = "", "as the paper plots it, and here"
    if ours is not None:
        heading = "as the paper plots it"
        drawn = ours[0] or f'<p class="note">{nothing}</p>'
        right = f'<div><h4>here</h4>{drawn}<p class="note">{escape(ours[1])}</p></div>'
    return (
        f'<div class="figure"><h3>{escape(title)}</h3><div class="pair"><div><h4>{heading}</h4>'
        f'{printed[0]}<p class="note">{escape(printed[1])}</p></div>{right}</div></div>'
    )


def _percent(value: float) -> str:
    return f"{plain(value, 1)} %"


def _attention(name: str, *, others: bool = False) -> Chart:
    plotted = CURVES[name]
    end = plotted.points[-1][0]
    drawn: dict[str, Points] = {"CRAM": plotted.points}
    note = plotted.note
    if others:
        # As the figure's source has them, but for a random term of up to 0.8; its angles are in degrees.
        waves: dict[str, Callable[[float], float]] = {
            "SeqBoat": lambda x: 23 + 1.5 * math.sin(math.radians(x * 0.18)),
            "Jamba": lambda x: 12.5 + 0.5 * math.sin(math.radians(x * 0.12)),
        }
        steps = [end * i / 60 for i in range(61)]
        drawn |= {label: [(x, wave(x)) for x in steps] for label, wave in waves.items()}
        note += f" SeqBoat: {CLAIMS['phase/seqboat-plot'].note}"
    y = chart.linear_axis([v for points in drawn.values() for _, v in points], _percent, title=plotted.y)
    return _chart(f"{plotted.item}: {plotted.measures}", chart.steps_axis(end, 340), y, drawn, _percent), note


def _mean_quality() -> Chart:
    plotted = CURVES["phase/quality-mean"]
    levels = [chart.Level(label="q* 0.83", value=CLAIMS["phase/quality-threshold"].value)]
    x = chart.steps_axis(plotted.points[-1][0], 340)
    name = f"{plotted.item}: {plotted.measures}"
    return _chart(name, x, _shares(plotted.y), {"q̄": plotted.points}, plain, levels=levels), plotted.note


def _over_training(name: str, drawn: Drawn, y: Axis, form: Callable[[float], str], times: float = 1) -> Chart:
    if not drawn.curves:
        return "", drawn.note
    shown = {label: [(x, times * value) for x, value in points] for label, points in drawn.curves.items()}
    end = max(points[-1][0] for points in shown.values())
    marks = [chart.Mark(label="released", step=drawn.released)] if drawn.released is not None else []
    return _chart(name, chart.steps_axis(end, 340), y, shown, form, marks=marks), drawn.note


def _densities(*names: str) -> Chart:
    plotted = [CURVES[name] for name in names]
    drawn = {curve.measures.removeprefix("quality ").removeprefix("at "): curve.points for curve in plotted}
    notes = dict.fromkeys(f"{sentence}." for c in plotted for sentence in c.note.rstrip(".").split(". "))
    return _quality_chart(f"{plotted[0].item}: how quality is spread", drawn), " ".join(notes)


def _quality_chart(name: str, drawn: Mapping[str, Points]) -> str:
    if not drawn:
        return ""
    x = Axis(low=0, high=1.05, ticks=[(v, plain(v)) for v in (0, 0.25, 0.5, 0.75, 1)], title="quality q")
    y = chart.linear_axis([v for points in drawn.values() for _, v in points], plain, title="density")
    return _chart(name, x, y, drawn, plain, at=lambda q: f"q = {plain(q, 3)}", beside=True, colours=_COLOURS[1:])


def _practice(results: Results) -> Chart:
    plotted = CURVES["practice/episodic"]
    ks = [1.1**i for i in range(49)]
    laws = {"its “fit”": (0.89, 0.43), "“human”": (0.89, 0.41)}
    for row in results.get("paper-practice", {}).get("rows", ()):
        if row["what"] == "power through the plotted points":
            laws[f"refit, {row['gamma']:.2f}"] = (row["start"], row["gamma"])
    drawn: dict[str, Points] = {"plotted": plotted.points}
    drawn |= {label: [(k, start * k**-gamma) for k in ks] for label, (start, gamma) in laws.items()}
    return _by_repetition(f"{plotted.item}: {plotted.measures}", plotted.y, drawn), plotted.note


def _our_practice(drawn: Drawn) -> Chart:
    if not drawn.curves:
        return "", drawn.note
    return _by_repetition("Reads of recurring patterns, here", "share that read", drawn.curves), drawn.note


def _by_repetition(name: str, title: str, drawn: Mapping[str, Points]) -> str:
    end = max(points[-1][0] for points in drawn.values())
    ticks = [(float(10**i), f"{10**i:,}") for i in range(6) if 10**i <= end * 1.001]
    x = Axis(low=1, high=end, ticks=ticks, title="repetition count k", bend=0.2)
    return _chart(name, x, _shares(title), drawn, plain, at=lambda k: f"k = {short(k)}")


def _exponents(results: Results) -> Chart:
    rows = [
        ("CRAM, printed", 0.43, 0.39, 0.47),
        ("Rickard (1997)", 0.41, 0.35, 0.47),
        ("Newell, Rosenbloom (1981)", 0.45, 0.40, 0.50),
    ]
    for row in results.get("paper-practice", {}).get("rows", ()):
        if row["what"] == "γ by least squares of logarithms":
            rows.append(("the paper's points, refitted", row["measured"], row["low"], row["high"]))
    for row in results.get("paper-practice", {}).get("rows", ()):
        if row["what"] == "γ of one power law without a floor" and "caveat" not in row and row.get("task") == "srcd":
            recipe = "paper's recipe" if "paper" in row["model"] else "ours"
            rows.append((f"decisions, {recipe}, {row['counted']}", row["measured"], row["low"], row["high"]))
    least, most = min(0.3, *(low for *_, low, _ in rows)), max(0.65, *(high for *_, high in rows))
    axis = Axis(low=least, high=most, ticks=[(v, f"{v:g}") for v in chart.nice(least, most, 4)], title="γ")
    drawn = chart.intervals(name="Exponents and what they may be", rows=rows, axis=axis)
    return drawn, "Exponents of response times, compared with the exponent of a probability."


def _axis_of_reads() -> Axis:
    return chart.linear_axis([0, 100], _percent, title="positions that read (%)")


def _shares(title: str) -> Axis:
    return Axis(low=0, high=1, ticks=[(v, plain(v)) for v in (0, 0.25, 0.5, 0.75, 1)], title=title)


def _chart(
    name: str,
    x: Axis,
    y: Axis,
    drawn: Mapping[str, Points],
    form: Callable[[float], str],
    *,
    colours: Sequence[str] = _COLOURS,
    **more: Any,
) -> str:
    """A chart of curves by label; the first of several is the bolder one, unless they are equals."""
    shown = [
        Curve(
            label=label.removeprefix("cram, "),
            colour=colours[i % len(colours)],
            middle=points,
            bolder=i == 0 and colours is _COLOURS,
        )
        for i, (label, points) in enumerate(drawn.items())
    ]
    return chart.line_chart(name=name, x=x, y=y, curves=shown, form=form, **more)
