"""What was not measured yet, or cannot be: the command that would, or why not."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts.verdict import CLOSE, Results, Rule, Verdict, near, reproduce, rows, spread

_FROM_SCRATCH = "torchcram train text --out RUN; torchcram probe RUN --at STEPS --text FILE --out OUT"
_DATA = {"physionet": "p12", "mimic3": "mimic3", "activity": "activity"}
_MODELS = "cram,transformer,mamba,seqboat"


def command(claim: Claim, results: Results) -> str:
    """What measures a claim, if nothing better is known: its subject's experiment."""
    subject, _, name = claim.id.partition("/")
    if subject == "redundancy":
        model = "gpt2-medium" if name.startswith("gpt2-medium") else "gpt2"
        scratch = name.startswith(("training", "validation-loss", "rise"))
        return _FROM_SCRATCH if scratch else f"torchcram probe {model} --text FILE --out RUN"
    if subject == "timeseries":
        data = next((short for word, short in _DATA.items() if word in name), "p12")
        return f"torchcram timeseries {data} FOLDER --models {_MODELS} --out RUN"
    return reproduce(results, {"ablation": "ablations"}.get(subject, subject))


def waiting(claim: Claim) -> Verdict:
    """Of what no result file tells: what it takes."""
    subject, _, name = claim.id.partition("/")
    scratch = name.startswith(("training", "validation-loss", "rise"))
    needs = {
        "redundancy": "needs a model of GPT-2's size, trained for 300,000 steps"
        if scratch
        else "needs GPT-2's weights and text to probe them on",
        "transfer": "needs models trained on one task and tried on another",
        "timeseries": "needs the data set, which its owners give out",
        "phase": "needs runs that keep their quality over training",
        "practice": "needs the decisions of trained runs",
        "ablation": "needs runs of this variant",
    }
    return Verdict(status="not yet measured", why=needs.get(subject, "needs a run"), command=command(claim, {}))


def _credentialed(claim: Claim, results: Results) -> Verdict:
    why = "MIMIC-III is given to people with credentials only; with the data, the command measures it"
    return Verdict(status="not testable here", why=why)


def _of_data_set(claim: Claim, results: Results) -> Verdict | None:
    """A score of the same kind on the same data set, over splits."""
    _, model, data = claim.id.split("/")
    file, measure = f"timeseries-{_DATA[data]}", "accuracy" if data == "activity" else "auroc"
    found = [row for row in rows(results, file, what="model", model=model) if row.get(measure) is not None]
    if not found:
        return None
    values = [float(row[measure]) for row in found]
    return Verdict(
        status="holds" if near(statistics.fmean(values), claim.value, CLOSE / 5) else "does not hold",
        measured=spread(values, claim.unit).replace("seed", "split"),
        why="AUROC, as the paper's column is called" if measure == "auroc" else "",
        files=(file,),
    )


RULES: Mapping[str, Rule] = {
    **{name: _credentialed for name in CLAIMS if "mimic3" in name},
    **{
        f"timeseries/{model}/{data}": _of_data_set for model in _MODELS.split(",") for data in ("physionet", "activity")
    },
}
