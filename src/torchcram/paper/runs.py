"""The runs of an experiment: asked for by what sets them apart, trained side by side, and each only once.

Experiments that ask for the same run share it, since a run lies where its settings say.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torchcram import results
from torchcram.files import replacing
from torchcram.paper.setup import Setup, Size
from torchcram.results import VARIED, Row
from torchcram.training.config import RunConfig
from torchcram.training.loop import Trainer
from torchcram.training.run import RunFolder
from torchcram.training.stopping import stopping_signals
from torchcram.training.sweep import Job, Sweep
from torchcram.training.trained import restored


class StoppedError(ValueError):
    """Someone asked to stop, and runs are left to be done."""


CAVEAT = "a size that proves that the command runs, and nothing about the claim"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One setting, and how many runs of it."""

    name: str
    """What rows call it."""
    task: str = "srcd"
    changes: Mapping[str, str] = field(default_factory=dict)
    """Settings and options (`model`, `schedule`) that are not those of every run. `{seed}` and `{out}` in a value stand
    for the run's own seed, and for the folder of the experiment."""
    folder: str = ""
    """Begins the name of its folders, where settings would make it too long."""
    given: tuple[str, ...] = ()
    """Settings that all runs on this task have, such as where its data is: not a part of the name."""
    seeds: int

    def jobs(self, size: Size, out: Path) -> list[Job]:
        """A run for each seed, in a folder that says what sets it apart."""
        found = []
        for seed in range(self.seeds):
            words = {"{seed}": str(seed), "{out}": str(out)}
            varied = {name: _filled(value, words) for name, value in self.changes.items()} | {"seed": str(seed)}
            told = {"": self.folder, "seed": str(seed)} if self.folder else varied
            name = "-".join(f"{each.rpartition('.')[2]}={value}".lstrip("=") for each, value in told.items())
            found.append(
                Job(
                    task=self.task,
                    folder=out / "runs" / self.task / name,
                    varied=varied,
                    fixed=(*size.settings(self.task), *self.given),
                    options={"preset": size.preset},
                )
            )
        return found


def _filled(value: str, words: Mapping[str, str]) -> str:
    for word, meant in words.items():
        value = value.replace(word, meant)
    return value


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run that came to its end."""

    folder: Path
    seed: int
    row: Mapping[str, Any]
    """Of its evaluation on sequences that training did not see."""
    device: str

    @cached_property
    def config(self) -> RunConfig:
        return RunFolder(self.folder).config

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """An entry for each evaluation while it was trained."""
        return RunFolder(self.folder).metrics()

    @property
    def released_at(self) -> int | None:
        released: int | None = self.row["released_at"]
        return released

    def trainer(self, *changes: str) -> Trainer:
        """As it is at its end, with `a.b=c` changes of task or model."""
        return restored(self.folder, self.device, changes)

    def told(self, what: str) -> Row | None:
        """What was measured of it besides, and kept in its folder; None if that was not done."""
        file = self.folder / f"{what}.json"
        found: Row | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        return found

    def tell(self, what: str, row: Row) -> None:
        """Keep what was measured: it stays where checkpoints do not."""
        with replacing(self.folder / f"{what}.json") as temporary:
            temporary.write_text(json.dumps(dict(row)) + "\n", encoding="utf-8")

    def once(self, what: str, measure: Callable[[], Row]) -> Row:
        """What was measured of it besides, now if not before."""
        found = self.told(what)
        if found is None:
            found = measure()
            self.tell(what, found)
        return found


def train(setup: Setup, wanted: Iterable[Wanted]) -> dict[str, list[Trained]]:
    """Train what is not there yet; all runs by the name of what was wanted, in the order of seeds.

    Settings that cannot be trained are told before the first run begins. A run that fails does not stop the others.
    """
    wanted = list(wanted)
    finish(setup, wanted)
    return there(setup, wanted)


def finish(setup: Setup, wanted: Iterable[Wanted]) -> None:
    """Train what is not there yet, of one experiment or several; raises if something is left."""
    every: dict[Path, Job] = {}
    for job in _jobs(setup, wanted):
        if every.setdefault(job.folder, job).varied != job.varied:
            raise ValueError(f"two runs with different settings would share the folder {job.folder}")
    for job in every.values():
        job.check()
    sweep = Sweep(list(every.values()), workers=setup.size.workers, device=setup.size.device, rows=setup.size.rows)
    done = 0
    failed: list[str] = []
    with stopping_signals(sweep.stop, "stopping all runs, with checkpoints"):
        for job, row in sweep.run(lambda job, text: failed.append(f"{job.folder.name}: {text}")):
            if row is not None:
                done += 1
                setup.say(f"{done}/{len(every)} {job.task}/{job.folder.name}")
    if done < len(every):
        why = "".join(f"\n  {text}" for text in failed)
        kind = StoppedError if sweep.stopped else ValueError
        raise kind(f"{len(every) - done} of {len(every)} runs are not done; the same command goes on with them{why}")


def there(setup: Setup, wanted: Iterable[Wanted]) -> dict[str, list[Trained]]:
    """The runs that came to their end, by the name of what was wanted, in the order of seeds."""
    found: dict[str, list[Trained]] = {}
    for each in wanted:
        for job in each.jobs(setup.size, setup.out):
            row = job.result(setup.size.rows)
            if row is not None:
                own = {name: value for name, value in row.items() if not name.startswith(VARIED)}
                run = Trained(folder=job.folder, seed=int(job.varied["seed"]), row=own, device=setup.size.device)
                found.setdefault(each.name, []).append(run)
    return found


@dataclass(frozen=True)
class Origin:
    """Where runs were trained, and by which code, as their rows say: that need not be here and now."""

    machines: list[str]
    commits: list[str]
    versions: dict[str, str]
    """Of the machine that most were trained on."""


def origin(setup: Setup, wanted: Iterable[Wanted]) -> Origin:
    """Of all that is wanted and was trained."""
    files = dict.fromkeys(job.folder / "row.json" for job in _jobs(setup, wanted))
    told = [results.read(file) for file in files if file.is_file()]
    most = [machine for machine, _ in Counter(each["machine"] for each in told).most_common(1)]
    return Origin(
        machines=list(dict.fromkeys(each["machine"] for each in told)),
        commits=list(dict.fromkeys(each["commit"] for each in told)),
        versions=next((each["versions"] for each in told if [each["machine"]] == most), {}),
    )


def _jobs(setup: Setup, wanted: Iterable[Wanted]) -> Iterator[Job]:
    for each in wanted:
        yield from each.jobs(setup.size, setup.out)


def measured(setup: Setup, row: Row) -> Row:
    """A row about what was trained: with its scale, and a warning where that is too small to tell anything."""
    return {**row, "scale": setup.scale, **({} if setup.size.telling else {"caveat": CAVEAT})}
