"""A run's folder: `config.json`, `metrics.jsonl`, `checkpoints/`, and a lock that lets in one writer at a time.

A run of a sweep also has `varied.json`: what sets it apart from the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from torchcram import results
from torchcram.files import replacing
from torchcram.training.config import RunConfig


def refuse_file(path: Path) -> None:
    """Say so if there is a file where a folder is to be, or to be made."""
    for each in (path, *path.parents):
        if each.exists():
            if not each.is_dir():
                raise ValueError(f"{each} is a file; runs are kept in folders, so give another name: --out FOLDER")
            return


class RunFolder:
    """Use as a context manager: it is locked while open, and a second writer is refused."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise ValueError(f"{self.path} is being written to by another process ({owner})") from None
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()}")
        self._lock.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()

    @property
    def config(self) -> RunConfig:
        """What the run was started with."""
        path = self.path / "config.json"
        if not path.is_file():
            raise ValueError(f"{self.path} is not a run folder: it has no config.json")
        text = path.read_text(encoding="utf-8")
        with contextlib.suppress(json.JSONDecodeError):  # told by the next line
            results.refuse_export(json.loads(text), self.path)
        return RunConfig.from_json(text)

    def check_new(self) -> None:
        """Refuse a place where no run can begin: a file, or a folder that holds a run already. Writes nothing."""
        refuse_file(self.path)
        if (self.path / "config.json").exists():
            raise ValueError(f"{self.path} holds a run already; resume it, or choose another folder")

    def begin(self, config: RunConfig) -> None:
        """Start a new run here; a folder that holds one already is refused."""
        self.check_new()
        with replacing(self.path / "config.json") as temporary:
            temporary.write_text(config.to_json(), encoding="utf-8")

    def tell_apart(self, varied: Mapping[str, str]) -> None:
        """Keep what sets the run apart from the others of its sweep, by dotted name."""
        self.path.mkdir(parents=True, exist_ok=True)
        with replacing(self.path / "varied.json") as temporary:
            temporary.write_text(json.dumps(dict(varied)), encoding="utf-8")

    @property
    def varied(self) -> dict[str, str]:
        """What `tell_apart` kept; nothing for a run of its own."""
        path = self.path / "varied.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def record(self, entry: dict[str, Any]) -> None:
        """Append one line to the metrics."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """A line a step, the later one after a resume; a line cut short by a crash is left out."""
        return results.read_metrics(self.path / "metrics.jsonl")
