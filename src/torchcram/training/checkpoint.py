"""Checkpoints that survive anything: safetensors and JSON, written aside, flushed, then renamed into place.

A checkpoint is a folder `step-00000100` of safetensors files and, written last, `manifest.json` with a format version
and the checksum of each file. Whatever stops a save, at any moment, leaves the checkpoints before it as they were; a
damaged one is recognised by its checksums and the one before is used.

One process writes `model.safetensors` and `optimizer.safetensors`; of several each writes a file with its own part
(torch.distributed.checkpoint). Tensors go by name and are read by torch.distributed.checkpoint in either case, so any
number of processes can go on from what any other number has written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from torchcram.training.distributed import World

VERSION = 3
_MANIFEST = "manifest.json"
_PREFIX = "step-"
_ALONE = World(device=torch.device("cpu"))


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a run needs to go on as if it had never stopped."""

    step: int
    tensors: Mapping[str, Tensor]
    """By name, `model.…` and `optimizer.…`; with several processes they may be sharded."""
    extra: dict[str, Any]
    """JSON-ready data: the consolidator, the learning-rate scale."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint that was found whole, not read yet."""

    path: Path
    step: int
    extra: dict[str, Any]
    world: World = _ALONE

    def layout(self) -> dict[str, torch.Size]:
        """Name and shape of each tensor."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        found = HuggingFaceStorageReader(str(self.path)).read_metadata().state_dict_metadata
        return {name: x.size for name, x in found.items() if isinstance(x, TensorStorageMetadata)}

    def read(self, into: Mapping[str, Tensor]) -> None:
        """Fill tensors by name, each process its own part of those that are sharded."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        reader = HuggingFaceStorageReader(str(self.path))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
            load(dict(into), storage_reader=reader, no_dist=self.world.size == 1)


def save(
    folder: Path, checkpoint: Checkpoint, keep: int = 3, world: World = _ALONE, always: Collection[int] = ()
) -> Path:
    """Write a checkpoint, all processes together. Returns its folder.

    All but the last `keep` are removed, and those of steps that are `always` kept.
    """
    target = _path(folder, checkpoint.step)
    temporary = folder / f".{target.name}.partial"
    if world.any(world.first and _is_whole(target)):
        return target  # the same step again, after a resume
    try:
        with world.together():
            if world.first:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
        _write(temporary, checkpoint.tensors, world)
        with world.together():
            if world.first:
                _seal(temporary, checkpoint)
                shutil.rmtree(target, ignore_errors=True)  # of the same step, but damaged
                os.replace(temporary, target)
                _flush(folder)
    except BaseException:
        if world.first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if world.first:
        for step in steps(folder)[:-keep]:
            if step not in always:
                shutil.rmtree(_path(folder, step), ignore_errors=True)
    return target


def _path(folder: Path, step: int) -> Path:
    return folder / f"{_PREFIX}{step:08d}"


def _is_whole(path: Path) -> bool:
    try:
        verified(path)
    except ValueError:
        return False
    return True


def newest(folder: Path, warn: Callable[[str], None], world: World = _ALONE) -> Saved | None:
    """The newest checkpoint that is whole, or None if there is none; `warn` is told of each that is not.

    The first process looks, and all take what it finds.
    """
    found = None
    with world.together():
        for path in reversed(_found(folder)) if world.first else ():
            try:
                found = verified(path, world)
                break
            except ValueError as error:
                warn(f"{error}; the checkpoint before is used instead")
    step = world.from_first(found.step if found is not None else -1)
    if step < 0 or found is not None:
        return found
    return _described(_path(folder, step), world)[0]


def steps(folder: Path) -> list[int]:
    """The steps that there are checkpoints of, whole or not."""
    return [int(path.name.removeprefix(_PREFIX)) for path in _found(folder)]


def at(folder: Path, step: int, world: World = _ALONE) -> Saved:
    """The checkpoint of a step."""
    path = _path(folder, step)
    if not path.is_dir():
        there = ", ".join(map(str, steps(folder))) or "none"
        raise ValueError(f"{folder} has no checkpoint of step {step}; there are: {there}")
    return verified(path, world)


def verified(path: Path, world: World = _ALONE) -> Saved:
    """One checkpoint; anything wrong with its files is a `ValueError` that says what."""
    found, checksums = _described(path, world)
    for name, expected in checksums.items():
        try:
            if _checksum(path / name) != expected:
                raise ValueError(f"{path.name} is damaged: {name} is not what was written")
        except OSError as error:
            raise ValueError(f"{path.name} is damaged: {error}") from error
    return found


def _described(path: Path, world: World) -> tuple[Saved, dict[str, str]]:
    """What the manifest says: the checkpoint, and the checksum of each file."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != "torchcram-checkpoint":
        raise ValueError(f"{path.name} is not a torchcram checkpoint")
    if manifest.get("format_version") != VERSION:
        raise ValueError(
            f"{path.name} has format version {manifest.get('format_version')!r}, this torchcram reads {VERSION}"
        )
    sealed = manifest.pop("seal", None)
    if sealed != _digest(manifest):
        raise ValueError(f"{path.name} is damaged: {_MANIFEST} is not what was written")
    return Saved(path=path, step=manifest["step"], extra=manifest["extra"], world=world), manifest["checksums"]


def _write(folder: Path, tensors: Mapping[str, Tensor], world: World) -> None:
    if world.size == 1:
        for part in ("model", "optimizer"):
            mine = {name: x.detach().contiguous().cpu() for name, x in tensors.items() if name.startswith(f"{part}.")}
            if not mine:
                continue
            try:
                save_file(mine, folder / f"{part}.safetensors")
            except SafetensorError as error:  # also what a full disk looks like
                raise OSError(f"{folder.name} could not be written: {error}") from error
        return
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        state_dict_saver.save(dict(tensors), storage_writer=writer)
    except CheckpointException as error:  # in all processes; a BaseException, which no caller would think of
        raise OSError(f"{folder.name} could not be written: {error}") from error


def _seal(folder: Path, checkpoint: Checkpoint) -> None:
    """Make sure of what was written, and describe it."""
    checksums = {}
    for path in sorted(folder.glob("*.safetensors")):
        _flush(path)
        checksums[path.name] = _checksum(path)
    manifest: dict[str, Any] = {
        "format": "torchcram-checkpoint",
        "format_version": VERSION,
        "step": checkpoint.step,
        "extra": checkpoint.extra,
        "checksums": checksums,
    }
    (folder / _MANIFEST).write_text(json.dumps({**manifest, "seal": _digest(manifest)}), encoding="utf-8")
    _flush(folder / _MANIFEST)
    _flush(folder)


def _found(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.is_dir())


def _digest(manifest: Mapping[str, Any]) -> str:
    """Of what a manifest says: a flipped bit may leave it readable."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Make sure that what was written to a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
