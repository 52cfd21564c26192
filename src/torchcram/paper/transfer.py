"""Transfer: is less attention needed on another task with what was learned on SRCD? Tables 2 and 3."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchcram.paper import transfer_series
from torchcram.paper.claims import CLAIMS
from torchcram.paper.runs import Trained, Wanted, finish, measured, there, train
from torchcram.paper.setup import Setup, Size
from torchcram.paper.srcd import summary
from torchcram.results import Row
from torchcram.training.config import RunConfig
from torchcram.training.settings import configure

_CALLED = {"srcd": "srcd", "copying": "copy", "associative": "associative", "p12": "physionet"}  # by the claims
_PAIRS = (("srcd", "copying"), ("srcd", "associative"), ("copying", "associative"))
_PARTS = transfer_series.FROZEN["cram"]
# Layers that are to be taken over must be alike: where a binding is two tokens, they need a convolution.
_SOURCES = {"srcd": {"model.episodic.convolution": "2"}, "copying": {}}


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """From one task to another, with parts that learn no more."""

    model: str
    source: str
    target: str
    frozen: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.model}, {self.source} to {self.target}, {' and '.join(self.frozen)} frozen"

    @property
    def wanted_from(self) -> str:
        """The run that it begins with."""
        return f"{self.model} on {self.source}"

    @property
    def wanted_to_compare(self) -> str:
        """The same target from scratch."""
        return f"{self.model} on {self.target}"

    def wanted(self, size: Size) -> Wanted:
        """The router decides from the first step on: it is the other task's."""
        plain = Wanted(name=self.source, seeds=size.seeds)  # a data set's, which has no settings of its own
        source = plain if self.source == transfer_series.SOURCE else _from_scratch(self.model, self.source, size)
        folder = "-".join(f"{each.rpartition('.')[2]}={value}" for each, value in source.changes.items())
        own = {"consolidation.release": "0"} if self.model == "cram" else _control(self.model, size)
        return Wanted(
            name=self.name,
            task=self.target,
            changes={
                **own,
                "start.run": f"{{out}}/runs/{self.source}/{folder}{'-' if folder else ''}seed={{seed}}",
                "start.frozen": json.dumps(self.frozen),
            },
            folder=f"{self.model}-from={self.source}-frozen={'+'.join(self.frozen)}",
            seeds=size.seeds,
        )


def transfers() -> list[Transfer]:
    """Of CRAM with semantic memory, router and q̂ frozen; of SeqBoat with what chooses its reads."""
    ours = [Transfer(model="cram", source=a, target=b, frozen=_PARTS) for a, b in _PAIRS]
    return [*ours, Transfer(model="seqboat", source="srcd", target="copying", frozen=("configure",))]


def _from_scratch(model: str, task: str, size: Size) -> Wanted:
    changes = _SOURCES.get(task, {}) if model == "cram" else _control(model, size)
    return Wanted(name=f"{model} on {task}", task=task, changes=changes, seeds=size.seeds)


def _control(model: str, size: Size) -> dict[str, str]:
    """A baseline with as many parameters as CRAM has on copying, and the same layers on every other task."""
    config = configure("copying", size.settings("copying"), preset=size.preset, model=model)
    return {"model": model, "model.block.expansion": str(config.model.block.expansion)}


def first(size: Size) -> list[Wanted]:
    """What is trained from scratch: sources and, to compare with, targets."""
    every = transfers()
    tasks = dict.fromkeys((each.model, task) for each in every for task in (each.source, each.target))
    return [_from_scratch(model, task, size) for model, task in tasks]


def wanted(size: Size) -> list[Wanted]:
    """From scratch, then transferred."""
    return [*first(size), *(each.wanted(size) for each in transfers())]


def stages(setup: Setup) -> list[list[Wanted]]:
    """One after the other: what is transferred must have been trained."""
    return [first(setup.size), [each.wanted(setup.size) for each in transfers()]]


def beside(setup: Setup, stage: int, stopped: Callable[[], bool]) -> None:
    """Fits to the data sets that are given: from scratch beside the first stage, and then of what that has trained."""
    every = _fits(setup)
    scratch = [each for each in every if each.source == transfer_series.SCRATCH]
    transfer_series.finish(setup, every if stage else scratch, stopped)


def last(setup: Setup) -> None:
    """When all of these are there: tasks with the layers of such fits, and what else is to be fitted."""
    transfer_series.finish(setup, _fits(setup))
    if more := from_series(setup):
        finish(setup, [each.wanted(setup.size) for each in more])
    transfer_series.finish(setup, _fits_from_series(setup))


