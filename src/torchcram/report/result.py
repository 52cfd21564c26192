"""The picture for a first look: reads fall as a model learns, and what others read to answer as well. From results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from torchcram.paper.verdicts import Results
from torchcram.report import drawing
from torchcram.report.chart import Axis, Curve, Level, Mark, line_chart, steps_axis
from torchcram.report.comparison import Group, groups
from torchcram.report.curves import over_training
from torchcram.report.words import percent

_WIDTH, _HEIGHT, _LEFT = 880, 380, 420
_NEAR = 14.0  # points of the drawing: what lies closer has one label
_NAMES = {
    "cram": "CRAM",
    "transformer": "Transformer",
    "mamba": "Mamba-2",
    "jamba": "Jamba",
    "seqboat": "SeqBoat",
    "transmamba": "TransMamba",
    "mod": "mixture of depths",
    "entropy": "entropy",
    "gate": "gate",
    "slots": "512 slots",
    "window": "window",
}
"""As the picture calls models; controls that cannot look back are left out."""
_SIZES = {"gpu": "width 128, two layers", "cpu": "width 64, two layers"}
"""Of models of the paper's experiments, by scale."""
READS = Axis(
    low=0.0, high=1.0, bend=0.004, ticks=[(v, percent(v, 0)) for v in (0, 0.01, 0.1, 1)], title="positions that read"
)


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A model at one place: reads, and the share of novel keys that it answers; of its seeds, too."""

    model: str
    reads: float
    novel: float
    seeds: Sequence[tuple[float, float]]


def picture(results: Results) -> str:
    """Both halves beside each other, as a drawing of its own; needs `baselines-srcd` and runs over training."""
    name = (
        "Left: the share of positions that read falls over training. Right: novel keys answered, over reads, by model."
    )
    right = _scatter(dots(results), _least(results))
    return drawing.beside(name, [(_fall(results), _LEFT), (right, _WIDTH - _LEFT)], _HEIGHT)


def _fall(results: Results) -> str:
    drawn = over_training(results, "reads")
    if "cram" not in drawn.curves:
        raise ValueError("there are no reads over training: neither paper-phase, paper-srcd nor explored has any")
    points = drawn.curves["cram"]
    marks = [Mark(label="released", step=drawn.released)] if drawn.released is not None else []
    least = points[-1][1]
    return line_chart(
        name="reads over training",
        x=steps_axis(points[-1][0], _LEFT),
        y=Axis(low=0, high=1, ticks=[(v / 4, percent(v / 4, 0)) for v in range(5)], title=_whose(results)),
        curves=[Curve(label="reads", colour="action1", middle=points, bolder=True)],
        form=lambda value: percent(value, 1),
        marks=marks,
        levels=[Level(label=f"{percent(least, 1)} at the end", value=least)],
        width=_LEFT,
        height=_HEIGHT,
        heading="CRAM: positions that read, over training",
        standalone=drawing.ALONE,
    )


def _whose(results: Results) -> str:
    """Which runs a curve is of."""
    for file in ("paper-phase", "paper-srcd"):
        found = [row for row in results.get(file, {}).get("rows", ()) if row.get("what") == "attention over training"]
        mine = [row for row in found if row["model"] == "cram" and "caveat" not in row]
        if mine:
            seeds = len({row["seed"] for row in mine})
            size = _SIZES.get(str(mine[0].get("scale")), "small models")
            return f"SRCD, {size}; " + (f"mean of {seeds} seeds" if seeds > 1 else "one seed")
    return "SRCD, a small run: width 64, two layers"


def dots(results: Results) -> list[Dot]:
    """Every model that was compared, with its usual steps and routing: medians over seeds."""
    found = []
    for group in groups(results.get("baselines-srcd", {}).get("rows", ()), "final"):
        if group.model in _NAMES and "steps=" not in group.setting and "reads " not in group.setting:
            found.append(_dot(group))
    if not found:
        raise ValueError("there is no comparison of models: baselines-srcd has no rows of finals")
    return found


def _least(results: Results) -> float:
    """Reads of a model that looks up novel keys alone: their share, as it was drawn."""
    return statistics.median(float(row["opt"]) for row in results["baselines-srcd"]["rows"] if row.get("opt"))


def _dot(group: Group) -> Dot:
    return Dot(
        model=group.model,
        reads=group.reads,
        novel=statistics.median(float(row["accuracy_novel"]) for row in group.rows),
        seeds=[(float(row["reads"]), float(row["accuracy_novel"])) for row in group.rows],
    )


def _scatter(found: Sequence[Dot], least: float) -> str:
    width, left, right, top, bottom = _WIDTH - _LEFT, 62.0, 26.0, 64.0, 48.0
    inner, tall = width - left - right, _HEIGHT - top - bottom

    def place(reads: float, novel: float) -> tuple[float, float]:
        return left + inner * READS.place(reads), top + tall * (1 - novel)

    out = [f'<svg viewBox="0 0 {width} {_HEIGHT}">']
    out.append('<text class="fill ink" x="10" y="20" font-size="15" font-weight="600">')
    out.append("Novel keys answered, over reads</text>")
    counts = sorted({len(dot.seeds) for dot in found})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    told = f"median of {seeds} seeds, and each of them; equal steps and parameters"
    out.append(_text(told, 10, 40, "quiet", "start"))
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = place(0, value)[1]
        out.append(f'<path class="line faint" d="M{left:.1f} {y:.1f}h{inner:.1f}"/>')
        out.append(_text(percent(value, 0), left - 8, y + 4, "quiet", "end"))
    for value, text in READS.ticks:
        x = place(value, 0)[0]
        out.append(f'<path class="line faint" d="M{x:.1f} {top:.1f}v{tall:.1f}"/>')
        out.append(_text(text, x, top + tall + 18, "quiet", "middle"))
    out.append(_text(READS.title, left + inner / 2, top + tall + 36, "quiet", "middle"))
    x = place(least, 0)[0]
    out.append(f'<path class="line ink dash" d="M{x:.1f} {top:.1f}v{tall:.1f}"/>')
    out.append(_text(f"least possible, {percent(least, 1)}", x + 6, top + tall / 2, "ink halo", "start"))
    for dot in found:
        middle = place(dot.reads, dot.novel)
        for reads, novel in dot.seeds:
            x, y = place(reads, novel)
            out.append(f'<path class="line thin {_colour(dot)}" d="M{middle[0]:.1f} {middle[1]:.1f}L{x:.1f} {y:.1f}"/>')
            out.append(f'<circle class="fill pale {_colour(dot)}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>')
    for dot in sorted(found, key=lambda dot: dot.model == "cram"):  # CRAM on top
        x, y = place(dot.reads, dot.novel)
        size = 7 if dot.model == "cram" else 5
        out.append(f'<circle class="fill {_colour(dot)}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>')
    for cluster in _clusters([(dot, place(dot.reads, dot.novel)) for dot in found]):
        x = statistics.fmean(at[0] for _, at in cluster)
        y = max(at[1] for _, at in cluster)
        anchor = "end" if x > left + 0.6 * inner else "start"
        for line, (dot, _) in enumerate(cluster):
            strong = " strong" if dot.model == "cram" else ""
            shift = -2 if anchor == "end" else 2
            baseline = y + 20 + 15 * line if y < top + tall / 2 else y - 10 - 15 * (len(cluster) - 1 - line)
            out.append(_text(_NAMES[dot.model], x + shift, baseline, f"{_colour(dot)} halo{strong}", anchor))
    return "".join(out) + "</svg>"


def _colour(dot: Dot) -> str:
    return "action1" if dot.model == "cram" else "dynamics"


def _clusters(places: Sequence[tuple[Dot, tuple[float, float]]]) -> list[list[tuple[Dot, tuple[float, float]]]]:
    """Those that lie so close that they need one label, CRAM first."""
    found: list[list[tuple[Dot, tuple[float, float]]]] = []
    for dot, (x, y) in sorted(places, key=lambda each: each[0].model != "cram"):
        near = next((c for c in found if any(abs(x - a) + abs(y - b) < _NEAR for _, (a, b) in c)), None)
        if near is None:
            found.append([(dot, (x, y))])
        else:
            near.append((dot, (x, y)))
    return found


def _text(text: str, x: float, y: float, colour: str, anchor: str) -> str:
    return f'<text class="fill {colour}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
