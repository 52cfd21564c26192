"""Verdicts on SRCD's main results: table 1, and what the text says of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts.verdict import (
    POINTS,
    SPACE,
    Results,
    Row,
    Rule,
    Status,
    Verdict,
    figure,
    near,
    rows,
    spread,
)

MEDIUM, BASELINES, PAPER, SMALL = "srcd-medium", "baselines-srcd", "srcd-paper", "paper-srcd"
_SOLVED = 0.99
_GUESSING = 0.05
"""Accuracy above the recurring share that still counts as retrieving nothing."""

_TRAIN = "torchcram train srcd --preset medium --device cuda --out RUN --set seed=SEED; torchcram evaluate RUN"


def recipe(results: Results) -> list[Row]:
    """CRAM with our recipe, a row a seed."""
    return rows(results, MEDIUM, what="recipe")


def finals(results: Results, model: str) -> list[Row]:
    """A model at its best setting after as many steps as all others, a row a seed."""
    found = [row for row in rows(results, BASELINES, what="final", model=model) if row.get("routing") == "routed"]
    steps = min((row["steps"] for row in found), default=0)
    return [row for row in found if row["steps"] == steps]


def column(found: Sequence[Row], key: str) -> list[float]:
    """A number of each row."""
    return [float(row[key]) for row in found]


def _papers_own(results: Results, key: str) -> str:
    """With the paper's own recipe, at this size and, with more seeds, at a smaller one, whose rows have reads as its
    router chooses them."""
    found = [row for row in rows(results, MEDIUM) if str(row.get("what", "")).startswith("paper schedule")]
    if not found:
        return ""
    values = " and ".join(dict.fromkeys(figure(value, "share") for value in column(found, key)))
    steps, small = found[0]["steps"], _small(results)
    told = f"; with the paper's own recipe {values} ({steps:,} steps of 8 sequences, not 10,000 of 32)"
    if not small:
        return told
    how = ", since q_t needs the very reads that it is to spare; its router chooses" if key == "reads" else ", and"
    return f"{told}{how} {spread(column(small, key), 'share')} with `torchcram reproduce srcd`"


def _small(results: Results) -> list[Row]:
    found = rows(results, SMALL, what="run", model="cram, the paper's recipe")
    return [row for row in found if "caveat" not in row]


def _files(results: Results) -> tuple[str, ...]:
    return (MEDIUM, *([PAPER] if rows(results, PAPER) else []), *([SMALL] if _small(results) else []))


def _at_papers_size(results: Results, key: str) -> str:
    found = rows(results, PAPER)
    return f"; at the paper's size {spread(column(found, key), 'share')}" if found else ""


def accuracy(claim: Claim, results: Results) -> Verdict | None:
    found = recipe(results)
    if not found:
        return None
    values = column(found, "accuracy")
    reached = min(values) >= claim.value - POINTS
    return Verdict(
        status="holds differently" if reached else "does not hold",
        measured=spread(values, "share") + _at_papers_size(results, "accuracy"),
        why="with our recipe" + _papers_own(results, "accuracy"),
        files=_files(results),
        command=_TRAIN,
    )


def reads(claim: Claim, results: Results) -> Verdict | None:
    """Reads of positions are judged; the mean over layers, which the paper may mean, is less."""
    found = recipe(results)
    if not found:
        return None
    values, least = column(found, "reads"), statistics.fmean(column(found, "opt"))
    return Verdict(
        status="holds differently" if statistics.fmean(values) <= 1.1 * claim.value else "does not hold",
        measured=f"{spread(values, 'share')} of the positions, {figure(_mean(found, 'layer_reads'), 'share')} a layer"
        + _at_papers_size(results, "reads"),
        why=f"with our recipe; the least possible is {figure(least, 'share')}" + _papers_own(results, "reads"),
        files=_files(results),
        command=_TRAIN,
    )


def _baselines(claim: Claim, results: Results) -> Verdict | None:
    names = {"Transformer": "transformer", "Mamba": "mamba", "SeqBoat": "seqboat"}
    found = {shown: finals(results, name) for shown, name in names.items()}
    if not all(found.values()):
        return None
    above = [shown for shown, mine in found.items() if _mean(mine, "accuracy") > claim.value + _GUESSING]
    later = [told for shown, name in names.items() if (told := _later(results, shown, name))]
    return Verdict(
        status="does not hold" if above else "holds",
        measured="; ".join(f"{shown} {spread(column(mine, 'accuracy'), 'share')}" for shown, mine in found.items()),
        why="; ".join(filter(None, (_not_staying(above), " and ".join(later)))),
        files=(BASELINES,),
        command=_sweep("transformer,mamba,seqboat"),
    )


def _not_staying(models: Sequence[str]) -> str:
    if not models:
        return "all stay near the share of recurring queries"
    return f"{' and '.join(models)} {'do' if len(models) > 1 else 'does'} not stay there"


def _later(results: Results, shown: str, name: str) -> str:
    """What a model has after more steps, where that was tried."""
    usual = finals(results, name)
    more = [row for row in rows(results, BASELINES, what="final", model=name) if row["steps"] > usual[0]["steps"]]
    return ", ".join(f"{shown} has {figure(row['accuracy'], 'share', 4)} after {row['steps']:,} steps" for row in more)


def _ratio(claim: Claim, results: Results) -> Verdict | None:
    found = recipe(results)
    if not found:
        return None
    values = column(found, "reads")
    return Verdict(
        status="holds differently" if statistics.fmean(values) <= claim.value else "does not hold",
        measured=spread(values, "number"),
        why="reads at the end ÷ 1: with our recipe every position reads until release. The paper prints 0.019 and 0.04",
        files=(MEDIUM,),
        command=_TRAIN,
    )


def _below_one(claim: Claim, results: Results) -> Verdict | None:
    ours, gate = recipe(results), finals(results, "gate")
    if not ours or not gate:
        return None
    unique = _mean(gate, "reads") >= 1
    return Verdict(
        status="holds" if unique else "holds differently",
        measured=f"CRAM {spread(column(ours, 'reads'), 'number')}; a gate alone "
        f"{spread(column(gate, 'reads'), 'number')}",
        why="attention falls, but not with CRAM alone: with a price and our recipe it falls without semantic "
        "memory, too",
        files=(MEDIUM, BASELINES),
        command=_sweep("cram,gate"),
    )


def _mean(found: Sequence[Row], key: str) -> float:
    return statistics.fmean(column(found, key))


def _sweep(models: str) -> str:
    return f"torchcram sweep srcd --preset medium --device cuda --out RUNS --vary model={models} --vary seed=0,1,2"


def _model(claim: Claim) -> str:
    return claim.id.split("/")[1]


def _table_accuracy(claim: Claim, results: Results) -> Verdict | None:
    model = _model(claim)
    found = finals(results, model)
    if not found:
        return None
    values = column(found, "accuracy")
    gap = abs(statistics.fmean(values) - claim.value)
    later = _later(results, "the same model", model)
    status: Status = "holds" if gap <= POINTS else "holds differently" if gap <= _GUESSING else "does not hold"
    if later and status != "does not hold":
        status = "holds differently"
    why = f"after {found[0]['steps']:,} steps" + (f"; {later}" if later else "")
    return Verdict(
        status=status,
        measured=spread(values, "share"),
        why=f"{why}; {figure(_mean(found, 'static_bound') - _mean(found, 'opt'), 'share')} of the positions ask for "
        "recurring keys, seven queries of ten"
        if status == "holds differently"
        else why,
        files=(BASELINES,),
        command=_sweep(model),
    )


def _table_attention(claim: Claim, results: Results) -> Verdict | None:
    model = _model(claim)
    found = finals(results, model)
    if not found:
        return None
    values = column(found, "layer_reads")
    same = near(statistics.fmean(values), claim.value)
    other: Status = "holds differently" if model == "jamba" else "does not hold"
    why = "share of tokens that attend in a layer, of all layers"
    if model == "jamba":
        why += "; here attention is in one of four layers, not of eight"
    # A mean of runs that have nothing in common with each other may be anywhere.
    apart = same and max(values) - min(values) > claim.value
    if apart:
        why += f"; as printed on average only, its seeds have from {figure(min(values), 'times')} to "
        why += figure(max(values), "times")
    return Verdict(
        status="holds differently" if apart else "holds" if same else other,
        measured=spread(values, "times"),
        why=why,
        files=(BASELINES,),
        command=_sweep(model),
    )


def attention(claim: Claim, results: Results) -> Verdict | None:
    """CRAM's: judged by the positions that read; a layer's share is less."""
    found = recipe(results)
    if not found:
        return None
    values = column(found, "reads")
    return Verdict(
        status="holds differently" if statistics.fmean(values) <= 1.1 * claim.value else "does not hold",
        measured=f"{spread(values, 'times')} by positions, {figure(_mean(found, 'layer_reads'), 'times')} by "
        "tokens of a "
        "layer",
        why="with our recipe",
        files=(MEDIUM,),
        command=_TRAIN,
    )


def _dynamics(claim: Claim, results: Results) -> Verdict | None:
    """Errors can be compared with a Transformer's only: the paper does not say how large its noise is."""
    model = _model(claim)
    ours, base = finals(results, model), finals(results, "transformer")
    if not ours or not base:
        return None
    ratio, floor = _mean(ours, "dynamics_mse") / _mean(base, "dynamics_mse"), _mean(ours, "dynamics_floor")
    printed = claim.value / CLAIMS["srcd/transformer/dynamics-mse"].value
    compared = f"{ratio:.2f} times a Transformer's, where {printed:.2f} times is printed"
    status: Status = "holds differently" if near(ratio, printed) else "does not hold"
    return Verdict(
        status="not testable here" if model == "transformer" else status,
        measured=f"{spread(column(ours, 'dynamics_mse'), 'number')}, floor {figure(floor, 'number')}",
        why="the variance of the paper's noise is not given" + ("" if model == "transformer" else f"; {compared}"),
        files=(BASELINES,),
        command=_sweep(f"transformer,{model}" if model != "transformer" else model),
    )