def from_series(setup: Setup) -> list[Transfer]:
    """From a data set to tasks, if there are its files."""
    source = transfer_series.SOURCE
    tasks = dict.fromkeys(target for _, target in _PAIRS) if source in setup.data else ()
    return [Transfer(model="cram", source=source, target=each, frozen=_PARTS) for each in tasks]


def _fits(setup: Setup) -> list[transfer_series.Fit]:
    sources = (("cram", "srcd"), ("seqboat", "srcd"), ("cram", "copying"))
    return transfer_series.fits(setup, {source: _trained(setup, *source) for source in sources})


def _fits_from_series(setup: Setup) -> list[transfer_series.Fit]:
    if transfer_series.SOURCE not in setup.data:
        return []
    like = _trained(setup, "cram", "srcd")
    runs = {seed: (transfer_series.layers(setup, seed), config) for seed, (_, config) in like.items()}
    return transfer_series.fits(setup, {("cram", transfer_series.SOURCE): runs})


def _trained(setup: Setup, model: str, task: str) -> dict[int, tuple[Path, RunConfig]]:
    """Where the runs from scratch are, and what they have, by seed."""
    jobs = _from_scratch(model, task, setup.size).jobs(setup.size, setup.out)
    return {int(job.varied["seed"]): (job.folder, configure(task, job.settings, **job.chosen)) for job in jobs}


def run(setup: Setup) -> Iterator[Row]:
    """For each transfer its runs, and what is printed beside what was measured."""
    scratch = train(setup, first(setup.size))
    every = transfers()
    trained = train(setup, [each.wanted(setup.size) for each in every])
    last(setup)
    more = from_series(setup)
    trained |= there(setup, [each.wanted(setup.size) for each in more])
    for name, runs in scratch.items():
        for each in runs:
            yield measured(setup, {**_row(each), "what": "from scratch", "claim": "transfer/fall", "model": name})
    for transfer in (*every, *more):
        after, before = trained[transfer.name], scratch[transfer.wanted_to_compare]
        about: Row = {"model": transfer.model, "source": transfer.source, "target": transfer.target}
        frozen: Row = {**about, "frozen": " ".join(transfer.frozen)}
        for each in after:
            yield measured(setup, {**_row(each), "what": "transferred", "claim": "transfer/fall", **frozen})
        for row in compared(transfer, after, before):
            yield measured(setup, {**row, **frozen})
    for row in transfer_series.rows(setup, (*_fits(setup), *_fits_from_series(setup))):
        yield measured(setup, row)


def _row(run: Trained) -> Row:
    kept = ("seed", "task", "accuracy", "reads", "layer_reads", "opt", "released_at", "steps", "seconds")
    return {name: run.row.get(name) for name in kept}


def compared(transfer: Transfer, after: Sequence[Trained], before: Sequence[Trained]) -> Iterator[Row]:
    """What the tables print of it, beside what was measured: fewer reads mean little where accuracy fell with them."""
    reads, scratch = ([each.row["layer_reads"] for each in runs] for runs in (after, before))
    accuracies = [each.row["accuracy"] for each in after]
    columns = {
        "accuracy": summary(accuracies),
        "attention": summary(reads),
        "fall": transfer_series.fall(reads, scratch),
    }
    beside: Row = {
        "accuracy_from_scratch": statistics.mean(each.row["accuracy"] for each in before),
        "accuracy_transferred": statistics.mean(accuracies),
        **transfer_series.levels(reads, scratch),
        "scratch_released": sum(each.released_at is not None for each in before),
    }
    for claim, column in _claims(transfer):
        yield {
            "what": f"{column} of {transfer.source} → {transfer.target}",
            "claim": claim,
            "printed": CLAIMS[claim].value,
            **columns[column],
            "runs": len(after),
            **beside,
        }


def _claims(transfer: Transfer) -> list[tuple[str, str]]:
    """Which claims a transfer speaks to, and by which column."""
    target = _CALLED[transfer.target]
    row = target if transfer.model == "cram" else f"{transfer.model}-{target}"
    found = [(f"transfer/{row}/{column}", column) for column in ("accuracy", "attention", "fall")]
    if transfer.source != "srcd":
        found = []  # table 2 is of SRCD alone
    if transfer.model == "cram":
        found.append((f"transfer/from/{_CALLED[transfer.source]}/{target}", "fall"))
    return [(claim, column) for claim, column in found if claim in CLAIMS]
