"""Verdicts on irregular time series, from rows of `torchcram timeseries`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts.verdict import (
    CLOSE,
    POINTS,
    SPACE,
    Results,
    Row,
    Rule,
    Status,
    Verdict,
    figure,
    is_number,
    near,
    rows,
    spread,
)
from torchcram.results import ROUTED

MODELS = ("cram", "transformer", "mamba", "seqboat")
_ACTIVITY = "timeseries-activity"
_FILES = {"physionet": ("timeseries-p12",), "activity": (_ACTIVITY, "timeseries-wearable")}
"""Of the two data sets of what people do, the first that there is."""
_MEASURES = {"physionet": "auroc", "activity": "accuracy"}
_AUC = (
    "AUROC, as the paper calls its column; that it prints 0.900 for three models, to the digit, makes it doubtful that "
    "it is one"
)
OTHER = "of another data set of the kind, wearable sensors"
ABSENT = (
    "the paper does not say which data; those of the literature (UCI, Localization Data for Person Activity) could not "
    "be had, but for a tenth of them, of one person of five: with all of them, the command measures it"
)
"""Why nothing is said of what people do."""
_WHOLE = 1000
"""Groups that a model is judged on, at least: of the whole data a fifth of more than 6,000 windows."""


def command(claim: Claim) -> str:
    """What measures it."""
    data = next((short for word, short in (("mimic3", "mimic3"), ("activity", "activity")) if word in claim.id), "p12")
    return f"torchcram timeseries {data} FOLDER --models {','.join(MODELS)} --out RUN"


def is_whole(row: Row) -> bool:
    """Whether a model was judged on the whole data of what people do, not on a fragment."""
    return is_number(row.get("groups")) and int(row["groups"]) >= _WHOLE


def _found(results: Results, data: str, model: str) -> tuple[str, list[Row]]:
    """A model's rows on a data set, as it routes by itself, a split each, and their file; a fragment is no data set."""
    for file in _FILES[data]:
        mine = [
            row
            for row in rows(results, file, what="model", model=model)
            if row.get("routing", ROUTED) == ROUTED
            and is_number(row.get(_MEASURES[data]))
            and (file != _ACTIVITY or is_whole(row))
        ]
        if mine:
            return file, mine
    return _FILES[data][0], []


def _splits(values: Sequence[float], claim: Claim) -> str:
    return spread(values, claim.unit).replace("seed", "split")


def _score(claim: Claim, results: Results) -> Verdict | None:
    """A score of the same kind on the same data set, over splits."""
    _, model, data = claim.id.split("/")
    file, found = _found(results, data, model)
    if not found:
        return _absent(claim) if data == "activity" else None
    values = [float(row[_MEASURES[data]]) for row in found]
    by_chance = [row for row in rows(results, file, what="chance") if is_number(row.get(_MEASURES[data]))]
    chance = statistics.fmean(float(row[_MEASURES[data]]) for row in by_chance) if by_chance else None
    why = _AUC if data == "physionet" else ""
    if file != _FILES[data][0]:
        why = f"{OTHER}; {ABSENT}"
    if chance is not None and data == "activity":
        told = f"always the most common activity: {figure(chance, 'share')}"
        why = f"{why}; {told}" if why else told
    agrees: Status = "holds" if near(statistics.fmean(values), claim.value, CLOSE / 5) else "does not hold"
    return Verdict(
        status="not testable here" if file != _FILES[data][0] else agrees,
        measured=_splits(values, claim),
        why=why,
        files=(file,),
        command=command(claim),
    )


def _alike(claim: Claim, results: Results) -> Verdict | None:
    """The same score for CRAM and a Transformer: the printed one, or another that is the same of both."""
    pairs = [_found(results, "physionet", model) for model in ("cram", "transformer")]
    if not all(found for _, found in pairs):
        return None
    values = [[float(row["auroc"]) for row in found] for _, found in pairs]
    means = [statistics.fmean(mine) for mine in values]
    printed = [near(mean, claim.value, CLOSE / 5) for mean in means]
    gap = 100 * (means[0] - means[1])
    alike: Status = "holds differently" if abs(means[0] - means[1]) <= POINTS else "does not hold"
    return Verdict(
        status="holds" if all(printed) else alike,
        measured=f"CRAM {_splits(values[0], claim)}, Transformer {_splits(values[1], claim)}",
        why=f"CRAM is {abs(gap):.1f} points of AUROC {'ahead' if gap > 0 else 'behind'}; {_AUC}",
        files=(pairs[0][0],),
        command=command(claim),
    )


def _both(claim: Claim, results: Results) -> Verdict | None:
    """Accuracy of CRAM and of SeqBoat on what people do."""
    pairs = [_found(results, "activity", model) for model in ("cram", "seqboat")]
    if not all(found for _, found in pairs) or pairs[0][0] != pairs[1][0]:
        return _absent(claim)
    values = [[float(row["accuracy"]) for row in found] for _, found in pairs]
    agree = [near(statistics.fmean(v), p, CLOSE / 5) for v, p in zip(values, claim.values, strict=True)]
    agrees: Status = "holds" if all(agree) else "holds differently" if any(agree) else "does not hold"
    return Verdict(
        status="not testable here" if pairs[0][0] != _FILES["activity"][0] else agrees,
        measured=f"CRAM {_splits(values[0], claim)}, SeqBoat {_splits(values[1], claim)}",
        why=f"{OTHER}; {ABSENT}"
        if pairs[0][0] != _FILES["activity"][0]
        else "real protocols, beside what chance gives",
        files=(pairs[0][0],),
        command=command(claim),
    )


def _attention(claim: Claim, results: Results) -> Verdict | None:
    """Attention executed in a layer, of all time stamps: a Transformer's is all of it."""
    model = claim.id.split("/")[1] if claim.id.endswith("/attention") else "cram"
    file, found = _found(results, "physionet", model)
    values = [float(row["layer_reads"]) for row in found if is_number(row.get("layer_reads"))]
    if not values:
        return None
    fall = claim.id == "timeseries/fall"
    values = [1 - value for value in values] if fall else values
    mean = statistics.fmean(values)
    met = near(mean, claim.value) or abs(mean - claim.value) <= CLOSE / 20
    return Verdict(
        status="holds" if met else "does not hold",
        measured=_splits(values, claim),
        why=f"by construction: {'every time stamp reads' if model == 'transformer' else 'it has no attention'}"
        if model in ("transformer", "mamba")
        else f"on PhysioNet 2012, in a layer on average; MIMIC-III{SPACE}is not testable here",
        files=(file,),
        command=command(claim),
    )


def _absent(claim: Claim) -> Verdict:
    return Verdict(status="not testable here", why=ABSENT, command=command(claim))


def credentialed(claim: Claim, results: Results) -> Verdict:
    """Of data that not everyone is given."""
    why = "MIMIC-III is given to people with credentials only; with the data, the command measures it"
    return Verdict(status="not testable here", why=why)


RULES: Mapping[str, Rule] = {
    **{name: credentialed for name in CLAIMS if "mimic3" in name},
    **{f"timeseries/{model}/{data}": _score for model in MODELS for data in _FILES},
    **{f"timeseries/{model}/attention": _attention for model in MODELS},
    "timeseries/attention-in-text": _attention,
    "timeseries/fall": _attention,
    "timeseries/physionet-in-text": _alike,
    "timeseries/activity-in-text": _both,
}
