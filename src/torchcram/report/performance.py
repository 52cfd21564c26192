"""The page about speed: what was aimed at, what a clock showed, and where the time went."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcram.report import chart, colours
from torchcram.report.chart import Axis, Curve
from torchcram.report.markdown import source, table
from torchcram.report.words import SPACE, plain, short, times

Row = Mapping[str, Any]
Files = Mapping[str, Row]
"""Result files by what they are of, see `NAMES`."""

NAMES = {
    "train": "bench-train",
    "prefill": "bench-prefill",
    "decode": "bench-decode",
    "kernels": "bench-kernels",
    "scaling": "bench-scaling",
    "breakdown": "bench-breakdown",
    "runs": "bench-runs",
    "quality": "bench-quality",
    "length": "srcd-length-paper",
    "paper": "srcd-paper",
}
"""Result files that the page is made of, by what they are of; those that are not there are left out."""

LONG, SHORT = 131_072, 2048
RIVAL = "transformer"
SOLVED = 0.99
"""Accuracy on novel keys from which on a buffer counts as large enough."""
WRITTEN = "## What stands in the way"
"""Heads the section of the page that is written by hand."""
ENOUGH = 0.7
"""Share of a copy's bandwidth that a Transformer must reach to count in decoding."""
OVERHEAD = "choosing, listing and moving"
"""A kind of work in `bench breakdown`."""

