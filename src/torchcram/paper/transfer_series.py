"""Transfer to real time series, and from them, where someone has their files (`--data p12=FOLDER`).

Each fit is kept in a file of its own, and many are made at a time, each in a process of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from torchcram.files import replacing
from torchcram.paper.claims import CLAIMS
from torchcram.paper.setup import Setup
from torchcram.paper.srcd import summary
from torchcram.results import Row
from torchcram.timeseries import CramClassifier, CramLabeller, compare, datasets
from torchcram.timeseries.series import Split
from torchcram.training import checkpoint
from torchcram.training.checkpoint import Checkpoint
from torchcram.training.config import RunConfig
from torchcram.training.run import RunFolder

TARGETS: Mapping[str, tuple[str, str]] = {
    "p12": ("physionet", "auroc"),
    "mimic3": ("mimic3", "auroc"),
    "activity": ("activity", "accuracy"),
    "wearable": ("activity", "accuracy"),
}
"""Data sets by name, with what the claims call them and the measure that is compared. Wearable sensors stand in for the
data set of what people do, which not everyone has; verdicts say so."""
FROZEN: Mapping[str, tuple[str, ...]] = {"cram": ("semantic", "router", "quality"), "seqboat": ("configure",)}
SOURCE = "p12"
"""The data set whose models others begin with, too."""
SCRATCH = "from scratch"
_LOOK = 0.5  # seconds between looks at whether to stop
_EPOCHS = {"p12": 4}  # of thousands of samples; of a few hundred, as many as there are by default


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One model that is fitted to a data set."""

    target: str
    model: str
    source: str
    """What its layers were trained on before; or from scratch."""
    seed: int
    like: Path
    """The run that it begins with the layers of; from scratch, one whose layers are like its own."""
    config: RunConfig
    """Of a run with such layers."""

    @property
    def name(self) -> str:
        """Of its file."""
        how = SCRATCH.replace(" ", "-") if self.source == SCRATCH else f"from={self.source}"
        return f"{self.target}-{self.model}-{how}-seed={self.seed}"

    def file(self, setup: Setup) -> Path:
        """What came of it."""
        return setup.out / "series" / f"{self.name}.json"


def fits(setup: Setup, sources: Mapping[tuple[str, str], Mapping[int, tuple[Path, RunConfig]]]) -> list[Fit]:
    """All that are to be made with the data that is given, of runs by (model, source) and seed.

    From scratch, a model has the layers of its run on SRCD.
    """
    found = []
    for target in (name for name in TARGETS if name in setup.data):
        for (model, source), runs in sources.items():
            for seed, (like, config) in runs.items():
                common: dict[str, Any] = {
                    "target": target,
                    "model": model,
                    "seed": seed,
                    "like": like,
                    "config": config,
                }
                if source == "srcd":
                    found.append(Fit(**common, source=SCRATCH))
                if source != target:
                    found.append(Fit(**common, source=source))
    return found


def finish(setup: Setup, wanted: Sequence[Fit], stopped: Callable[[], bool] = lambda: False) -> None:
    """Make those that are not there yet, side by side; `stopped`, whoever asks, ends it before its time."""
    left = [each for each in wanted if not each.file(setup).is_file()]
    if not left:
        return
    for target in {each.target for each in left}:
        _parts(setup, target)  # read once, and kept for all
    given = {"out": setup.out, "data": dict(setup.data), "size": setup.size, "scale": setup.scale}
    workers = min(setup.size.workers, len(left))
    # Fresh processes: a GPU that one has used does not survive being copied.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_made_of, each, given): each for each in left}
        while waiting and not stopped():
            for done in wait(waiting, timeout=_LOOK, return_when=FIRST_COMPLETED).done:
                done.result()
                setup.say(waiting.pop(done).name)
        if waiting:
            for process in list(pool._processes.values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)


def _made_of(fit: Fit, given: Mapping[str, Any]) -> None:
    setup = Setup(scale=given["scale"], out=given["out"], sized=given["size"], data=given["data"])
    make(fit, _parts(setup, fit.target), setup)


def _parts(setup: Setup, target: str) -> Split:
    return datasets.split(target, setup.data[target], kept=setup.out / "data")


def make(fit: Fit, parts: Split, setup: Setup) -> None:
    """Fit it, judge it, and keep what came of it; of a model that others begin with its layers, too."""
    begun = time.perf_counter()
    like = fit.config.model.to_dict()
    epochs = _EPOCHS.get(fit.target) if setup.size.telling else 1
    settings: dict[str, Any] = {
        "preset": setup.size.preset,
        "changes": {name: part for name, part in like.items() if name not in ("inputs", "outputs")},
        **({} if fit.source == SCRATCH else {"start": {"run": str(fit.like), "frozen": FROZEN[fit.model]}}),
        **({} if epochs is None else {"epochs": epochs}),
    }
    kind = CramLabeller if parts.train.per_step else CramClassifier
    made = kind(model=fit.model, seed=fit.seed, device=setup.size.device, progress=False, **settings)
    made.fit(parts.train, parts.val)
    said = made.predict_proba(parts.test)
    assert made.ledger is not None
    row = {**compare.scores(parts.test, said, draws=0), **made.ledger.to_dict()}
    if (fit.target, fit.model, fit.source) == (SOURCE, "cram", SCRATCH):
        _keep(fit, made, layers(setup, fit.seed))
    file = fit.file(setup)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        groups = len(set(parts.test.groups.tolist()))
        told = {**row, "groups": groups, "epochs": len(made.history[0]), "seconds": time.perf_counter() - begun}
        temporary.write_text(json.dumps(told) + "\n", encoding="utf-8")


