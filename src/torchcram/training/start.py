"""Beginning with the layers of another run, some of them as they are for good: transfer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from torchcram.training import checkpoint
from torchcram.training.checkpoint import Checkpoint
from torchcram.training.distributed import World
from torchcram.training.run import RunFolder

_LAYERS = "blocks."  # begins the names of all that belongs to layers
WHOLE = "layers"
"""All of them, as a part."""


def load_layers(model: nn.Module, path: str | Path, world: World) -> None:
    """Fill the layers of a model from the newest checkpoint of a run; inputs and outputs stay as they are."""
    folder = RunFolder(path)
    named = folder.config.name  # says so if it is not a run
    saved = checkpoint.newest(folder.checkpoints, lambda _: None, world)
    if saved is None:
        raise ValueError(f"start.run: {path} has no checkpoint")
    targets = {f"model.{name}": x for name, x in model.state_dict().items() if name.startswith(_LAYERS)}
    layout = {name: size for name, size in saved.layout().items() if name.startswith(f"model.{_LAYERS}")}
    for name in sorted(targets.keys() | layout.keys()):
        mine = tuple(targets[name].shape) if name in targets else "not there"
        its = tuple(layout[name]) if name in layout else "not there"
        if mine != its:
            raise ValueError(
                f"start.run: the layers of {path} ({named}) are others: {name.removeprefix('model.')} is {its} there, "
                f"{mine} here; give both runs the same preset and settings of the model"
            )
    saved.read(targets)


def only_layers(path: str | Path) -> Path:
    """Leave of a finished run's newest checkpoint nothing but what others begin with. Returns its folder."""
    saved = checkpoint.newest(RunFolder(path).checkpoints, lambda _: None)
    if saved is None:
        raise ValueError(f"{path} has no checkpoint")
    tensors = load_file(saved.path / "model.safetensors")
    held = {name: value for name, value in tensors.items() if name.startswith(f"model.{_LAYERS}")}
    for file in saved.path.iterdir():
        file.unlink()  # without its manifest it is none, and is written again
    return checkpoint.save(saved.path.parent, Checkpoint(step=saved.step, tensors=held, extra={}))


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Let parts of the layers learn no more: modules by name, such as `semantic`, or all of `layers`."""
    names = [name for name, _ in model.named_parameters() if name.startswith(_LAYERS)]
    known = sorted({module for name in names for module in name.split(".")[2:-1]})
    for part in parts:
        if part != WHOLE and part not in known:
            raise ValueError(f"start.frozen: the layers have no {part!r}; parts: {', '.join((WHOLE, *known))}")
    for name, parameter in model.named_parameters():
        inside = name.startswith(_LAYERS) and (WHOLE in parts or bool(set(parts) & set(name.split(".")[2:-1])))
        if inside:
            parameter.requires_grad_(False)
