"""Verdicts on redundant attention: what the paper says of GPT-2 beside what other models say here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts.verdict import Results, Row, Rule, Verdict, figure, is_number, rows

PRETRAINED, TRAINING = "redundancy-smollm2", "redundancy-training"
_PROBE = "torchcram probe {model} --text FILE --out RUN"
_WEIGHTS = "of GPT-2, whose weights are not at hand: with them, the command measures it"
_TRAINED = (
    "GPT-2 was not trained here for 300,000 steps; ours are small models of bytes, so steps and nats are not the same"
)


def _command(claim: Claim) -> str:
    name = claim.id.partition("/")[2]
    return _PROBE.format(model="gpt2-medium" if name.startswith("gpt2-medium") else "gpt2")


def _texts(results: Results) -> dict[str, list[Row]]:
    """Rows of the pretrained model on each text that it was judged on."""
    found: dict[str, list[Row]] = {}
    for row in rows(results, PRETRAINED):
        if row.get("weights", "pretrained") == "pretrained" and row.get("positions", "later") == "later":
            found.setdefault(str(row.get("text")), []).append(row)
    return found


def _one(found: Sequence[Row], **wanted: object) -> Row | None:
    return next((row for row in found if all(row.get(key) == value for key, value in wanted.items())), None)


def _of_group(claim: Claim, results: Results) -> Verdict | None:
    """R of a third of the layers, the mean's own R, and the share of the variance that is told."""
    part = claim.id.rpartition("/")[2]
    group = part if part in ("early", "late") else "middle" if part.startswith("middle") else "overall"
    told = []
    for text, found in _texts(results).items():
        linear = _one(found, what="group", group=group, predictor="linear")
        mean = _one(found, what="group", group=group, predictor="mean")
        if linear is not None and mean is not None:
            told.append(
                f"R {figure(linear['printed'], 'number')}, the mean's alone {figure(mean['printed'], 'number')}, "
                f"centred R² {figure(linear['r2'], 'number')} (`{text}`)"
            )
    why = _WEIGHTS
    if claim.id == "redundancy/share":
        why += ". R is one minus a relative error, no share of operations; centred R² is a share of the variance"
    return _beside(claim, results, told, why)


def _heads(claim: Claim, results: Results) -> Verdict | None:
    key = claim.id.removeprefix("redundancy/heads-")
    told = []
    for text, found in _texts(results).items():
        shares = [_one(found, what="heads", measure=measure) for measure in ("printed", "r2")]
        if shares[0] is not None and shares[1] is not None:
            told.append(
                f"{figure(shares[0][key], 'share')} by R, {figure(shares[1][key], 'share')} by centred R² (`{text}`)"
            )
    return _beside(claim, results, told, _WEIGHTS)


def _beside(claim: Claim, results: Results, told: Sequence[str], why: str) -> Verdict | None:
    if not told:
        return None
    name = next((str(row["model"]) for row in rows(results, PRETRAINED) if row.get("model")), "another model")
    return Verdict(
        status="not testable here",
        measured=f"{name}: {'; '.join(told)}",
        why=why,
        files=(PRETRAINED,),
        command=_command(claim),
    )


def _over_training(claim: Claim, results: Results) -> Verdict | None:
    """R and loss at the first and the last step after the start, of each model, on the first text of each."""
    measure = "loss" if "validation-loss" in claim.id else "printed"
    told = []
    for model in dict.fromkeys(str(row["model"]) for row in rows(results, TRAINING)):
        mine = rows(results, TRAINING, model=model)
        mine = [row for row in mine if row.get("text") == mine[0].get("text")]
        ends = [(step, _at(mine, step, measure)) for step in _ends(mine)]
        if ends and all(value is not None for _, value in ends):
            said = " → ".join(
                f"{figure(value, 'number')} at step {step:,}" for step, value in ends if value is not None
            )
            told.append(f"{model}: {'loss' if measure == 'loss' else 'R'} {said}")
    if not told:
        return None
    return Verdict(
        status="not testable here",
        measured="; ".join(told),
        why=_TRAINED,
        files=(TRAINING,),
        command="torchcram train text --out RUN; torchcram probe RUN --at STEPS --text FILE --out OUT",
    )


def _ends(mine: Sequence[Row]) -> list[int]:
    """The first step at which something had been learned, and the last."""
    steps = sorted({int(row["step"]) for row in mine if is_number(row.get("step")) and row["step"] > 0})
    return [steps[0], steps[-1]] if len(steps) > 1 else steps


def _at(mine: Sequence[Row], step: int, measure: str) -> float | None:
    wanted: dict[str, object] = {"what": "loss"}
    if measure != "loss":
        wanted = {"what": "group", "group": "overall", "predictor": "linear", "weights": "pretrained"}
        wanted["positions"] = "later"
    row = _one(mine, step=step, **wanted)
    return float(row[measure]) if row is not None and is_number(row.get(measure)) else None


def _without(claim: Claim, results: Results) -> Verdict:
    """Nothing was measured of any model: still it cannot be of GPT-2."""
    scratch = claim.id.startswith(("redundancy/training/", "redundancy/validation-loss/", "redundancy/rise"))
    return Verdict(
        status="not testable here",
        why=_TRAINED if scratch else _WEIGHTS,
        command="torchcram train text --out RUN; torchcram probe RUN --at STEPS --text FILE --out OUT"
        if scratch
        else _command(claim),
    )


def _or_nothing(rule: Rule) -> Rule:
    return lambda claim, results: rule(claim, results) or _without(claim, results)


_LAYERS = (
    "redundancy/share",
    "redundancy/overall-in-text",
    "redundancy/middle-in-text",
    *(name for name in CLAIMS if name.startswith(("redundancy/gpt2/", "redundancy/gpt2-medium/"))),
)
_STEPS = tuple(name for name in CLAIMS if name.startswith(("redundancy/training/", "redundancy/validation-loss/")))

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_LAYERS, _or_nothing(_of_group)),
    **{f"redundancy/heads-{key}": _or_nothing(_heads) for key in ("high", "middle", "low")},
    **dict.fromkeys((*_STEPS, "redundancy/rise-in-text"), _or_nothing(_over_training)),
}
