"""The phase transition in trained models: when reads fall, how suddenly, and what moves it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from torchcram.paper.claims import CLAIMS
from torchcram.paper.curves import Array, at_release, over_training, points
from torchcram.paper.prices import PRICES
from torchcram.paper.runs import Trained, Wanted, measured, train
from torchcram.paper.setup import Setup, Size
from torchcram.paper.srcd import summary
from torchcram.paper.transition import FITS, Transition, intervals, sigmoid
from torchcram.results import Row
from torchcram.training.recipes import RECIPES

OURS, PAPERS = "cram", "cram, the paper's recipe"
MOVED: Mapping[str, str] = {
    "consolidation.cooling": "the end of the temperature's fall",
    "consolidation.price": "the price of a read",
    "optimizer.rate": "the learning rate",
    "batch": "the batch",
}
"""What may move the fall, by setting."""
_LEAST_FALL = 0.1  # of the positions: with less there is nothing to date
_FEWEST = 5  # points of a curve that can be fitted
_THRESHOLD = CLAIMS["phase/quality-threshold"].value


def wanted(size: Size) -> list[Wanted]:
    """Both recipes, then ours with one setting moved at a time, and the paper's with another temperature schedule."""
    rate = RECIPES[size.preset]["optimizer.rate"]
    values = {
        "consolidation.cooling": size.others(*(str(size.steps // part) for part in (3, 30))),
        "consolidation.price": size.others(*PRICES),
        "optimizer.rate": size.others(*(f"{rate * times:g}" for times in (0.5, 1.5))),
        "batch": size.others("8", "32"),
    }
    cooling = [str(round(share * size.paper_steps)) for share in (0.6, 0.15)]
    return [
        Wanted(name=OURS, seeds=size.main_seeds),
        Wanted(name=PAPERS, changes=size.papers, seeds=size.main_seeds),
        *(
            Wanted(name=_name(OURS, setting, value), changes={setting: value}, seeds=size.seeds)
            for setting, mine in values.items()
            for value in mine
        ),
        *(
            Wanted(
                name=_name(PAPERS, "consolidation.cooling", value),
                changes={**size.papers, "consolidation.cooling": value},
                seeds=size.seeds,
            )
            for value in size.others(*cooling)
        ),
    ]


def _name(recipe: str, setting: str, value: str) -> str:
    return f"{recipe}, {setting}={value}"


def run(setup: Setup) -> Iterator[Row]:
    """Curves, densities of quality, fits of the fall for each setting, and what it moves with."""
    trained = train(setup, wanted(setup.size))
    for name in (OURS, PAPERS):
        for row in points(trained[name]):
            yield measured(setup, {**row, "claim": "phase/fall", "curve": "phase/attention", "model": name})
        for row in (_quality_at_the_fall(trained[name]), *_densities(trained[name])):
            yield measured(setup, {**row, "claim": "phase/quality-threshold", "model": name})
    for name, runs in trained.items():
        for row in _fits(runs, setup.size.draws):
            yield measured(setup, {**row, "model": name, "seeds": len(runs)})
    for recipe in (OURS, PAPERS):
        for setting in MOVED:
            mine = [
                each for name, each in trained.items() if name == recipe or name.startswith(f"{recipe}, {setting}=")
            ]
            if len(mine) > 1:
                runs = [one for each in mine for one in each]
                yield measured(setup, {**moves(setting, runs), "model": recipe})


def fall(run: Trained) -> Transition | None:
    """A sigmoid through what one run read; None if reads hardly fell."""
    steps, reads = over_training([run])
    if len(steps) < _FEWEST:
        return None
    found = sigmoid(steps, reads[0])
    return found if found.before - found.after > _LEAST_FALL else None


def cooled_at(run: Trained) -> int | None:
    """The step at which the temperature has come to its end; None if reads were never released."""
    c = run.config.consolidation
    if run.released_at is None:
        return None
    return run.released_at + (c.cooling or (3000 if c.schedule == "paper" else c.ramp))


def _fits(runs: Sequence[Trained], draws: int) -> Iterator[Row]:
    """The mean curve of a setting's runs; intervals are over runs, or of one run over blocks of residuals."""
    steps, reads = over_training(runs)
    about: Row = {
        "claim": "phase/step",
        "printed": CLAIMS["phase/step"].value,
        "steps": int(steps[-1]),
        "released_at": _mean([run.released_at for run in runs]),
        "cooled_at": _mean([cooled_at(run) for run in runs]),
    }
    mean = reads.mean(0)
    if len(steps) < _FEWEST or np.ptp(mean) < _LEAST_FALL:
        yield {"what": "no fall", **about, "measured": None, "first": float(mean[0]), "last": float(mean[-1])}
        return
    for law, fit in FITS.items():
        found = fit(steps, mean)
        if found.before - found.after < _LEAST_FALL:  # they rose
            yield {"what": "no fall", **about, "measured": None, "first": found.before, "last": found.after}
            continue
        limits = intervals(law, steps, reads, draws=draws)
        yield {
            "what": f"{law} in reads over training",
            **about,
            "measured": found.centre,
            "low": limits["centre"][0],
            "high": limits["centre"][1],
            "duration": found.duration,
            "duration_low": limits["duration"][0],
            "duration_high": limits["duration"][1],
            "duration_of_training": found.duration / float(steps[-1]),
            "before": found.before,
            "after": found.after,
            "aic": found.aic,
        }


def moves(setting: str, runs: Sequence[Trained]) -> Row:
    """How the centre of the fall moves with a setting: a straight line, with its 95 % interval if runs are enough.

    Against how long the temperature falls, both counted from release, in steps for each step: 1 if the one makes the
    other, as where the paper has both at step 3000. Against the others, in steps for each doubling.
    """
    cooling = setting == "consolidation.cooling"
    at, centres, after = [], [], []
    for run in runs:
        found, end = fall(run), cooled_at(run)
        if found is None or end is None or run.released_at is None:
            continue
        at.append(float(end - run.released_at) if cooling else math.log2(_value(run, setting)))
        centres.append(found.centre - run.released_at if cooling else found.centre)
        after.append(found.centre - run.released_at)
    row: Row = {
        "what": f"fall against {MOVED[setting]}",
        "claim": "phase/step-about",
        "setting": setting,
        "runs": len(runs),
        "runs_that_fall": len(at),
        "unit": "steps for each step" if cooling else "steps for each doubling",
    }
    if len(set(at)) < 2:
        return {**row, "measured": None}
    return {**row, **_slope("measured", at, centres), **_slope("after_release", at, after)}


def _slope(name: str, x: Sequence[float], y: Sequence[float]) -> Row:
    line = stats.linregress(x, y)
    low, high = ("low", "high") if name == "measured" else (f"{name}_low", f"{name}_high")
    if len(x) < 3:
        return {name: float(line.slope), low: None, high: None}
    # Where all are the same it is not a number.
    reach = float(stats.t.ppf(0.975, len(x) - 2)) * float(np.nan_to_num(line.stderr))
    return {name: float(line.slope), low: float(line.slope) - reach, high: float(line.slope) + reach}


def _value(run: Trained, setting: str) -> float:
    value: Any = run.config
    for part in setting.split("."):
        value = getattr(value, part)
    return float(value)


def _quality_at_the_fall(runs: Sequence[Trained]) -> Row:
    """q̄ where half of the fall is over, a run each; nothing if one of them did not fall."""
    found = [(run, fall(run)) for run in runs]
    values = [
        float(np.interp(each.centre, *np.array([(e["step"], e["mean_quality"]) for e in run.metrics], dtype=float).T))
        if each is not None
        else None
        for run, each in found
    ]
    return {"what": "mean quality where attention falls", "printed": _THRESHOLD, **summary(values), "runs": len(runs)}


def _densities(runs: Sequence[Trained]) -> Iterator[Row]:
    """How q is distributed over positions and layers, all runs together: at four moments, as figure 3 has it."""
    moments: dict[str, list[Mapping[str, Any]]] = {
        "at the first evaluation": [run.metrics[0] for run in runs],
        "at release": [at_release(run) for run in runs],
        "after release": [_after_release(run) for run in runs],
        "at the end": [run.metrics[-1] for run in runs],
    }
    for moment, entries in moments.items():
        counts: Array = np.sum([_histogram(entry) for entry in entries], axis=0)
        width, total = 1 / len(counts), int(counts.sum())
        middles = (np.arange(len(counts)) + 0.5) * width
        yield {
            "what": f"quality {moment}",
            "step": _mean([entry["step"] for entry in entries]),
            "mean_quality": float(counts @ middles) / total,
            "share_above_printed_threshold": float(counts[middles > _THRESHOLD].sum()) / total,
            **{f"density at {q:.3f}": float(count) / total / width for q, count in zip(middles, counts, strict=True)},
        }


def _after_release(run: Trained) -> Mapping[str, Any]:
    later = [entry for entry in run.metrics if entry["step"] >= (run.released_at or 0)]
    return later[0] if later else run.metrics[-1]


def _histogram(entry: Mapping[str, Any]) -> Array:
    counts: Array = np.sum([layer for kind in entry["histograms"].values() for layer in kind], axis=0)
    return counts.astype(np.float64)


def _mean(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if len(known) == len(values) else None
