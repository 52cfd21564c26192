"""What all layers of a stack learn from their reads, found at once.

Of short lists that is much the same for each layer, and small: layer by layer it would be hundreds of launches of a
GPU. The formulas are those of `losses`; a layer alone finds the same (`Block.forward`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.memory.episodic import Reading, Written
from torchcram.memory.foresight import telling_positions
from torchcram.memory.losses import (
    best_quality,
    consolidation_losses,
    priority_loss,
    routing_losses,
    worth_telling,
)
from torchcram.memory.moments import variance_of
from torchcram.memory.quality import quality_of, unit_of
from torchcram.memory.router import Decision, RoutingPolicy
from torchcram.memory.timeline import Timeline
from torchcram.ops import Rows, gather_rows

if TYPE_CHECKING:
    from torchcram.memory.block import Block
    from torchcram.memory.precision import Narrowed

_FEW = 4  # a list is short if it has room for this part of the positions at most


class Material(NamedTuple):
    """What a layer learns from in a call; only `priority` and `probabilities` have gradients."""

    u: Tensor
    """[B, N, D]"""
    h: Tensor
    """[B, N, D]"""
    carried: Tensor
    """[B, 1, R]: see `Foresight`."""
    rows: Rows
    """Whoever read."""
    value: Tensor
    """[B, R, D]: r^E."""
    mass: Tensor
    """[B, N]: attention that each new event received."""
    told: Tensor
    """[B, N] bool: of which events that says something."""
    priority: Tensor
    """[B, N]: of each new event."""
    probabilities: Tensor
    """[B, N, 3]: π."""
    quality: Tensor
    """[B, N]: q̂."""

    @classmethod
    def of(
        cls,
        u: Tensor,
        h: Tensor,
        carried: Tensor,
        reading: Reading,
        written: Written,
        decision: Decision,
        quality: Tensor,
    ) -> Material:
        """What is there when a layer has read."""
        length = u.shape[1]
        return cls(
            u=u.detach(),
            h=h.detach(),
            carried=carried,
            rows=reading.rows,
            value=reading.value.detach(),
            mass=reading.mass[:, -length:],
            told=worth_telling(written),
            priority=written.priority[:, -length:],
            probabilities=decision.probabilities,
            quality=quality,
        )


class Weights(NamedTuple):
    """Of all layers, one after the other: what they learn from that, and how widely reads vary."""

    tell: tuple[Tensor, ...]
    foretell: tuple[Tensor, ...]
    down: tuple[Tensor, ...]
    up: tuple[Tensor, ...]
    hidden: tuple[Tensor, ...]
    shift: tuple[Tensor, ...]
    score: tuple[Tensor, ...]
    bias: tuple[Tensor, ...]
    mean: tuple[Tensor, ...]
    mean_square: tuple[Tensor, ...]

    @classmethod
    def of(cls, layers: Sequence[Narrowed]) -> Weights:
        """Those that the layers have in this call."""
        names = (
            "predictor.0.weight",
            "predictor.1.weight",
            "semantic.down.weight",
            "semantic.up.weight",
            "quality.hidden.weight",
            "quality.hidden.bias",
            "quality.score.weight",
            "quality.score.bias",
        )
        buffers = "quality.reads.mean", "quality.reads.mean_square"
        return cls(
            *(tuple(layer.weight(name) for layer in layers) for name in names),
            *(tuple(layer.module.get_buffer(name) for layer in layers) for name in buffers),
        )


def can_learn_together(blocks: Sequence[Block], timeline: Timeline, policy: RoutingPolicy, room: int) -> bool:
    """Whether layers are alike and their weights whole, and lists, of rows with so much room, so short that it pays."""
    alike = all(b.episodic is not None and b.semantic is not None and not b.exact for b in blocks)
    alike = alike and all(type(p) is nn.Parameter for b in blocks for p in b.parameters())  # not shards
    from_all = any(b.predictor.learns_from_all(timeline) for b in blocks)
    short = room * _FEW <= timeline.mask.shape[1]
    return alike and short and not from_all and policy.trial == 0 and not processes.several()


def learn_together(
    weights: Weights, materials: Sequence[Material], scale: float
) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """The losses of all layers, added up, and q of what each of them read [B, R].

    scale: of σ², see `QualityEstimator`.
    """
    tell, foretell, down, up, hidden, shift, score, bias = (_stacked(*parts) for parts in weights[:8])
    layers, (batch, length, width) = len(materials), materials[0].u.shape
    tokens = torch.full((), batch * length, device=down.device)
    losses = {"uncertainty": _uncertainty(tell, foretell, materials) / tokens}

    def each(numbers: Sequence[Tensor]) -> Tensor:
        """[L B, 1]: a number [] of each layer, for its sequences."""
        return torch.stack(list(numbers)).unsqueeze(1).expand(layers, batch).reshape(-1, 1)

    # From here on all sequences of all layers are one batch.
    at, valid, place = (torch.cat([m.rows[part] for m in materials]) for part in range(3))  # type: ignore[misc]
    rows = Rows(at, valid, place)
    value, mass, told, priority, probabilities, quality = (
        torch.cat(parts) for parts in zip(*(m[4:] for m in materials), strict=True)
    )
    token = torch.cat([gather_rows(m.u, m.rows) for m in materials]).view(layers, -1, width)
    remembered = token @ down.mT
    recalled = (nn.functional.relu(remembered) @ up.mT).view(value.shape)
    spread = [scale * variance_of(*moments) for moments in zip(weights.mean, weights.mean_square, strict=True)]
    exact = quality_of(recalled, value, each(spread))
    # As `QualityEstimator.logit`, which sees what is recalled but does not shape it.
    active = hidden[..., width:] @ up.detach()
    seen = token @ hidden[..., :width].mT + nn.functional.relu(remembered.detach()) @ active.mT + shift.unsqueeze(1)
    estimates = (nn.functional.relu(seen) @ score.mT + bias.unsqueeze(1)).view(exact.shape)
    reads = each([processes.per_process(m.rows.listed) for m in materials])
    unit = each([unit_of(square) for square in weights.mean_square])
    losses |= consolidation_losses(recalled, value, valid, exact, estimates, unit, reads)
    events = each([processes.per_process(m.told.sum()) for m in materials])
    losses["priority"] = priority_loss(priority, mass, told, events)
    known = best_quality(quality, exact, rows)
    losses |= routing_losses(probabilities, known, torch.ones_like(told), tokens)
    return losses, exact.chunk(layers)


def _stacked(*parts: Tensor) -> Tensor:
    """[L, ...]"""
    stacked: Tensor = _Stacked.apply(*parts)  # type: ignore[no-untyped-call]
    return stacked


class _Stacked(torch.autograd.Function):
    """Gradients lie in memory as the parts do: so those of all weights can be made wide at once (`precision`)."""

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad.contiguous().unbind()


def _uncertainty(tell: Tensor, foretell: Tensor, materials: Sequence[Material]) -> Tensor:
    """As `Foresight.loss`, of all positions together."""
    batch, length, _ = materials[0].u.shape
    positions = telling_positions(batch, length, tell.device)
    seen, before = (torch.stack(parts) for parts in zip(*(positions.pick(m.u, m.h) for m in materials), strict=True))
    carried = torch.stack([m.carried for m in materials])
    return positions.missed(seen, _mapped(before, tell), carried, lambda told: _mapped(told, foretell))


def _mapped(x: Tensor, weights: Tensor) -> Tensor:
    """Of each layer, x [L, B, P, C] by its own map, weights [L, C', C]."""
    return (x.flatten(1, 2) @ weights.mT).view(*x.shape[:3], weights.shape[1])