def _never_changes(claim: Claim, results: Results) -> Verdict | None:
    found = finals(results, _model(claim))
    if not found:
        return None
    return Verdict(
        status="holds",
        measured=spread([row["reads"] / row["reads_training"] for row in found], "number"),
        why="which layers attend is fixed, so that nothing can fall",
        files=(BASELINES,),
        command=_sweep(_model(claim)),
    )


def _least(claim: Claim, results: Results) -> Verdict | None:
    """The bound of a static router, against a router that is static and reads less."""
    gate = finals(results, "gate")
    if not gate:
        return None
    reads, bound = column(gate, "reads"), _mean(gate, "static_bound")
    return Verdict(
        status="does not hold" if max(reads) < bound else "holds",
        measured=f"a gate without semantic memory reads {spread(reads, 'share')}",
        why="weights can know the recurring keys by heart, whatever the routing: its accuracy is "
        f"{figure(_mean(gate, 'accuracy'), 'share', 4)}",
        files=(BASELINES,),
        command=_sweep("gate"),
    )


def _seqboat_usage(claim: Claim, results: Results) -> Verdict:
    why = f"what another paper says of its own tasks; on SRCD see table{SPACE}1"
    return Verdict(status="not testable here", why=why, command=_sweep("seqboat"))


def _of_jamba(claim: Claim, results: Results) -> Verdict | None:
    return _table_accuracy(CLAIMS["srcd/jamba/accuracy"], results)


