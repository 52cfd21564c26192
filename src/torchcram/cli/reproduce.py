"""`torchcram reproduce`."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from threading import Event
from typing import cast, get_args

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import machine, prepare
from torchcram.cli.tables import show_row
from torchcram.paper import runs
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.paper.runs import StoppedError
from torchcram.paper.setup import SIZES, Scale, Setup
from torchcram.results import Row
from torchcram.strict import check_choice, check_integer, reject

_CALCULATED = "calculated_at"  # the scale, of a row that nothing was trained for

ALL = "all"
"""Every experiment, small enough at `ci` for twelve minutes on two cores."""

ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "timeseries": ("table 5", "torchcram timeseries p12 FOLDER --out RUN (or activity, mimic3)"),
    "redundancy": ("sections 2 and G", "torchcram probe MODEL --text FILE --out RUN"),
}
"""What has a command of its own, since it needs data or models of others."""


def show_list() -> None:
    """Print the experiments, a line each: what it is about, and how many runs it trains at each scale."""
    for name, experiment in EXPERIMENTS.items():
        counts = ", ".join(f"{scale} {experiment.runs(SIZES[scale])}" for scale in get_args(Scale))
        print(f"{name:<13} {experiment.about}{'' if experiment.needs else f' (runs: {counts})'}")
    print(f"{ALL:<13} all of these, one after the other; runs that are the same are trained once (runs: {_all_runs()})")
    for name, (about, command) in ELSEWHERE.items():
        print(f"{name:<13} {about}, with data or models of others: {command}")


def _all_runs() -> str:
    def different(scale: Scale) -> int:
        size = SIZES[scale]
        every = (each for experiment in EXPERIMENTS.values() for each in experiment.wanted(size))
        return len({job.folder for each in every for job in each.jobs(size, Path())})

    return ", ".join(f"{scale} {different(scale)}" for scale in get_args(Scale))


@told()
def run(
    names: Sequence[str],
    *,
    scale: str,
    out: Path,
    data: Sequence[str],
    json: Path | None,
    workers: int | None = None,
    device: str | None = None,
    train_only: bool = False,
) -> bool:
    """Run an experiment, or of several, or `all`, those that are not there yet. Returns whether all came to their end.

    Rows of one experiment are shown as soon as they are there; of several, a line for each. They are written to the
    folder.

    workers: runs at a time; None: as the scale has it, and so for the device.
    train_only: train and measure what needs the models, all experiments together, those named first before others, and
    leave rows for another time.
    """
    check_choice("scale", scale, Scale)
    for name in names:
        if name in ELSEWHERE:
            raise ValueError(f"{name} has a command of its own: {ELSEWHERE[name][1]}")
        if name not in (*EXPERIMENTS, ALL):
            reject("experiment", name, ", ".join((*EXPERIMENTS, ALL)))
    size = SIZES[cast(Scale, scale)]
    if workers is not None:
        check_integer("workers", workers, 1)
    setup = Setup(
        scale=cast(Scale, scale),
        out=out,
        sized=replace(size, workers=workers or size.workers, device=device or size.device),
        data=_paths(data),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    for name in names:
        if name != ALL and (lacking := EXPERIMENTS[name].lacks(setup)):
            raise ValueError(f"{name} needs data: {lacking}")
    prepare(setup.size.device)
    chosen = list(dict.fromkeys(each for name in names for each in (EXPERIMENTS if name == ALL else [name])))
    if train_only:
        return _train(chosen, setup)
    if len(names) > 1 or ALL in names:
        if json is not None:
            reject("--json", str(json), "nothing with several experiments: each has a file of its own in the folder")
        return _run_all(chosen, setup)
    shown = (lambda _: None) if str(json) == "-" else show_row
    _run(names[0], setup, shown, json)
    setup.say(f"written: {_file(names[0], setup)}")
    return True


def _train(names: Iterable[str], setup: Setup) -> bool:
    """All runs of several experiments, side by side, those of the first ones first; then what needs the models.

    Stopped, it still measures what it can: machines may not keep models until the next time.
    """
    staged = {name: EXPERIMENTS[name].stages(setup) for name in names if not _left_out(name, setup)}
    done = True
    stopped = Event()
    with ThreadPoolExecutor(1) as pool:  # of what has processes of its own
        others: list[Future[None]] = []
        for number, stage in enumerate(zip_longest(*staged.values(), fillvalue=())):
            for name in staged:
                if (beside := EXPERIMENTS[name].beside) is not None:
                    others.append(pool.submit(beside, setup, number, stopped.is_set))
            try:
                runs.finish(setup, [each for wanted in stage for each in wanted])
            except ValueError as error:
                print(error, file=sys.stderr, flush=True)
                done = False
                if isinstance(error, StoppedError):
                    stopped.set()
                    break
    for other in others:
        if (failure := other.exception()) is not None:
            print(f"failed beside: {failure}", file=sys.stderr, flush=True)
            done = False
    for name, stages in staged.items():
        EXPERIMENTS[name].look(setup, runs.there(setup, (each for wanted in stages for each in wanted)))
    if done:
        for name in staged:
            EXPERIMENTS[name].last(setup)
    return done


def _left_out(name: str, setup: Setup) -> bool:
    """Whether there is nothing to do for want of data, which is said."""
    lacking = EXPERIMENTS[name].lacks(setup)
    if lacking:
        print(f"{name}: left out; to run it, {lacking}", file=sys.stderr, flush=True)
    return bool(lacking)


def _run_all(names: Iterable[str], setup: Setup) -> bool:
    """One after the other; one that fails does not keep the others from being run."""
    left = []
    for name in names:
        if _left_out(name, setup):
            continue
        if _is_there(name, setup):
            print(f"{name}: is there already", flush=True)
            continue
        begin = time.monotonic()
        try:
            count = _run(name, setup, lambda _: None)
        except StoppedError:
            raise
        except (ValueError, OSError) as error:
            left.append(name)
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        else:
            print(f"{name}: {count} rows, {time.monotonic() - begin:.0f} s", flush=True)
    if left:
        print(f"not done: {', '.join(left)}; the same command goes on with them", file=sys.stderr)
    return not left


def _run(name: str, setup: Setup, show: Callable[[Row], None], json: Path | None = None) -> int:
    """Returns how many rows there are."""
    rows: list[Row] = []
    for row in EXPERIMENTS[name].run(setup):
        show(row)
        # Rows of what was trained have their scale, by which verdicts know them.
        rows.append(row if "scale" in row else {**row, _CALCULATED: setup.scale})
    wanted = [each for stage in EXPERIMENTS[name].stages(setup) for each in stage]
    # Of what is calculated, draws have a seed of 0 each.
    seeds = range(max([1, *(each.seeds for each in wanted)]))
    origin = runs.origin(setup, wanted)
    where = ", ".join(origin.machines) or machine(setup.size.device)
    for path in (_file(name, setup), *([] if json is None else [json])):
        results.write(
            path,
            name=f"paper-{name}",
            rows=rows,
            seeds=seeds,
            machine=where,
            commits=origin.commits,
            used=origin.versions,
        )
    return len(rows)


def _file(name: str, setup: Setup) -> Path:
    """By the name that `torchcram paper` looks for."""
    return setup.out / f"paper-{name}.json"


def _is_there(name: str, setup: Setup) -> bool:
    """Whether a file holds all rows of an experiment, made from the same data; files are written whole."""
    path = _file(name, setup)
    if not path.is_file():
        return False
    found = results.read(path)
    used = {each: where for each, where in setup.data.items() if each in EXPERIMENTS[name].data}
    given = shlex.split(found["command"])
    return all(row.get("scale", row.get(_CALCULATED)) == setup.scale for row in found["rows"]) and all(
        f"{each}={where}" in given for each, where in used.items()
    )


def _paths(given: Sequence[str]) -> dict[str, Path]:
    """`name=PATH`, each a name that an experiment knows, and a path that must be there."""
    known = list(dict.fromkeys(name for each in EXPERIMENTS.values() for name in (*each.data, *each.needs)))
    found = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not (equals and name):
            raise ValueError(f"--data {each!r} is not possible; allowed: name=PATH")
        if name not in known:
            reject("--data", name, ", ".join(known))
        if not Path(path).exists():
            raise ValueError(f"--data {name}: there is no {path}")
        found[name] = Path(path)
    return found
