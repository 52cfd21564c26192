"""Charts as SVG text: curves over training, and histograms. Nothing here knows what is drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from torchcram.report.runs import Points

STYLE = """
svg.chart{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,"DejaVu Sans",sans-serif}
.line{fill:none;stroke-width:1.2;stroke-linejoin:round;stroke-linecap:round}
.line.bold{stroke-width:2.4}
.line.bolder{stroke-width:3.4}
.line.thin{stroke-width:1;opacity:.4}
.line.dash{stroke-dasharray:5 4}
.strong{font-weight:600}
.fill.soft{opacity:.85}
.fill.pale{opacity:.4}
.halo{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}
""".strip()
_LETTER = 6.4  # width of a letter at 12 px, roughly
_LINE = 15.0  # between the baselines of labels


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What a side of a chart shows. Below `bend` it is linear, above logarithmic; without one linear throughout."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str = ""
    bend: float | None = None

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one; what lies beyond is drawn on the edge."""
        low, high, x = (self._bent(v) for v in (self.low, self.high, value))
        return min(1.0, max(0.0, (x - low) / (high - low or 1.0)))

    def _bent(self, value: float) -> float:
        return value if self.bend is None else math.asinh(value / self.bend)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A quantity over training: `middle` is drawn boldly, and each of `runs`, if there are several, thinly."""

    label: str
    colour: str
    middle: Points
    runs: Sequence[Points] = ()
    bolder: bool = False


@dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line to compare with, its label above or below."""

    label: str
    value: float
    below: bool = False


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of training."""

    label: str
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A moment of training; without a label it is a line only."""

    label: str
    step: float


