"""The law of practice in trained models: which patterns still read after so many exposures, decision by decision.

"Compared with" what is printed, never more: a curve of the same form says nothing about human memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from torchcram.paper.claims import CLAIMS
from torchcram.paper.exposures import Exposures, by_step, from_steps, grouped, joined
from torchcram.paper.laws import LAWS, Array
from torchcram.paper.likelihood import Fit, compare, fit, held_out, intervals
from torchcram.paper.practice import log_slope
from torchcram.paper.runs import Trained, Wanted, measured, train
from torchcram.paper.setup import Setup, Size
from torchcram.results import Row
from torchcram.training.decisions import load_decisions

Counted = Literal["from the start", "from release"]
_BINS = 12  # of the averaged curve, evenly in the logarithm of k
_FALL = 0.2  # a pattern's reads have stopped where their share falls by more
_GAMMA = CLAIMS["practice/gamma"].value


def wanted(size: Size) -> list[Wanted]:
    """CRAM with our recipe and with the paper's; and with frequencies that differ, so that k is not the step."""
    return [
        Wanted(name="cram", seeds=size.main_seeds),
        Wanted(name="cram, the paper's recipe", changes=size.papers, seeds=size.main_seeds),
        Wanted(name="cram, frequencies by a power law", task="zipf", seeds=size.seeds),
    ]


def run(setup: Setup) -> Iterator[Row]:
    """Laws fitted to decisions, pooled and pattern by pattern; the averaged curve; and exposures apart from steps."""
    for name, runs in train(setup, wanted(setup.size)).items():
        ways: tuple[Counted, ...] = ("from the start", "from release")
        if runs[0].config.consolidation.schedule == "paper":
            ways = ways[:1]  # released from the start
        for counted in ways:
            common: Row = {"model": name, "task": runs[0].config.task, "counted": counted, "seeds": len(runs)}
            data = exposures(runs, counted)
            if data is None:
                yield measured(setup, {"what": "never released", "claim": "practice/law", **common})
                continue
            heard: Row = {**common, "seeds": len(np.unique(data.seed))}  # of runs that were released
            for row in _rows(data, setup.size):
                yield measured(setup, {**row, **heard})
        for row in _clocks(runs):
            yield measured(setup, {**row, "model": name, "task": runs[0].config.task, "seeds": len(runs)})


def exposures(runs: Sequence[Trained], counted: Counted = "from the start", *, steps: bool = False) -> Exposures | None:
    """What runs recorded of each pattern, seeds told apart; None if there is nothing of the kind.

    counted: From release, what came before is left out, and the first k is the first one after it.
    steps: Count training steps instead of exposures.
    """
    parts = []
    for run in runs:
        since = 0 if counted == "from the start" else run.released_at
        if since is None:
            continue
        found = load_decisions(run.folder / "checkpoints" / "decisions")
        later = found["step"] >= since
        asked, read = (found[name][later].numpy().astype(np.int64) for name in ("asked", "read"))
        if asked.sum():
            asked, read, first = grouped(asked, read)
            once = by_step(asked, read, seed=run.seed, steps=first) if steps else from_steps(asked, read, seed=run.seed)
            parts.append(once)
    return joined(parts) if parts else None


def gamma(data: Exposures) -> float:
    """γ of a power law without a floor, as printed, by likelihood."""
    return fit("power", data, floor=False).parameters["gamma"]


def _rows(data: Exposures, size: Size) -> Iterator[Row]:
    patterns = len(np.unique(data.pattern))
    about: Row = {"patterns": patterns, "decisions": data.decisions, "share_read": data.read.sum() / data.decisions}
    apart = held_out(data, folds=min(5, patterns)) if patterns > 1 else {}
    fits = compare(data)
    for law, found in fits.items():
        yield {
            "what": f"{law}, one curve for all patterns",
            "claim": "practice/law",
            **_judged(found),
            **({"held_out_patterns": apart[law]} if apart else {}),
            "best": found.aic == min(each.aic for each in fits.values()),
            **found.parameters,
            **about,
        }
    low, high = intervals("power", data, floor=False, draws=min(size.draws, 100))["gamma"]
    yield {
        "what": "γ of one power law without a floor",
        "claim": "practice/gamma",
        "printed": _GAMMA,
        "measured": gamma(data),
        "low": low,
        "high": high,
        **about,
    }
    yield _pattern_by_pattern(data)
    yield from _averaged(data)