def layers(setup: Setup, seed: int) -> Path:
    """Where those of a model of `SOURCE` are kept, as a run whose layers others can begin with."""
    return setup.out / "runs" / SOURCE / f"seed={seed}"


def _keep(fit: Fit, made: CramClassifier | CramLabeller, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        made.save(temporary)
        tensors = load_file(Path(temporary) / "member-0.safetensors")
    held = {name: value for name, value in tensors.items() if name.startswith("model.blocks.")}
    checkpoint.save(folder / "checkpoints", Checkpoint(step=0, tensors=held, extra={}))
    if not (folder / "config.json").exists():
        RunFolder(folder).begin(fit.config.override({"task": fit.target, "settings": {}, "seed": fit.seed}))


@dataclass(kw_only=True)
class _Told:
    """What came of the fits of one model on one data set, by source."""

    rows: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """In the order of seeds."""

    def of(self, source: str, name: str) -> list[float | None]:
        return [row.get(name) for row in self.rows[source]]

    def mean(self, source: str, name: str) -> float | None:
        mean = summary(self.of(source, name))["measured"]
        assert mean is None or isinstance(mean, float)
        return mean


def fall(after: Sequence[float | None], before: Sequence[float | None]) -> Row:
    """How much less attention there is, of what there was from scratch: of means over seeds, since some runs read next
    to nothing, of which anything is a multiple."""
    ends = [summary(values)["measured"] for values in (after, before)]
    now, then = (end if isinstance(end, float) else None for end in ends)
    return {"measured": 1 - now / then if now is not None and then else None}


def levels(after: Sequence[float | None], before: Sequence[float | None]) -> Row:
    """What a fall is from and to: means over seeds, and deviations."""
    found: dict[str, object] = {}
    for name, values in (("from_scratch", before), ("transferred", after)):
        told = summary(values)
        found |= {f"layer_reads_{name}": told["measured"], f"layer_reads_{name}_sd": told.get("sd")}
    return found  # type: ignore[return-value]


def rows(setup: Setup, wanted: Iterable[Fit]) -> Iterator[Row]:
    """A row for each fit, then what the tables print beside what was measured."""
    told: dict[tuple[str, str], _Told] = {}
    for fit in wanted:
        row = json.loads(fit.file(setup).read_text(encoding="utf-8"))
        told.setdefault((fit.target, fit.model), _Told()).rows.setdefault(fit.source, []).append(row)
        measure = TARGETS[fit.target][1]
        kept = (measure, "reads", "layer_reads", "epochs", "seconds")
        yield {
            "what": SCRATCH if fit.source == SCRATCH else "transferred",
            "claim": "transfer/fall",
            "model": fit.model,
            "source": fit.source,
            "target": fit.target,
            "seed": fit.seed,
            **{key: row.get(key) for key in kept},
        }
    for (target, model), found in told.items():
        for source in found.rows:
            if source != SCRATCH:
                yield from _compared(target, model, source, found)


_CALLED = {"srcd": "srcd", "copying": "copy", "p12": "physionet"}


def _compared(target: str, model: str, source: str, told: _Told) -> Iterator[Row]:
    called, measure = TARGETS[target]
    reads, before = told.of(source, "layer_reads"), told.of(SCRATCH, "layer_reads")
    columns = {"accuracy": summary(told.of(source, measure)), "attention": summary(reads), "fall": fall(reads, before)}
    row_name = called if model == "cram" else f"{model}-{called}"
    # Table 2 is of SRCD alone.
    claims = [(f"transfer/{row_name}/{column}", column) for column in columns] if source == "srcd" else []
    claims += [(f"transfer/from/{_CALLED[source]}/{called}", "fall")] if model == "cram" else []
    for claim, column in claims:
        if claim in CLAIMS:
            yield {
                "what": f"{column} of {source} → {target}",
                "claim": claim,
                "printed": CLAIMS[claim].value,
                **columns[column],
                "measure": measure,
                f"{measure}_from_scratch": told.mean(SCRATCH, measure),
                f"{measure}_transferred": told.mean(source, measure),
                **levels(reads, before),
                "model": model,
                "source": source,
                "target": target,
                "frozen": " ".join(FROZEN[model]),
                "groups": told.rows[source][0].get("groups"),
                "runs": len(told.rows[source]),
            }
