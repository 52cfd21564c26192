"""The paper's figures: what each plots, as printed, and beside it what was measured here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from torchcram.paper.claims import CLAIMS, CURVES
from torchcram.paper.verdicts import Results
from torchcram.report import chart
from torchcram.report.chart import Axis, Curve
from torchcram.report.runs import Points
from torchcram.report.words import plain, short

Row = Mapping[str, Any]

_BINS = 20  # of the histograms of q
_COLOURS = ("action1", "recurring", "novel")


def section(results: Results, explored: Row | None) -> str:
    """Every figure that plots something: the paper's on the left, ours on the right."""
    rows = explored["rows"] if explored is not None else ()
    ours = [row for row in rows if row["what"] == "evaluation"]
    return "".join(
        (
            _pair("Figure 2, left: attention over training", _attention("phase/attention", others=True), _reads(ours)),
            _pair(
                "Figure 2, right: how quality is spread",
                _densities("phase/quality-start", "phase/quality-3000", "phase/quality-after"),
                _histograms(ours),
            ),
            _pair("Figure 3, A: attention, once more", _attention("phase/attention-again"), _reads(ours)),
            _pair("Figure 3, B: mean quality", _mean_quality(), _our_quality(ours)),
            _pair(
                "Figure 3, C: how quality is spread, once more",
                _densities("phase/quality-3000-again", "phase/quality-3100", "phase/quality-4000"),
                _histograms(ours),
            ),
            _pair(
                "Figure 4, A: reads of a recurring pattern, by how often it was seen",
                _practice(results),
                _our_practice([row for row in rows if row["what"] == "practice"]),
            ),
            _pair("Figure 4, B: exponents", _exponents(results), ("", "")),
        )
    )


def _pair(title: str, printed: tuple[str, str], ours: tuple[str, str]) -> str:
    """Two charts side by side, each with what has to be said of it."""
    nothing = "Not yet measured here: <code>torchcram explore RUN --out results/explored.json</code> records a run."
    if not ours[0] and not ours[1]:
        right = ""
    else:
        right = (
            f"<div><h4>here</h4>{ours[0] or f'<p class=note>{nothing}</p>'}<p class=note>{escape(ours[1])}</p></div>"
        )
    return (
        f'<div class="figure"><h3>{escape(title)}</h3><div class="pair"><div><h4>as the paper plots it</h4>'
        f"{printed[0]}<p class=note>{escape(printed[1])}</p></div>{right}</div></div>"
    )


def _percent(value: float) -> str:
    return f"{plain(value, 1)} %"


def _attention(name: str, *, others: bool = False) -> tuple[str, str]:
    plotted = CURVES[name]
    end = plotted.points[-1][0]
    curves = [Curve(label="CRAM", colour="ink", middle=plotted.points, bolder=True)]
    note = plotted.note
    if others:
        # As the figure's source has them, but for a random term of up to 0.8.
        waves: dict[str, Callable[[float], float]] = {
            "SeqBoat": lambda x: 23 + 1.5 * math.sin(x * 0.18),
            "Jamba": lambda x: 12.5 + 0.5 * math.sin(x * 0.12),
        }
        steps = [end * i / 60 for i in range(61)]
        for (label, wave), colour in zip(waves.items(), ("novel", "other1"), strict=True):
            # Angles are in degrees there.
            curves.append(Curve(label=label, colour=colour, middle=[(x, wave(math.radians(x))) for x in steps]))
        note += f" {CLAIMS['phase/seqboat-plot'].note}"
    y = chart.linear_axis([v for c in curves for _, v in c.middle], _percent, title=plotted.y)
    return _chart(f"{plotted.item}: {plotted.measures}", chart.steps_axis(end, 340), y, curves, _percent), note


def _reads(ours: Sequence[Row]) -> tuple[str, str]:
    curves = [
        Curve(label=label, colour=colour, middle=_over_steps(ours, key, 100), bolder=key == "reads")
        for label, key, colour in (("positions", "reads", "ink"), ("a layer", "layer_reads", "action1"))
    ]
    if not ours:
        return "", _which(ours)
    y = chart.linear_axis([0, 100], _percent, title="attention fraction (%)")
    return _over_training("Attention over training, here", ours, y, curves, _percent), _which(ours)


def _mean_quality() -> tuple[str, str]:
    plotted = CURVES["phase/quality-mean"]
    curves = [Curve(label="q̄", colour="ink", middle=plotted.points, bolder=True)]
    levels = [chart.Level(label="q* 0.83", value=CLAIMS["phase/quality-threshold"].value)]
    x = chart.steps_axis(plotted.points[-1][0], 340)
    name = f"{plotted.item}: {plotted.measures}"
    return _chart(name, x, _shares(plotted.y), curves, plain, levels=levels), plotted.note


def _our_quality(ours: Sequence[Row]) -> tuple[str, str]:
    if not ours:
        return "", _which(ours)
    curves = [Curve(label="q̄", colour="ink", middle=_over_steps(ours, "mean_quality"), bolder=True)]
    return _over_training("Mean quality over training, here", ours, _shares("mean q̄"), curves, plain), _which(ours)


def _densities(*names: str) -> tuple[str, str]:
    plotted = [CURVES[name] for name in names]
    labels = [curve.measures.removeprefix("quality ").removeprefix("at ") for curve in plotted]
    curves = [
        Curve(label=label, colour=colour, middle=curve.points)
        for label, colour, curve in zip(labels, _COLOURS, plotted, strict=True)
    ]
    notes = dict.fromkeys(f"{sentence}." for c in plotted for sentence in c.note.rstrip(".").split(". "))
    return _quality_chart(f"{plotted[0].item}: how quality is spread", curves), " ".join(notes)