def _judged(found: Fit) -> Row:
    return {"aic": found.aic, "bic": found.bic, "likelihood_a_decision": found.likelihood / found.decisions}


def _pattern_by_pattern(data: Exposures) -> Row:
    """Each pattern with parameters of its own: which law is best for how many, and for all of them together."""
    each = [compare(data.where(data.pattern == pattern)) for pattern in np.unique(data.pattern)]
    total = {law: sum(fits[law].aic for fits in each) for law in LAWS}
    ranked = sorted(total, key=total.__getitem__)
    best = [min(fits, key=lambda law: fits[law].aic) for fits in each]
    return {
        "what": "laws pattern by pattern",
        "claim": "practice/law",
        "patterns": len(each),
        "best": ranked[0],
        "second": ranked[1],
        "aic_between": total[ranked[1]] - total[ranked[0]],
        **{f"best_for {law}": best.count(law) / len(best) for law in LAWS},
    }


def _averaged(data: Exposures) -> Iterator[Row]:
    """The share that reads at each k, all patterns and seeds together: what figure 4 plots, and what it hides."""
    edges = np.unique(np.geomspace(1, data.k.max() + 1, _BINS + 1).round().astype(np.int64))
    middles, shares = [], []
    for begin, end in pairwise(edges.tolist()):
        mine = data.where((data.k >= begin) & (data.k < end))
        if mine.decisions:
            middles.append(float((mine.k * mine.asked).sum() / mine.decisions))
            shares.append(float(mine.read.sum() / mine.decisions))
            yield {
                "what": "averaged curve",
                "claim": "practice/fit",
                "k": middles[-1],
                "share_read": shares[-1],
                "decisions": mine.decisions,
            }
    k, share = np.array(middles), np.array(shares)
    reads = share > 0
    if reads.sum() > 2:
        found, low, high = log_slope(k[reads], share[reads])
        yield {
            "what": "γ of the averaged curve, by least squares of logarithms",
            "claim": "practice/gamma",
            "printed": _GAMMA,
            "measured": found,
            "low": low,
            "high": high,
            "points": int(reads.sum()),
        }


def _clocks(runs: Sequence[Trained]) -> Iterator[Row]:
    """Whether decisions go by how often a pattern was seen, or by how long training has lasted."""
    seen, trained = exposures(runs), exposures(runs, steps=True)
    if seen is None or trained is None:
        return
    for clock, data in (("exposures", seen), ("training steps", trained)):
        fits = compare(data)
        best = min(fits, key=lambda law: fits[law].aic)
        yield {
            "what": f"laws of {clock}",
            "claim": "practice/law",
            "best": best,
            **_judged(fits[best]),
        }
    yield until_it_stops(seen)


def until_it_stops(data: Exposures) -> Row:
    """Exposures after which a pattern's reads stop, over its frequency, in logarithms.

    A slope of 0: exposures decide. A slope of 1: the training step does, in which frequent patterns have seen more.
    """
    frequency, last = [], []
    for pattern in np.unique(data.pattern):
        mine = data.where(data.pattern == pattern)
        stop = fit("change-point", mine).parameters
        if stop["start"] - stop["floor"] > _FALL:
            frequency.append(float(mine.decisions))
            last.append(stop["last"])
    row: Row = {
        "what": "exposures until reads stop, over a pattern's frequency",
        "claim": "practice/law",
        "patterns_that_stop": len(last),
        "slope_if_exposures_decide": 0.0,
        "slope_if_steps_decide": 1.0,
    }
    if len(last) < 3 or np.ptp(np.log(frequency)) < 0.5 or np.ptp(last) == 0:
        return {**row, "measured": None}  # of frequencies that hardly differ nothing can be told
    slope, low, high = (-x for x in log_slope(np.array(frequency), _above_zero(last)))
    return {**row, "measured": slope, "low": min(low, high), "high": max(low, high)}


def _above_zero(values: Sequence[float]) -> Array:
    return np.maximum(np.array(values, dtype=np.float64), 1.0)
