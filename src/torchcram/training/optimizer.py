"""Parameter groups and the learning-rate schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from torchcram.memory import ContradictionIndex, QualityEstimator, Router, SemanticMemory
from torchcram.training.config import OptimizerConfig


def build(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over three groups: matrices (decayed), the rest, and semantic memory at its own rate."""
    apart = {
        p
        for m in model.modules()
        if isinstance(m, Router | QualityEstimator | ContradictionIndex | nn.Embedding)
        for p in m.parameters()
    }
    semantic = {p for m in model.modules() if isinstance(m, SemanticMemory) for p in m.parameters()}
    groups: dict[str, list[nn.Parameter]] = {"decayed": [], "plain": [], "semantic": []}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        plain = parameter in apart or parameter.dim() < 2
        groups["semantic" if parameter in semantic else "plain" if plain else "decayed"].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups["decayed"], "weight_decay": config.decay, "scale": 1.0},
            {"params": groups["plain"], "weight_decay": 0.0, "scale": 1.0},
            {"params": groups["semantic"], "weight_decay": config.decay, "scale": config.semantic},
        ],
        lr=config.rate,
        betas=(config.beta1, config.beta2),
        fused=next(model.parameters()).is_cuda,
    )


def rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """The learning rate of a step: up, held, then down along a cosine."""
    rise = min(1.0, (step + 1) / config.warm_up) if config.warm_up else 1.0
    fall = max(0.0, (step - settle_step(config, steps)) / max(1, steps - settle_step(config, steps)))
    return config.rate * rise * (config.last + (1 - config.last) * 0.5 * (1 + math.cos(math.pi * fall)))


def settle_step(config: OptimizerConfig, steps: int) -> int:
    """The first step of the decay."""
    return round((1 - config.settle) * steps)
