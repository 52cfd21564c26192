"""Checkpoints that survive anything: safetensors and JSON, written aside, flushed, then renamed into place.

A checkpoint is a folder `step-00000100` with `model.safetensors`, `optimizer.safetensors`, `random.safetensors` and,
written last, `manifest.json` with a format version and the checksum of each file. Whatever stops a save, at any moment,
leaves the checkpoints before it as they were; a damaged one is recognised by its checksums and the one before is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

VERSION = 1
_MANIFEST = "manifest.json"
_PREFIX = "step-"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a run needs to go on as if it had never stopped."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    """As `torch.optim.Optimizer.state_dict` gives it."""
    random: dict[str, Tensor]
    """State of the random number generators, by device."""
    extra: dict[str, Any]
    """JSON-ready data: the consolidator, the learning-rate scale."""


def save(folder: Path, checkpoint: Checkpoint, keep: int = 3) -> Path:
    """Write a checkpoint and remove all but the last `keep`. Returns its folder."""
    target = folder / f"{_PREFIX}{checkpoint.step:08d}"
    temporary = folder / f".{target.name}.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    moments, groups = _flatten(checkpoint.optimizer)
    parts = {"model": checkpoint.model, "optimizer": moments, "random": checkpoint.random}
    try:
        for name, tensors in parts.items():
            path = temporary / f"{name}.safetensors"
            save_file({key: value.detach().contiguous().cpu() for key, value in tensors.items()}, path)
            _flush(path)
        manifest = {
            "format": "torchcram-checkpoint",
            "format_version": VERSION,
            "step": checkpoint.step,
            "groups": groups,
            "extra": checkpoint.extra,
            "checksums": {f"{name}.safetensors": _checksum(temporary / f"{name}.safetensors") for name in parts},
        }
        (temporary / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        _flush(temporary / _MANIFEST)
        _flush(temporary)
        if target.exists():  # the same step again, after a resume: identical, but the new one is known to be whole
            shutil.rmtree(target)
        os.replace(temporary, target)
        _flush(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in _found(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def load_latest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None if there is none; `warn` is told of each that is not."""
    for path in reversed(_found(folder)):
        try:
            return load(path)
        except ValueError as error:
            warn(f"{error}; the checkpoint before is used instead")
    return None


def load(path: Path) -> Checkpoint:
    """Read one checkpoint; anything wrong with it is a `ValueError` that says what."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error
    if not isinstance(manifest, Mapping) or manifest.get("format") != "torchcram-checkpoint":
        raise ValueError(f"{path.name} is not a torchcram checkpoint")
    if manifest.get("format_version") != VERSION:
        raise ValueError(
            f"{path.name} has format version {manifest.get('format_version')!r}, this torchcram reads {VERSION}"
        )
    tensors = {}
    for name, expected in manifest["checksums"].items():
        try:
            if _checksum(path / name) != expected:
                raise ValueError(f"{path.name} is damaged: {name} is not what was written")
            tensors[name.removesuffix(".safetensors")] = load_file(path / name)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{path.name} is damaged: {error}") from error
    return Checkpoint(
        step=manifest["step"],
        model=tensors["model"],
        optimizer=_unflatten(tensors["optimizer"], manifest["groups"]),
        random=tensors["random"],
        extra=manifest["extra"],
    )


def random_state() -> dict[str, Tensor]:
    """State of torch's generators."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Tensor]) -> None:
    """The inverse of `random_state`."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _found(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.is_dir())


def _flatten(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """An optimizer's state as named tensors and JSON-ready groups."""
    tensors = {f"{index}.{key}": value for index, entry in state["state"].items() for key, value in entry.items()}
    return tensors, [dict(group) for group in state["param_groups"]]


def _unflatten(tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]) -> dict[str, Any]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    for group in groups:
        group["betas"] = tuple(group["betas"])
    return {"state": state, "param_groups": groups}


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
