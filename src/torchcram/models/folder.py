"""A model as a folder: `config.json`, with a format version, and `model.safetensors`. Nothing is ever unpickled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from torchcram.config import BaselineConfig, CramConfig
from torchcram.files import replacing
from torchcram.strict import StrictConfig

VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save(path: str | os.PathLike[str], config: StrictConfig, weights: Mapping[str, Tensor]) -> None:
    """Write both files, each whole or not at all; the config comes last."""
    target = Path(path)
    target.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous().cpu() for name, value in weights.items()}
    with replacing(target / WEIGHTS) as temporary:
        save_file(tensors, temporary, {"format": "pt"})
    text = json.dumps({"format": "torchcram", "format_version": VERSION, "model": config.to_dict()}, indent=2)
    with replacing(target / CONFIG) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def load(path: str | os.PathLike[str]) -> tuple[CramConfig | BaselineConfig, dict[str, Tensor]]:
    """Read both files; anything missing, damaged or from a newer version is a `ValueError` that says so."""
    target = Path(path)
    for name in (CONFIG, WEIGHTS):
        if not (target / name).is_file():
            raise ValueError(f"{target} is not a torchcram model folder: it has no {name}")
    try:
        data: Any = json.loads((target / CONFIG).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{target / CONFIG} is damaged: {error}") from error
    if not isinstance(data, dict) or data.get("format") != "torchcram":
        raise ValueError(f"{target / CONFIG} does not describe a torchcram model")
    if data.get("format_version") != VERSION:
        raise ValueError(
            f"{target} has format version {data.get('format_version')!r}, this torchcram reads {VERSION}; "
            "upgrade torchcram"
        )
    try:
        weights = load_file(target / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{target / WEIGHTS} is damaged: {error}") from error
    model = data.get("model", {})
    kind = BaselineConfig if isinstance(model, dict) and "mixer" in model else CramConfig
    return kind.from_dict(model), weights


def fill(model: nn.Module, weights: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Put weights into a model, in the precision they were saved in; names and shapes must agree exactly."""
    precisions = {value.dtype for value in weights.values() if value.is_floating_point()}
    if len(precisions) == 1:
        model.to(precisions.pop())
    expected = model.state_dict()
    missing, unknown = sorted(set(expected) - set(weights)), sorted(set(weights) - set(expected))
    if missing or unknown:
        raise ValueError(
            f"{path} does not fit its config: missing {missing[:3] or 'nothing'}, unknown {unknown[:3] or 'nothing'}"
        )
    for name, value in weights.items():
        if value.shape != expected[name].shape:
            raise ValueError(
                f"{path} does not fit its config: {name} has shape {tuple(value.shape)}, "
                f"expected {tuple(expected[name].shape)}"
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError(f"{path} is damaged: {name} holds NaN or infinite values")
    model.load_state_dict(dict(weights))