def _one_start(claim: Claim, results: Results) -> Verdict:
    command = "torchcram train srcd --preset medium --model seqboat --out RUN"
    return Verdict(status="not yet measured", why="needs what it attends to at the start, too", command=command)


RULES: Mapping[str, Rule] = {
    "srcd/accuracy": accuracy,
    "srcd/reads": reads,
    "srcd/baselines": _baselines,
    "srcd/jamba-in-text": _of_jamba,
    "srcd/ratio-in-text": _ratio,
    "srcd/ratio-below-one": _below_one,
    "srcd/seqboat-usage": _seqboat_usage,
    **{f"srcd/{model}/accuracy": _table_accuracy for model in ("transformer", "mamba", "jamba", "seqboat")},
    **{f"srcd/{model}/attention": _table_attention for model in ("transformer", "mamba", "jamba", "seqboat")},
    **{f"srcd/{model}/dynamics-mse": _dynamics for model in ("transformer", "mamba", "jamba", "seqboat", "cram")},
    **{f"srcd/{model}/ratio": _never_changes for model in ("transformer", "jamba")},
    **{f"srcd/{model}/bound": _least for model in ("jamba", "seqboat", "cram-without-consolidation")},
    "srcd/seqboat/ratio": _one_start,
    "srcd/cram/accuracy": accuracy,
    "srcd/cram/attention": attention,
    "srcd/cram/ratio": _ratio,
    "ablation/full/accuracy": accuracy,
    "ablation/full/attention": attention,
    "ablation/full/ratio": _ratio,
}