def steps_axis(end: float, width: float) -> Axis:
    """Steps of training, with as many ticks as there is room for."""
    return Axis(
        low=0, high=end, ticks=[(v, f"{v:,.0f}") for v in nice(0, end, max(2, int(width // 90)))], title="training step"
    )


def linear_axis(values: Sequence[float], form: Callable[[float], str], *, title: str = "", zero: bool = True) -> Axis:
    """An axis that holds all values; from zero, if wanted."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(0.0, low) if zero else low
    high = high if high > low else low + 1.0
    ticks = nice(low, high, 4)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    low, high = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return Axis(low=low, high=high, ticks=[(v, form(v)) for v in nice(low, high, 4)], title=title)


def nice(low: float, high: float, count: int) -> list[float]:
    """Round numbers from low to high, about `count` steps apart."""
    rough = (high - low) / max(1, count) or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(
    *,
    name: str,
    x: Axis,
    y: Axis,
    curves: Sequence[Curve],
    form: Callable[[float], str],
    at: Callable[[float], str] = lambda step: f"step {step:,.0f}",
    levels: Sequence[Level] = (),
    spans: Sequence[Span] = (),
    marks: Sequence[Mark] = (),
    width: int = 420,
    height: int = 240,
    heading: str = "",
    standalone: str = "",
    beside: bool = False,
    dots: bool = False,
) -> str:
    """Curves over training, or over what `at` tells. `form` writes a value for the read-out; `name` is for those who
    cannot see the chart.

    `heading` is drawn above (a picture of its own has no page around it), `standalone` is the CSS it then needs.
    `beside`: labels stand at the right edge even where curves end before it; `dots`: points are marked.
    """
    labels = [curve for curve in curves if curve.middle]
    head = 26 if heading else 0
    left = (20 if standalone else 14) + _LETTER * max((len(text) for _, text in y.ticks), default=0)
    longest = max((len(curve.label) + curve.bolder for curve in labels), default=0)
    right = 16 + 1.05 * _LETTER * longest if len(labels) > 1 else 24
    top = head + (20 if spans else 6) + (16 if any(mark.label for mark in marks) else 0) + (18 if y.title else 0)
    inner, tall = width - left - right, height - top - 40

    def across(step: float) -> float:
        return left + inner * x.place(step)

    def down(value: float) -> float:
        return top + tall * (1 - y.place(value))

    out = [_open(name, width, height, standalone)]
    if standalone:
        out.append(f'<rect class="fill paper" width="{width}" height="{height}"/>')
    if heading:
        out.append(f'<text class="fill ink" x="10" y="20" font-size="15" font-weight="600">{escape(heading)}</text>')
    if y.title:
        out.append(_text(y.title, 10 if standalone else 0, head + 12, "quiet"))
    for i, span in enumerate(spans):
        begin, end = across(span.begin), across(span.end)
        if i % 2 == 0:
            out.append(f'<rect class="fill band" x="{begin:.1f}" y="{top}" width="{end - begin:.1f}" height="{tall}"/>')
        if span.label and _LETTER * len(span.label) < end - begin:
            out.append(_text(span.label, (begin + end) / 2, head + (18 if y.title else 0) + 13, "quiet", "middle"))
    for value, text in y.ticks:
        out.append(f'<path class="line faint" d="M{left:.1f} {down(value):.1f}h{inner:.1f}"/>')
        out.append(_text(text, left - 6, down(value) + 4, "quiet", "end"))
    free = -math.inf  # up to where the one before reaches
    for value, text in x.ticks:
        half = _LETTER * len(text) / 2
        if across(value) - half > free:
            out.append(_text(text, across(value), top + tall + 16, "quiet", "middle"))
            free = across(value) + half
    out.append(_text(x.title, left + inner / 2, top + tall + 33, "quiet", "middle"))
    for mark in marks:
        out.append(f'<path class="line quiet dash" d="M{across(mark.step):.1f} {top}v{tall}"/>')
        if mark.label:
            room = across(mark.step) + _LETTER * len(mark.label) < width
            anchor, shift = ("start", -2) if room else ("end", 2)
            out.append(_text(mark.label, across(mark.step) + shift, top - 5, "ink", anchor))
    for level in levels:
        place = down(level.value)
        out.append(f'<path class="line ink dash" d="M{left:.1f} {place:.1f}h{inner:.1f}"/>')
    for curve in curves:
        for run in curve.runs if len(curve.runs) > 1 else ():
            out.append(f'<path class="line thin {curve.colour}" d="{_path(run, across, down)}"/>')
    for curve in sorted(labels, key=lambda curve: curve.bolder):  # on top of the others
        weight = "bolder" if curve.bolder else "bold"
        out.append(f'<path class="line {weight} {curve.colour}" d="{_path(curve.middle, across, down)}"/>')
        for step, value in curve.middle if dots or len(curve.middle) == 1 else ():
            out.append(f'<circle class="fill {curve.colour}" cx="{across(step):.1f}" cy="{down(value):.1f}" r="3"/>')
    for level in levels:
        out.append(_text(level.label, left + 5, down(level.value) + (14 if level.below else -5), "ink halo"))
    if len(labels) > 1:
        ends = apart([down(curve.middle[-1][1]) for curve in labels], _LINE, top, top + tall)
        for curve, end in zip(labels, ends, strict=True):
            step, value = curve.middle[-1]
            tip = left + inner if beside else across(step)
            if not beside and abs(end - down(value)) > 1:
                leader = f"M{tip:.1f} {down(value):.1f}L{tip + 7:.1f} {end:.1f}"
                out.append(f'<path class="line thin {curve.colour}" d="{leader}"/>')
            out.append(
                _text(curve.label, tip + 9, end + 4, f"{curve.colour} halo" + (" strong" if curve.bolder else ""))
            )
    if not standalone:
        out.append(f'<path class="guide line quiet" d="M0 {top}v{tall}"/>')
        out[0] = out[0].replace(
            "<svg ", f'<svg data-hover="{escape(_read_out(labels, across, form, at))}" tabindex="0" ', 1
        )
    return "".join(out) + "</svg>"


def intervals(*, name: str, rows: Sequence[tuple[str, float, float, float]], axis: Axis, width: int = 420) -> str:
    """Values with what they may be, (label, value, low, high), one below the other."""
    left, right, pitch = 14 + _LETTER * max(len(label) for label, *_ in rows), 46.0, 30.0
    inner, bottom = width - left - right, pitch * len(rows) + 8
    out = [_open(name, width, int(bottom + 40))]

    def across(value: float) -> float:
        return left + inner * axis.place(value)

    for value, text in axis.ticks:
        out.append(f'<path class="line faint" d="M{across(value):.1f} 4V{bottom:.1f}"/>')
        out.append(_text(text, across(value), bottom + 16, "quiet", "middle"))
    for i, (label, value, low, high) in enumerate(rows):
        y = pitch * (i + 0.5) + 4
        out.append(_text(label, left - 10, y + 4, "ink", "end"))
        out.append(f'<path class="line bold ink" d="M{across(low):.1f} {y:.1f}H{across(high):.1f}"/>')
        out.append(f'<circle class="fill ink" cx="{across(value):.1f}" cy="{y:.1f}" r="5"/>')
        out.append(_text(f"{value:.2f}", across(high) + 8, y + 4, "quiet"))
    out.append(_text(axis.title, left + inner / 2, bottom + 33, "quiet", "middle"))
    return "".join(out) + "</svg>"


def ridges(
    *, name: str, rows: Sequence[tuple[str, Sequence[int]]], colour: str, threshold: float | None, width: int = 200
) -> str:
    """Histograms of the same bins over 0 to 1, one below the other, each as a share of its own total."""
    tall, pitch, left, inner = 34.0, 54.0, 6.0, width - 12.0
    height = int(pitch * len(rows) + 34)
    bottom = pitch * len(rows) + 2
    out = [_open(name, width, height)]
    if threshold is not None:
        out.append(f'<path class="line quiet dash" d="M{left + inner * threshold:.1f} 16V{bottom:.1f}"/>')
    for i, (label, counts) in enumerate(rows):
        base = pitch * (i + 1)
        most, bar = max(counts, default=0) or 1, inner / max(1, len(counts))
        bars = "".join(
            f"M{left + bar * j:.1f} {base}v{-tall * count / most:.1f}h{bar - 1:.1f}V{base}z"
            for j, count in enumerate(counts)
            if count
        )
        out.append(_text(label, left, base - tall - 6, "quiet"))
        out.append(f'<path class="line faint" d="M{left} {base}h{inner}"/>')
        out.append(f'<path class="fill soft {colour}" d="{bars}"/>')
    for value in (0, 0.5, 1):
        anchor = "start" if value == 0 else "end" if value == 1 else "middle"
        out.append(_text(f"{value:g}", left + inner * value, bottom + 13, "quiet", anchor))
    out.append(_text("quality q", left + inner * 0.25, bottom + 13, "quiet", "middle"))
    if threshold is not None:
        out.append(_text(f"q* {threshold:g}", left + inner * threshold, bottom + 26, "quiet", "middle"))
    return "".join(out) + "</svg>"


def apart(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """The same places in the same order, moved to lie `least` apart and, if they fit, within bounds."""
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    out = list(places)
    for before, i in zip([None, *order], order, strict=False):
        out[i] = max(places[i], low if before is None else out[before] + least)
    limit = high
    for i in reversed(order):
        out[i] = min(out[i], limit)
        limit = out[i] - least
    return out


def _open(name: str, width: int, height: int, style: str = "") -> str:
    inside = f"<style>{style}</style>" if style else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(name)}">{inside}'
    )


def _text(text: str, x: float, y: float, colour: str, anchor: str = "start") -> str:
    return f'<text class="fill {colour}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _path(points: Points, across: Callable[[float], float], down: Callable[[float], float]) -> str:
    return "".join(f"{'L' if i else 'M'}{across(s):.1f} {down(v):.1f}" for i, (s, v) in enumerate(points))


def _read_out(
    curves: Sequence[Curve], across: Callable[[float], float], form: Callable[[float], str], at: Callable[[float], str]
) -> str:
    """What to show at each step, for the page's script: [[x, text], …]."""
    by_step: dict[float, list[str]] = {}
    for curve in curves:
        for step, value in curve.middle:
            by_step.setdefault(step, [at(step)]).append(f"{curve.label}  {form(value)}")
    return json.dumps([[round(across(step), 1), "\n".join(lines)] for step, lines in sorted(by_step.items())])