def _histograms(ours: Sequence[Row]) -> tuple[str, str]:
    """At the first evaluation, at the last that reads everywhere, and at the end."""
    there = [row for row in ours if row.get("histogram")]
    if not there:
        return "", _which(ours)
    everywhere = [row for row in there if row["reads"] == 1] or there[:1]
    curves = []
    for row, colour in zip((there[0], everywhere[-1], there[-1]), _COLOURS, strict=True):
        counts = [int(count) for count in row["histogram"].split()]
        total = sum(counts) or 1
        points = [((i + 0.5) / _BINS, _BINS * count / total) for i, count in enumerate(counts)]
        curves.append(Curve(label=f"step {row['step']}", colour=colour, middle=points))
    return _quality_chart("How quality is spread, here", curves), _which(ours)


def _practice(results: Results) -> tuple[str, str]:
    plotted = CURVES["practice/episodic"]
    ks = [1.1**i for i in range(49)]
    curves = [Curve(label="plotted", colour="ink", middle=plotted.points, bolder=True)]
    laws: dict[str, Callable[[float], float]] = {"its “fit”": lambda k: 0.89 * k**-0.43}
    laws["“human”"] = lambda k: 0.89 * k**-0.41
    for row in results.get("paper-practice", {}).get("rows", ()):
        if row["what"] == "power through the plotted points":
            laws[f"refit, {row['gamma']:.2f}"] = _power(row["start"], row["gamma"])
    for (label, law), colour in zip(laws.items(), ("novel", "recurring", "action1"), strict=False):
        curves.append(Curve(label=label, colour=colour, middle=[(k, law(k)) for k in ks]))
    return _by_repetition(f"{plotted.item}: {plotted.measures}", plotted.y, curves, 100), plotted.note


def _power(start: float, gamma: float) -> Callable[[float], float]:
    return lambda k: float(start * k**-gamma)


def _our_practice(rows: Sequence[Row]) -> tuple[str, str]:
    if not rows:
        return "", ""
    points = [(row["k"], row["read"] / row["asked"]) for row in rows if row["asked"]]
    note = (
        "Decisions in training, of the same run: until release a query skips by chance alone, whatever it has seen. "
        "Laws are fitted to decisions by torchcram reproduce practice."
    )
    curves = [Curve(label="read", colour="ink", middle=points, bolder=True)]
    return _by_repetition("Reads of recurring patterns, here", "share that read", curves, points[-1][0]), note


def _by_repetition(name: str, title: str, curves: Sequence[Curve], end: float) -> str:
    ticks = [(float(10**i), f"{10**i:,}") for i in range(6) if 10**i <= end]
    x = Axis(low=1, high=end, ticks=ticks, title="repetition count k", bend=0.2)
    return _chart(name, x, _shares(title), curves, plain, at=lambda k: f"k = {short(k)}")


def _exponents(results: Results) -> tuple[str, str]:
    rows = [
        ("CRAM, printed", 0.43, 0.39, 0.47),
        ("Rickard (1997)", 0.41, 0.35, 0.47),
        ("Newell, Rosenbloom (1981)", 0.45, 0.40, 0.50),
    ]
    for row in results.get("paper-practice", {}).get("rows", ()):
        if row["what"] == "γ by least squares of logarithms":
            rows.append(("the paper's points, refitted", row["measured"], row["low"], row["high"]))
    axis = Axis(low=0.3, high=0.65, ticks=[(v, f"{v:g}") for v in (0.3, 0.4, 0.5, 0.6)], title="γ")
    drawn = chart.intervals(name="Exponents and what they may be", rows=rows, axis=axis)
    return drawn, "Exponents of response times, compared with the exponent of a probability."


def _over_steps(ours: Sequence[Row], key: str, times: float = 1) -> Points:
    return [(row["step"], times * row[key]) for row in ours if row.get(key) is not None]


def _over_training(
    name: str, ours: Sequence[Row], y: Axis, curves: Sequence[Curve], form: Callable[[float], str]
) -> str:
    released = next((row["step"] for row in ours if row["phase"] != "acquire"), None)
    marks = [chart.Mark(label="released", step=released)] if released is not None else []
    return _chart(name, chart.steps_axis(ours[-1]["step"], 340), y, curves, form, marks=marks)


def _quality_chart(name: str, curves: Sequence[Curve]) -> str:
    x = Axis(low=0, high=1.05, ticks=[(v, plain(v)) for v in (0, 0.25, 0.5, 0.75, 1)], title="quality q")
    y = chart.linear_axis([v for c in curves for _, v in c.middle], plain, title="density")
    return _chart(name, x, y, curves, plain, at=lambda q: f"q = {plain(q, 3)}", beside=True)


def _shares(title: str) -> Axis:
    return Axis(low=0, high=1, ticks=[(v, plain(v)) for v in (0, 0.25, 0.5, 0.75, 1)], title=title)


def _chart(name: str, x: Axis, y: Axis, curves: Sequence[Curve], form: Callable[[float], str], **more: Any) -> str:
    return chart.line_chart(name=name, x=x, y=y, curves=curves, form=form, **more)


def _which(ours: Sequence[Row]) -> str:
    return "The run of the memory explorer below: small, with our recipe." if ours else " "