_PAGE = """\
# Performance

Made by `torchcram performance` from the result files of benchmarks in `results/`. Both sides of each figure are of the
same run, on the same machine; the Transformer is compiled and has cuDNN's attention, or another where that is clearly
faster. A speed is worth something only where the model is right: the last tables say how good trained models of this
size are at these lengths, with these buffers.

![How many times faster than a Transformer a training step and a prefill are, by length](images/performance.svg)

## What was aimed at

{targets}

{sections}
"""
_TITLES = {
    "train": "A training step",
    "prefill": "A prefill",
    "decode": "One more token",
    "kernels": "Single operations",
    "scaling": "Where the time went",
    "breakdown": "What the device does",
    "runs": "Steps of trained runs, before release and now",
    "quality": "Time to quality",
    "length": "How good they are at these lengths",
    "paper": "Training at the paper's size",
}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A figure, and what it should be."""

    what: str
    wanted: float
    found: float | None
    most: bool = False
    """The figure should be no larger, rather than no smaller."""
    form: Callable[[float | None], str] = times

    @property
    def met(self) -> bool | None:
        """None: not measured."""
        if self.found is None:
            return None
        return self.found <= self.wanted if self.most else self.found >= self.wanted

    def cells(self) -> list[str]:
        """A line of a table."""
        said = {None: "not measured", True: "yes", False: "no"}[self.met]
        return [self.what, f"{'≤' if self.most else '≥'} {self.form(self.wanted)}", self.form(self.found), said]


def targets(files: Files) -> list[Target]:
    """What the project set out to reach on one H200."""
    out = []
    for what, name, wanted in (
        ("train", "training step", (1.15, 2.0, 5.5, 20.0)),
        ("prefill", "prefill", (1.05, 1.8, 4.5, 15.0)),
    ):
        for length, least in zip((SHORT, 8192, 32_768, LONG), wanted, strict=True):
            found = _pick(files, what, "ratio", length=length, slots=512)
            out.append(Target(what=f"{name}, {length:,} positions, M = 512", wanted=least, found=found))
    large = _pick(files, "train", "ratio", length=LONG, slots=4096)
    out.append(Target(what=f"training step, {LONG:,} positions, M = 4096", wanted=12.0, found=large))
    for what, name in (("train", "training step"), ("prefill", "prefill")):
        grown = growth([row for row in _rows(files, what) if row.get("slots") == 512])
        told = f"growth of a {name} of as many positions with length, exponent"
        out.append(Target(what=told, wanted=0.05, found=grown, most=True, form=plain))
    for batch, least in ((32, 80.0), (1, 4.0)):
        found = _counted(files, batch)
        out.append(Target(what=f"decode after {LONG:,} positions, batch {batch}", wanted=least, found=found))
    long, brief = (_pick(files, "decode", "ours_ms", length=length, batch=32, slots=512) for length in (LONG, SHORT))
    flat = long / brief if long and brief else None
    out.append(Target(what=f"decode, time at {LONG:,} ÷ at {SHORT:,}", wanted=1.05, found=flat, most=True, form=plain))
    mine, theirs = (
        _pick(files, "decode", key, length=LONG, batch=32, slots=512) for key in ("state_bytes", "baseline_state_bytes")
    )
    less = theirs / mine if mine and theirs else None
    out.append(Target(what=f"decode, memory after {LONG:,} positions, M = 512: times less", wanted=200.0, found=less))
    out.append(_smallest(files))
    space = _pick(files, "train", "ratio", rival="mamba", length=SHORT)
    out.append(Target(what=f"training step, {SHORT:,} positions, against Mamba-2", wanted=1.0, found=space))
    for length, slots, least in ((SHORT, 512, 12.0), (32_768, 512, 150.0), (32_768, "all", 40.0)):
        found = _pick(files, "kernels", "ratio", what="read, forward", length=length, slots=slots)
        named = "an unbounded buffer" if slots == "all" else f"M = {slots}"
        out.append(Target(what=f"read, {length:,} positions, {named}", wanted=least, found=found))
    for way, least in (("forward", 0.6), ("backward", 0.5)):
        found = _pick(files, "kernels", "share_of_bandwidth", what=f"scan, {way}", length=SHORT)
        out.append(Target(what=f"scan, {way}: share of a copy's bandwidth", wanted=least, found=found, form=plain))
    return out + _of_training(files)


FIRST = 8192
"""Growth is told from this length on: shorter sequences do not fill a GPU in the same way."""


def growth(rows: Iterable[Row]) -> float | None:
    """The exponent with which the time of a position grows with length; None if there are too few lengths to tell."""
    points = [
        (math.log(row["length"]), math.log(row["ours_ms"] / (row["batch"] * row["length"])))
        for row in rows
        if row["length"] >= FIRST
    ]
    if len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _counted(files: Files, batch: int) -> float | None:
    """How many times faster one more token is than a Transformer's, if that has at least `ENOUGH` of the bandwidth.

    One that has less is counted as if it had that much.
    """
    ratio, share = (
        _pick(files, "decode", key, length=LONG, batch=batch, slots=512)
        for key in ("ratio", "baseline_share_of_bandwidth")
    )
    return ratio * min(1.0, share / ENOUGH) if ratio is not None and share is not None else None


def _smallest(files: Files) -> Target:
    """Memory of a decoder with the smallest buffer that is large enough for SRCD."""
    enough = [
        int(row["slots"])
        for row in _rows(files, "length")
        if row.get("length") == LONG and row.get("slots") and row.get("accuracy_novel", 0) >= SOLVED
    ]
    mine, theirs = (
        _pick(files, "decode", key, length=LONG, batch=32, slots=min(enough, default=None))
        for key in ("state_bytes", "baseline_state_bytes")
    )
    which = f"M = {min(enough):,}" if enough else "the smallest M that is enough"
    found = theirs / mine if mine and theirs else None
    return Target(what=f"the same with {which}, which solves SRCD there: times less", wanted=50.0, found=found)


def _of_training(files: Files) -> list[Target]:
    """What concerns whole runs."""
    moved, at = (
        _pick(files, "breakdown", key, model="cram", what="train", kind=OVERHEAD) for key in ("share", "length")
    )
    waits = _pick(files, "runs", "host_waits", model="cram")
    settled = _pick(files, "runs", "dense_to_settled", model="cram", length=8192)
    seconds, how = _ten_thousand_steps(files)
    share = f"{OVERHEAD}: share of a training step" + ("" if at is None else f", {at:,.0f} positions")
    return [
        Target(what=share, wanted=0.08, found=moved, most=True, form=plain),
        Target(what="waits of the host in a training step", wanted=0.0, found=waits, most=True, form=plain),
        Target(what="a step before release ÷ after, 8,192 positions", wanted=1.3, found=settled),
        Target(
            what=f"training at the paper's size, 10,000 steps: minutes{how}",
            wanted=8.0,
            found=seconds / 60 if seconds else None,
            most=True,
            form=plain,
        ),
    ]


def _ten_thousand_steps(files: Files) -> tuple[float | None, str]:
    """Seconds at the paper's size; if there is no such run, by what steps of a shorter one take, and that it is so."""
    if (seconds := _pick(files, "paper", "seconds", steps=10_000)) is not None:
        return seconds, ""
    spent, steps = (_pick(files, "quality", key, model="cram") for key in ("alone_seconds", "steps"))
    settled = _pick(files, "runs", "step_ms", model="cram", length=SHORT)
    if spent is None or steps is None or settled is None:
        return None, ""
    return spent + (10_000 - steps) * settled / 1000, f", by what steps take in a run of {steps:,.0f}"


