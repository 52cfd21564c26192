"""A run's tensors by name, whole or sharded: parameters and buffers, and the optimizer's moments of each parameter.

By name, since the order of an optimizer's groups says nothing to another process. Of torch's own helpers for this,
`get_optimizer_state_dict` takes an optimizer step of its own when there is no state yet, which would be counted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchcram.training.checkpoint import Saved


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Tensor]:
    """`model.<name>` and `optimizer.<name of the parameter>.<moment>`."""
    found = _of_model(model)
    moments = optimizer.state if optimizer is not None else {}
    for name, parameter in model.named_parameters():
        for moment, value in moments.get(parameter, {}).items():
            found[f"optimizer.{name}.{moment}"] = value
    return found


def restore(model: nn.Module, optimizer: torch.optim.Optimizer | None, saved: Saved) -> None:
    """Read what `tensors` gave back into model and optimizer, however either is sharded now."""
    layout = saved.layout()
    targets = _of_model(model)
    for name in sorted(targets.keys() | {name for name in layout if name.startswith("model.")}):
        expected, given = (
            tuple(x) if x is not None else "not there" for x in (_shape(targets, name), layout.get(name))
        )
        if expected != given:
            raise ValueError(
                f"{saved.path.name} is of another model: {name.removeprefix('model.')} is {given}, expected {expected}"
            )
    if optimizer is None:
        saved.read(targets)
        return
    parameters = dict(model.named_parameters())
    number = {p: i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    moments: dict[int, dict[str, Tensor]] = {}
    for key, shape in layout.items():
        part, _, rest = key.partition(".")
        if part == "optimizer":
            name, _, moment = rest.rpartition(".")
            parameter = parameters[name]
            value = torch.zeros_like(parameter) if shape == parameter.shape else torch.zeros(shape)
            targets[key] = moments.setdefault(number[parameter], {})[moment] = value
    saved.read(targets)
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})


def _of_model(model: nn.Module) -> dict[str, Tensor]:
    return {f"model.{name}": value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _shape(targets: dict[str, Tensor], name: str) -> torch.Size | None:
    return targets[name].shape if name in targets else None
