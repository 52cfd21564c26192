"""What runs here would plot in the paper's figures: those of the paper's experiments, or else the explored one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcram.paper.verdicts import Results
from torchcram.report.runs import Points

Row = Mapping[str, Any]

_BINS = 20  # of the explored run's histograms of q
_DENSITY = "density at "


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Curves by label, and what to say of them; `marks` are steps of release."""

    curves: Mapping[str, Points]
    note: str
    released: float | None = None


def over_training(results: Results, key: str) -> Drawn:
    """A quantity of evaluations over training, such as `reads`; the mean over seeds of each model."""
    trained = _rows(results, ("paper-phase", "paper-srcd"), "attention over training")
    if trained:
        # Of all systems of table 1, figures 2 and 3 are about CRAM.
        models = [model for model in _models(trained) if model.startswith("cram")]
        curves = {model: _mean([row for row in trained if row["model"] == model], "step", key) for model in models}
        first = [row["step"] for row in trained if row["model"] == models[0] and row["phase"] != "acquire"]
        seeds = len({row["seed"] for row in trained if row["model"] == models[0]})
        return Drawn(curves=curves, note=_about(trained, seeds), released=min(first, default=None))
    explored = _rows(results, ("explored",), "evaluation")
    points = [(row["step"], row[key]) for row in explored if row.get(key) is not None]
    first = [row["step"] for row in explored if row["phase"] != "acquire"]
    curves = {"cram": points} if points else {}
    return Drawn(curves=curves, note=_EXPLORED if points else "", released=min(first, default=None))


def densities(results: Results) -> Drawn:
    """How quality is spread: early, at release and at the end."""
    trained = [row for row in _rows(results, ("paper-phase",), None) if any(name.startswith(_DENSITY) for name in row)]
    trained = [row for row in trained if row["model"] == trained[0]["model"]]
    if trained:
        curves = {
            str(row["what"]).removeprefix("quality "): [
                (float(name.removeprefix(_DENSITY)), row[name]) for name in row if name.startswith(_DENSITY)
            ]
            for row in trained
        }
        return Drawn(curves=curves, note=f"{trained[0]['model']}: {_about(trained, None)}")
    explored = [row for row in _rows(results, ("explored",), "evaluation") if row.get("histogram")]
    if not explored:
        return Drawn(curves={}, note="")
    everywhere = [row for row in explored if row["reads"] == 1] or explored[:1]
    chosen = {row["step"]: row for row in (explored[0], everywhere[-1], explored[-1])}
    return Drawn(curves={f"step {step}": _density(row["histogram"]) for step, row in chosen.items()}, note=_EXPLORED)


def practice(results: Results) -> Drawn:
    """The share of a recurring pattern's queries that read, by how often it had been seen."""
    trained = _rows(results, ("paper-practice",), "averaged curve")
    trained = [row for row in trained if row.get("counted") == "from the start"]
    if trained:
        curves = {
            model: [(row["k"], row["share_read"]) for row in trained if row["model"] == model]
            for model in _models(trained)
        }
        return Drawn(curves=curves, note=_about(trained, trained[0].get("seeds")))
    explored = _rows(results, ("explored",), "practice")
    points = [(row["k"], row["read"] / row["asked"]) for row in explored if row["asked"]]
    note = (
        "Decisions in training, of the same run: until release a query skips by chance alone, whatever it has seen. "
        "Laws are fitted to decisions by torchcram reproduce practice."
    )
    return Drawn(curves={"cram": points} if points else {}, note=note if points else "")


_EXPLORED = "The run of the memory explorer below: small, with our recipe."


def _about(rows: Sequence[Row], seeds: int | None) -> str:
    told = f", mean of {seeds} seeds" if seeds and seeds > 1 else ""
    return f"torchcram reproduce, scale {rows[0].get('scale', 'unknown')}{told}."


def _rows(results: Results, files: Sequence[str], what: str | None) -> list[Row]:
    """Rows of the first file that has any, but for those of a scale that tells nothing."""
    for file in files:
        rows = results.get(file, {}).get("rows", ())
        found = [row for row in rows if what in (None, row.get("what")) and "caveat" not in row]
        if found:
            return found
    return []


def _models(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["model"]) for row in rows))


def _mean(rows: Sequence[Row], x: str, y: str) -> Points:
    values: dict[float, list[float]] = {}
    for row in rows:
        if row.get(y) is not None:
            values.setdefault(row[x], []).append(row[y])
    return [(at, statistics.fmean(found)) for at, found in sorted(values.items())]


def _density(histogram: str) -> Points:
    counts = [int(count) for count in histogram.split()]
    total = sum(counts) or 1
    return [((i + 0.5) / _BINS, _BINS * count / total) for i, count in enumerate(counts)]
