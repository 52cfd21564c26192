"""How layers are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_LEARNING: dict[str, str | int | bool | Callable[..., Any]] = {
    "realize_reads_threshold": 16,
    "realize_opcount_threshold": 300,
    "realize_acc_reads_threshold": 32,
}
"""Where there are gradients, what several of them add up to is found where it is used, not written down before."""


def compile_layer(layer: nn.Module) -> None:
    """Compile a layer as a whole: once for learning, once for everything else."""
    plain = torch.compile(layer._call_impl)
    learning = torch.compile(layer._call_impl, options=_LEARNING)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (learning if layer.training else plain)(*args, **kwargs)

    layer._compiled_call_impl = call