def by_hand(page: str) -> str:
    """The last section of a page, which is not made but written; empty if there is none."""
    _, heading, text = page.partition(f"\n{WRITTEN}\n")
    return f"{heading}{text}"


def page(files: Files, written: str = "") -> str:
    """The whole page, in Markdown, with what was written `by_hand` at its end."""
    lines = (target.cells() for target in targets(files))
    sections = [_section(name, files[name]) for name in NAMES if name in files]
    made = _PAGE.format(targets=table(("what", "wanted", "found", "met"), lines), sections="\n\n".join(sections))
    return made + written


def picture(files: Files) -> str:
    """How many times faster than a Transformer, by length: SVG."""
    curves = []
    for name, colour in (("train", "novel"), ("prefill", "other0")):
        rows = [row for row in _rows(files, name) if row["what"] == name and row.get("slots") == 512]
        points = sorted((float(row["length"]), float(row["ratio"])) for row in rows)
        curves.append(
            Curve(label=_TITLES[name].removeprefix("A "), colour=colour, middle=points, bolder=name == "train")
        )
    every = [point for curve in curves for point in curve.middle] or [(SHORT, 1.0)]
    most = max(2.0, *(ratio for _, ratio in every))
    lengths = sorted({length for length, _ in every})
    ratios = [ratio for ratio in (0, 1, 2, 5, 10, 20, 50, 100) if ratio <= most]
    return chart.line_chart(
        name="Times faster than a Transformer, by length of a sequence",
        x=Axis(
            low=lengths[0],
            high=lengths[-1],
            ticks=[(length, f"{length:,.0f}") for length in lengths],
            title="positions of a sequence",
            bend=lengths[0] / 4,
        ),
        y=Axis(low=0, high=most, ticks=[(r, f"{r}{SPACE}×") for r in ratios], bend=0.5, title="times faster"),
        curves=curves,
        form=times,
        levels=[chart.Level(label="Transformer", value=1.0)],
        width=640,
        height=320,
        heading="CRAM with 1.5 % reads against a compiled Transformer",
        standalone=f"{chart.STYLE}\n{colours.drawing_rules(colours.LIGHT)}",
    )


_COLUMNS = (
    *("what", "model", "preset", "seed", "stage", "store", "kind", "kernel", "length", "batch", "slots"),
    *("accuracy", "accuracy_novel", "reads", "opt", "compile"),
    *("ours_ms", "baseline_ms", "ratio", "tokens_per_second", "baseline_tokens_per_second"),
    *("share", "kernels", "share_of_bandwidth", "baseline_share_of_bandwidth"),
    *("dense_step_ms", "step_ms", "dense_to_settled", "forward_ms", "host_waits", "steps", "seconds"),
    *("solved_at", "seconds_to_solved", "few_reads_at", "seconds_to_few_reads"),
    *("alone_seconds_to_solved", "alone_seconds_to_few_reads", "alone_seconds", "baseline"),
)


def _section(name: str, data: Row) -> str:
    """The rows of a result file, with the columns that any of them has."""
    rows: Sequence[Row] = data["rows"]
    columns = [key for key in _COLUMNS if any(row.get(key) is not None for row in rows)]
    heads = [key.replace("_", " ") for key in columns]
    lines = ([_cell(row.get(key)) for key in columns] for row in rows)
    return f"## {_TITLES[name]}\n\n{source(data)}\n\n{table(heads, lines)}"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value >= 1000):
        return f"{value:,.0f}"
    return short(value) if isinstance(value, float) else str(value)


def _pick(files: Files, name: str, key: str, **wanted: object) -> float | None:
    """A number of the first row that is as wanted; None if there is none. rival: see `_rows`."""
    for row in _rows(files, name, str(wanted.pop("rival", RIVAL))):
        if all(row.get(field) == value for field, value in wanted.items()) and row.get(key) is not None:
            return float(row[key])
    return None


def _rows(files: Files, name: str, rival: str = RIVAL) -> list[Row]:
    """Those of a result file; of whole models, those that are not against some other model."""
    rows: Iterable[Row] = files[name]["rows"] if name in files else ()
    whole = name in ("train", "prefill")
    return [row for row in rows if not whole or str(row.get("baseline", rival)).startswith(rival)]
