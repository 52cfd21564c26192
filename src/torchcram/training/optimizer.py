"""Parameter groups and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from torchcram.memory import ContradictionIndex, QualityEstimator, Router, SemanticMemory, WorthEstimator
from torchcram.training.config import OptimizerConfig

_ONLOOKERS = ContradictionIndex, WorthEstimator  # they learn about the model, and do not shape it


def build(model: nn.Module, config: OptimizerConfig, *, recordable: bool = False) -> torch.optim.AdamW:
    """AdamW over four groups: matrices (decayed), the rest, semantic memory and onlookers at rates of their own.

    recordable: rates are tensors, which a recorded step heeds.
    """
    apart = _parameters(model, Router, QualityEstimator, nn.Embedding)
    semantic, onlookers = _parameters(model, SemanticMemory), _parameters(model, *_ONLOOKERS)
    groups: dict[str, list[nn.Parameter]] = {"decayed": [], "plain": [], "semantic": [], "onlookers": []}
    for parameter in largest_first(model.parameters()):
        if not parameter.requires_grad:
            continue
        plain = parameter in apart or parameter.dim() < 2
        name = "semantic" if parameter in semantic else "plain" if plain else "decayed"
        groups["onlookers" if parameter in onlookers else name].append(parameter)
    made = torch.optim.AdamW(
        [
            {"params": groups["decayed"], "weight_decay": config.decay, "scale": 1.0},
            {"params": groups["plain"], "weight_decay": 0.0, "scale": 1.0},
            {"params": groups["semantic"], "weight_decay": config.decay, "scale": config.semantic},
            *([{"params": groups["onlookers"], "weight_decay": 0.0, "scale": config.onlookers}] if onlookers else []),
        ],
        lr=config.rate,
        betas=(config.beta1, config.beta2),
        fused=next(model.parameters()).is_cuda,
        capturable=recordable,
    )
    if recordable:
        device = next(model.parameters()).device
        for group in made.param_groups:
            group["lr"] = torch.tensor(config.rate, device=device)
    return made


def largest_first(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """In the order in which a fused optimizer takes fewest launches: small ones between large ones each end one."""
    return sorted(parameters, key=nn.Parameter.numel, reverse=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give each group its share of a learning rate."""
    for group in optimizer.param_groups:
        value = rate * group["scale"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def clipped_together(model: nn.Module) -> list[list[nn.Parameter]]:
    """The model's own parameters, and those of onlookers: the gradients of neither may drown the others'."""
    onlookers = _parameters(model, *_ONLOOKERS)
    own = [p for p in model.parameters() if p not in onlookers]
    return [own, [p for p in model.parameters() if p in onlookers]] if onlookers else [own]


def _parameters(model: nn.Module, *kinds: type[nn.Module]) -> set[nn.Parameter]:
    return {p for m in model.modules() if isinstance(m, kinds) for p in m.parameters()}


def rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """The learning rate of a step: up, held, then down along a cosine."""
    rise = min(1.0, (step + 1) / config.warm_up) if config.warm_up else 1.0
    fall = (step - settle_step(config, steps)) / max(1, steps - settle_step(config, steps))
    fall = min(1.0, max(0.0, fall))
    return config.rate * rise * (config.last + (1 - config.last) * 0.5 * (1 + math.cos(math.pi * fall)))


def settle_step(config: OptimizerConfig, steps: int) -> int:
    """The first step of the decay."""
    return round((1 - config.settle) * steps)
