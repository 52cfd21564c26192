"""The charts of a report: which quantities of the runs are drawn, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torchcram.report import chart, colours
from torchcram.report.chart import Axis, Curve, Level, Mark, Span
from torchcram.report.runs import Entry, Run, item, median, number, typical
from torchcram.report.words import SPACE, percent, plain, short

_SHARES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def reads(runs: Sequence[Run], *, width: int, height: int, heading: str = "") -> str:
    """Reads of all positions and of each kind, with OPT, the static bound and the phases. With a heading: a picture."""
    narrow = width < 500
    curves = [curve(runs, _kind_reads(kind), kind, colours.of_kind(kind, i)) for i, kind in enumerate(runs[0].kinds)]
    curves.append(curve(runs, "reads", "all" if narrow else "all positions", "ink", bolder=True))
    opt, bound = (typical(runs, key) for key in ("opt", "static_bound"))
    levels = []
    for label, meaning, value in (
        ("static bound", "every query reads", bound),
        ("OPT", "only novel queries read", opt),
    ):
        if value:
            text = f"{label} {percent(value)}" + ("" if narrow else f": {meaning}")
            levels.append(Level(label=text, value=value, below=True))
    bend = min(0.01, (opt or 0.02) / 2)
    ticks = [(share, percent(share, 1)) for share in _SHARES if share == 0 or share >= bend]
    return chart.line_chart(
        name="Share of positions that read, over training",
        x=chart.steps_axis(_end(runs), width),
        y=Axis(low=0, high=1, ticks=ticks, bend=bend, title="share that reads, of all positions and of each kind"),
        curves=curves,
        form=percent,
        levels=levels,
        spans=spans(runs),
        marks=marks(runs, labelled=True),
        width=width,
        height=height,
        heading=heading,
        standalone=f"{chart.STYLE}\n{colours.drawing_rules(colours.LIGHT)}" if heading else "",
    )


def accuracy(runs: Sequence[Run]) -> str:
    curves = [
        curve(runs, "accuracy_recurring", "recurring", "recurring"),
        curve(runs, "accuracy_novel", "novel", "novel"),
    ]
    ticks = [(share, percent(share)) for share in (0, 0.25, 0.5, 0.75, 1)]
    y = Axis(low=0, high=1, ticks=ticks, title="queries answered right")
    return _small(runs, "Accuracy over training", y, curves, percent)


def dynamics(runs: Sequence[Run]) -> str:
    curves = [curve(runs, "dynamics_mse", "error", "dynamics")]
    floor = typical(runs, "dynamics_floor")
    values = [v for c in curves for run in c.runs for _, v in run]
    low, high = min([*values, floor or 1e9]) * 0.6, max([*values, floor or 0.0])
    ticks = [(m * 10.0**e, f"{m * 10.0**e:g}") for e in range(-6, 4) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    y = Axis(low=low, high=high, ticks=ticks, bend=low / 10, title="mean squared error (logarithmic)")
    levels = [Level(label=f"Bayes floor {short(floor)}", value=floor)] if floor else []
    return _small(runs, "Error of the dynamics over training", y, curves, short, levels)


def quality(runs: Sequence[Run]) -> str:
    curves = [curve(runs, _kind_quality(kind), kind, colours.of_kind(kind, i)) for i, kind in enumerate(runs[0].kinds)]
    y = Axis(low=0, high=1, ticks=[(v, plain(v)) for v in (0, 0.25, 0.5, 0.75, 1)], title="mean q over layers")
    return _small(runs, "Mean quality q of each kind over training", y, curves, plain)


def price(runs: Sequence[Run]) -> str:
    curves = [curve(runs, "price", "price", "action1")]
    y = chart.linear_axis(_values(curves), short, title="nats a read")
    return _small(runs, "Price of a read over training", y, curves, lambda v: f"{short(v)}{SPACE}nats", height=190)


def excess(runs: Sequence[Run]) -> str:
    curves = [curve(runs, "excess", "excess", "other2")]
    tolerance = number(runs[0].setting("consolidation.tolerance"))
    values = [*_values(curves), tolerance or 0.0]
    levels = [Level(label=f"tolerance {short(tolerance)}", value=tolerance)] if tolerance else []
    y = chart.linear_axis(values, short, title="nats a scored position")
    return _small(runs, "Excess loss of routing", y, curves, lambda v: f"{short(v)}{SPACE}nats", levels, height=190)


def step_time(runs: Sequence[Run]) -> str:
    curves = [curve(runs, _milliseconds, "step", "ink")]
    y = chart.linear_axis(_values(curves), plain, title="milliseconds a training step")
    return _small(runs, "Time of a training step", y, curves, lambda v: f"{short(v)}{SPACE}ms")


def calibration(bins: Sequence[Sequence[float]], *, nats: bool) -> str:
    """True against foretold means of bins, and the line they would be on; worth in `nats`, else quality."""
    points = [(foretold, true) for foretold, true, _ in bins]
    what = "worth of a read, nats" if nats else "quality q"
    high = max(1.0, *(value for point in points for value in point))
    axis = Axis(
        low=0,
        high=high,
        ticks=[(v, short(v)) for v in ((0, 0.01, 0.1, 1) if nats else (0, 0.25, 0.5, 0.75, 1))],
        bend=0.01 if nats else None,
        title=f"true {what}",
    )
    ways = [0.0, *(high * 2.0**-i for i in range(12, -1, -1))]
    return chart.line_chart(
        name=f"True {what} against what was foretold",
        x=replace(axis, title=f"foretold {what}"),
        y=axis,
        curves=[
            Curve(label="as told", colour="quiet", middle=[(v, v) for v in ways]),
            Curve(label="true", colour="action1", middle=points, bolder=True),
        ],
        form=short,
    )


def curve(
    runs: Sequence[Run], value: str | Callable[[Entry], object], label: str, colour: str, *, bolder: bool = False
) -> Curve:
    """A quantity of every run, and its median."""
    each = [run.points(value) for run in runs]
    return Curve(label=label, colour=colour, runs=each, middle=median(each), bolder=bolder)


def spans(runs: Sequence[Run]) -> list[Span]:
    """The phases, if there is one run to speak of."""
    if len(runs) > 1:
        return []
    (run,) = runs
    settling = [entry["step"] for entry in run.entries if entry.get("phase") == "settle"]
    begins = [("acquire", 0.0)]
    if run.released_at is not None:
        begins.append(("consolidate", float(run.released_at)))
    if settling:
        share = number(run.setting("optimizer.settle"))
        begin = settling[0] if share is None else min(settling[0], (1 - share) * run.steps)
        begins.append(("settle", max(float(begin), begins[-1][1])))
    ends = [begin for _, begin in begins[1:]] + [float(_end(runs))]
    return [
        Span(label=label, begin=begin, end=end) for (label, begin), end in zip(begins, ends, strict=True) if end > begin
    ]


def marks(runs: Sequence[Run], *, labelled: bool = False) -> list[Mark]:
    """When attention was released, in each run."""
    steps = sorted(run.released_at for run in runs if run.released_at)
    if not steps:
        return []
    text = f"released at step {steps[0]:,}" + (f"–{steps[-1]:,}" if steps[-1] > steps[0] else "")
    return [Mark(label=text if labelled and i == 0 else "", step=step) for i, step in enumerate(steps)]


def _small(
    runs: Sequence[Run],
    name: str,
    y: Axis,
    curves: Sequence[Curve],
    form: Callable[[float], str],
    levels: Sequence[Level] = (),
    height: int = 240,
) -> str:
    quiet = [Span(label="", begin=span.begin, end=span.end) for span in spans(runs)]
    x = chart.steps_axis(_end(runs), 340)
    return chart.line_chart(
        name=name, x=x, y=y, curves=curves, form=form, levels=levels, spans=quiet, marks=marks(runs), height=height
    )


def _milliseconds(entry: Entry) -> float | None:
    seconds = number(entry.get("step_seconds"))
    return None if seconds is None else 1000 * seconds


def _kind_reads(kind: str) -> Callable[[Entry], object]:
    return lambda entry: item(entry, "kind_reads", kind, 0)


def _kind_quality(kind: str) -> Callable[[Entry], object]:
    def mean(entry: Entry) -> float | None:
        layers = item(entry, "quality", kind)
        found = [number(value) for value in layers] if isinstance(layers, list) else []
        there = [value for value in found if value is not None]
        return sum(there) / len(there) if there else None

    return mean


def _values(curves: Sequence[Curve]) -> list[float]:
    return [value for one in curves for run in one.runs for _, value in run]


def _end(runs: Sequence[Run]) -> int:
    return max(run.step for run in runs)
