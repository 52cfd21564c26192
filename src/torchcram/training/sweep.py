"""Many runs, side by side, each a process of its own: every combination of some settings."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcram.files import replacing
from torchcram.strict import reject
from torchcram.training.run import RunFolder, refuse_file
from torchcram.training.settings import configure

OPTIONS = "model", "preset", "schedule"
"""What can be varied besides settings: options of `torchcram train`."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep."""

    task: str
    folder: Path
    varied: dict[str, str]
    """What sets it apart."""
    fixed: tuple[str, ...]
    """Settings that all runs have, as `a.b=c`."""
    options: dict[str, str]
    """Options of `torchcram train` that all have."""

    @property
    def begun(self) -> bool:
        """Whether there is something to go on from."""
        return (self.folder / "config.json").exists()

    def result(self, rows: int) -> dict[str, Any] | None:
        """What came of it on so many held-out sequences, read from its folder; None if it is not done."""
        try:
            data = json.loads((self.folder / "row.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return None
        row: dict[str, Any] = data["rows"][0]
        return row if row.get("rows") == rows else None

    def check(self) -> None:
        """Say so if it cannot be trained, before anything else is."""
        refuse_file(self.folder)
        try:
            configure(self.task, self.settings, **self.chosen)
        except ValueError as error:
            raise ValueError(f"{self.folder.name}: {error}") from error

    @property
    def settings(self) -> list[str]:
        """All of its settings, as `a.b=c`."""
        return [*self.fixed, *(f"{name}={value}" for name, value in self.varied.items() if name not in OPTIONS)]

    @property
    def chosen(self) -> dict[str, str]:
        """All of its options."""
        return {**self.options, **{name: value for name, value in self.varied.items() if name in OPTIONS}}

    def commands(self, device: str, rows: int) -> Iterator[list[str]]:
        """What to run, one after the other."""
        own = [word for name, value in self.chosen.items() for word in (f"--{name}", value)]
        train = ["train", self.task, "--out", str(self.folder), "--device", device, *own]
        if self.begun:
            yield [*train, "--resume"]
        else:
            yield [*train, *(word for each in self.settings for word in ("--set", each))]
        target = str(self.folder / "row.json")
        yield ["evaluate", str(self.folder), "--device", device, "--rows", str(rows), "--json", target]


def jobs(
    task: str,
    out: Path,
    vary: Mapping[str, Sequence[str]],
    *,
    fixed: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> list[Job]:
    """A run for every combination of the values of what is varied; each has a folder of its own in `out`."""
    if not vary:
        raise ValueError("there is nothing to vary; give at least one --vary name=value,value")
    for name, values in vary.items():
        if not values or len(set(values)) < len(values):
            reject(f"--vary {name}", ",".join(values), "values that differ, at least one")
    if twice := sorted(set(vary) & {*(options or {}), *(change.partition("=")[0] for change in fixed)}):
        raise ValueError(f"{', '.join(twice)} cannot both be varied and be given")
    found = []
    for values in itertools.product(*vary.values()):
        varied = dict(zip(vary, values, strict=True))
        folder = out / ("-".join(f"{name.rpartition('.')[2]}={value}" for name, value in varied.items()))
        found.append(Job(task=task, folder=folder, varied=varied, fixed=tuple(fixed), options=dict(options or {})))
    if len({job.folder for job in found}) < len(found):
        raise ValueError("two of the settings that are varied have the same last name; vary one of them elsewhere")
    return found


def _remember(job: Job) -> None:
    """Write down what all runs of a sweep have, as this one; a folder of a sweep with anything else is refused."""
    out, given = job.folder.parent, {"task": job.task, "fixed": sorted(job.fixed), "options": job.options}
    file = out / "sweep.json"
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        before["fixed"].sort()
        if before != given:
            raise ValueError(f"{out} holds a sweep of {before}, not of {given}; choose another folder")
        return
    out.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(given), encoding="utf-8")


class Worker:
    """A process that runs commands one after the other: so torch is imported, and a GPU made ready, only once."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torchcram.cli.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C is for the sweep, which passes it on
        )

    def call(self, words: Sequence[str], log: Path) -> int:
        """The exit status of a command, whose words go to a file; that of the process if it ended with it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"words": list(words), "log": str(log)}).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        return int(answer) if answer else self._process.wait() or 1

    def stop(self) -> None:
        """Ask the command that runs to save and end."""
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End it, when its command has ended."""
        self._process.communicate()


class Sweep:
    """Runs jobs, so many at a time, of one folder or several. Stopped, and started again, it goes on where it was."""

    def __init__(self, jobs: Sequence[Job], *, workers: int, device: str, rows: int) -> None:
        self.jobs, self.workers, self.device, self.rows = jobs, workers, device, rows
        self._workers: dict[int, Worker] = {}
        """By the thread that each works for."""
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, say: Callable[[Job, str], None]) -> Iterator[tuple[Job, dict[str, Any] | None]]:
        """Run what is not done yet; yields each job with what came of it, or None if it failed or was stopped."""
        for job in {job.folder.parent: job for job in self.jobs}.values():
            _remember(job)
        try:
            with ThreadPoolExecutor(self.workers) as pool:
                waiting = {}
                for job in self.jobs:
                    done = job.result(self.rows)
                    if done is None:
                        waiting[pool.submit(self._work, job, say)] = job
                    else:
                        yield job, done
                for future in as_completed(waiting):
                    future.result()
                    yield waiting[future], waiting[future].result(self.rows)
        finally:
            for worker in self._workers.values():
                worker.close()
            self._workers.clear()

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopped

    def stop(self) -> None:
        """Ask all that run to save and stop, and start nothing more."""
        with self._lock:
            self._stopped = True
            for worker in self._workers.values():
                worker.stop()

    def _work(self, job: Job, say: Callable[[Job, str], None]) -> None:
        if self._stopped:
            return
        RunFolder(job.folder).tell_apart(job.varied)
        log = job.folder.parent / f"{job.folder.name}.log"
        log.touch()  # there is one even if its process dies at once
        for words in job.commands(self.device, self.rows):
            code = self._call(words, log)
            if code is None:
                return
            if code:
                say(job, f"failed: {_last_line(log)} ({log})")
                return

    def _call(self, words: Sequence[str], log: Path) -> int | None:
        """The exit status of a command; None if it was stopped, or not even begun."""
        mine = threading.get_ident()
        with self._lock:
            if self._stopped:
                return None
            if mine not in self._workers:
                cores = max(1, (os.cpu_count() or 1) // self.workers)
                self._workers[mine] = Worker({"OMP_NUM_THREADS": str(cores), **os.environ, "PYTHONUNBUFFERED": "1"})
            worker = self._workers[mine]
        code = worker.call(words, log)
        with self._lock:
            if code:
                del self._workers[mine]
            stopped = self._stopped
        if code:  # whatever went wrong may have left something behind, on a GPU above all
            worker.close()
        return None if stopped else code


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "without a word")
