"""Transfer from SRCD to real time series, where someone has their files (`--data p12=FOLDER`)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchcram.files import replacing
from torchcram.paper.claims import CLAIMS
from torchcram.paper.runs import Trained
from torchcram.paper.setup import Setup
from torchcram.results import Row
from torchcram.timeseries import compare, datasets
from torchcram.timeseries.series import Split

TARGETS: Mapping[str, tuple[str, str]] = {"p12": ("physionet", "auroc"), "wearable": ("activity", "accuracy")}
"""Data sets by name, with what the claims call them and the measure that is compared; the paper's Activity is of
wearable sensors."""
FROZEN: Mapping[str, tuple[str, ...]] = {"cram": ("semantic", "router", "quality"), "seqboat": ("configure",)}


def rows(setup: Setup, sources: Mapping[str, Sequence[Trained]]) -> Iterator[Row]:
    """Of each data set that is given: each model from scratch and with the layers of its runs on SRCD."""
    for name in TARGETS:
        if name in setup.data:
            parts = datasets.split(name, setup.data[name], kept=setup.out / "data")
            for model, runs in sources.items():
                yield from moved(setup, name, parts, model, runs)


def moved(setup: Setup, target: str, parts: Split, model: str, runs: Sequence[Trained]) -> Iterator[Row]:
    """From scratch and transferred, as often as there are runs to begin with, and what the tables print."""
    called, measure = TARGETS[target]
    found: dict[str, list[Mapping[str, Any]]] = {"from scratch": [], "transferred": []}
    for how, mine in found.items():
        for run in runs:
            file = setup.out / "series" / f"{target}-{model}-{how.replace(' ', '-')}-seed={run.seed}.json"
            row = _once(file, parts, model, run, setup, frozen=FROZEN[model] if how == "transferred" else ())
            mine.append(row)
            setup.say(file.stem)
            kept = (measure, "reads", "layer_reads", "seconds")
            yield {
                "what": how,
                "claim": "transfer/fall",
                "model": model,
                "target": target,
                "seed": run.seed,
                **{key: row.get(key) for key in kept},
            }
    mean = {how: {key: _mean(mine, key) for key in (measure, "layer_reads")} for how, mine in found.items()}
    reads, before = mean["transferred"]["layer_reads"], mean["from scratch"]["layer_reads"]
    columns = {
        "accuracy": mean["transferred"][measure],
        "attention": reads,
        "fall": 1 - reads / before if reads is not None and before else None,
    }
    row_name = called if model == "cram" else f"{model}-{called}"
    claims = [(f"transfer/{row_name}/{column}", column) for column in columns]
    claims += [(f"transfer/from/srcd/{called}", "fall")] if model == "cram" else []
    for claim, column in claims:
        if claim in CLAIMS:
            yield {
                "what": f"{column} of srcd → {target}",
                "claim": claim,
                "printed": CLAIMS[claim].value,
                "measured": columns[column],
                "measure": measure,
                f"{measure}_from_scratch": mean["from scratch"][measure],
                "layer_reads_from_scratch": before,
                "model": model,
                "target": target,
                "frozen": " ".join(FROZEN[model]),
                "runs": len(runs),
            }


def _once(
    file: Path, parts: Split, model: str, run: Trained, setup: Setup, *, frozen: tuple[str, ...]
) -> Mapping[str, Any]:
    """What one fit comes to, kept in a file. Its layers are like the run's, taken over if parts of them are frozen."""
    if file.is_file():
        row: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return row
    layers = {name: part for name, part in run.config.model.to_dict().items() if name not in ("inputs", "outputs")}
    settings: dict[str, Any] = {
        "preset": setup.size.preset,
        "changes": layers,
        **({"start": {"run": str(run.folder), "frozen": frozen}} if frozen else {}),
        **({} if setup.size.telling else {"epochs": 1}),
    }
    said = next(iter(compare.judge(model, parts, settings=settings, device=setup.size.device, seed=run.seed)))
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(said.row) + "\n", encoding="utf-8")
    return said.row


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row.get(name) for row in rows]
    return None if any(value is None for value in values) else statistics.mean(values)  # type: ignore[type-var]
