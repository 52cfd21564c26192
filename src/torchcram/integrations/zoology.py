"""CRAM as a sequence mixer for zoology, the benchmark of HazyResearch (docs/decisions/014-a-mixer-among-others.md)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from torchcram.config import BlockConfig, EpisodicConfig, RouterConfig, SemanticConfig, WorkingConfig
from torchcram.consolidation import ConsolidationConfig, Phase, TrialConsolidator
from torchcram.draws import Draws
from torchcram.memory import Block, RoutingPolicy, Timeline
from torchcram.memory.utility import MOST
from torchcram.strict import reject

_MARK = "torchcram.consolidator"  # what the node of a graph that made a mixer's output is marked with
_MOST = 20 * MOST  # as elsewhere if one position in twenty is scored: cut off lower, reads seem worth too little


class CramMixer(nn.Module):
    """One CRAM layer: working, episodic and semantic memory and their router, without a feed-forward part.

    Its loop tells it neither steps nor held-out losses. So it counts its training forwards, and learns from the
    backward pass what its reads are worth (`consolidation.TrialConsolidator`): every token reads until reads have
    stopped gaining more; from then on those that are worth their price. Mixers of which one feeds another are layers of
    one model: they find each other in training, and share phase and price.

    Nor does it know how many positions the loss is a mean of, and takes all B·L. `tolerance` is in units of the loss
    all the same. A read costs `price` · scored ÷ (B·L) nats: a layer that gives up every read worth less than its price
    adds at most `price` to the loss.
    """

    def __init__(
        self,
        d_model: int,
        layer_idx: int = 0,
        *,
        heads: int = 1,
        slots: int | None = 512,
        rank: int = 32,
        convolution: int = 2,
        trained_length: int | None = None,
        price: float = 0.2,
        tolerance: float = 0.01,
        consolidation: Mapping[str, Any] | None = None,
    ) -> None:
        """A mixer of width `d_model` in layer `layer_idx`, from 0.

        heads, slots, convolution, trained_length: of episodic memory (`EpisodicConfig`); by default a token sees the
        one before it, since keys and values are tokens of their own in this benchmark.
        rank: of semantic memory; 0 is none.
        price: what a read must be worth once reads are released, at most.
        tolerance: by how much the loss may be higher for lack of reads, in nats; the price backs off if it is more.
        consolidation: other settings of `ConsolidationConfig` by name, such as `{"ramp": 500}`.
        """
        super().__init__()
        block = BlockConfig(width=d_model, expansion=0)
        episodic = EpisodicConfig(slots=slots, heads=heads, convolution=convolution, trained_length=trained_length)
        if d_model % heads:
            reject("heads", heads, f"a divisor of d_model = {d_model}")
        self.layer_idx = layer_idx
        self.block = Block(
            block=block,
            working=WorkingConfig(),
            episodic=episodic,
            semantic=SemanticConfig(rank=rank),
            router=RouterConfig(rule="worth"),
        )
        _shield(self.block)
        # Every step is a lesson: there is no other way to know what is lost.
        usual = {"signal": "utility", "lessons": 1, "price": price, "tolerance": tolerance}
        self.consolidator = TrialConsolidator(ConsolidationConfig.from_dict({**usual, **(consolidation or {})}))
        self._auxiliary: Tensor | None = None
        self._reads: Tensor | None = None

    @property
    def phase(self) -> Phase:
        """Where training stands."""
        return self.consolidator.phase

    @property
    def reads(self) -> float:
        """Share of the positions of the last forward that read; NaN before any."""
        return math.nan if self._reads is None else self._reads.double().mean().item()

    def forward(self, x: Tensor, dt: Tensor | None = None) -> Tensor:
        """What the layer adds [B, L, D] to the residual stream, from x [B, L, D]; dt [B, L]: gaps, 1 by default."""
        width = self.block.norm_memory.weight.shape[0]
        if x.dim() != 3 or x.shape[1] < 1 or x.shape[2] != width:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected [B, L, {width}], L at least 1")
        if dt is not None and dt.shape != x.shape[:2]:
            raise ValueError(f"dt has shape {tuple(dt.shape)}; expected {tuple(x.shape[:2])}")
        if dt is not None and bool((dt < 0).any()):
            raise ValueError(f"dt has a gap of {float(dt.min()):g}; expected none below 0")
        learning = self.training and torch.is_grad_enabled()
        below = _consolidator_below(x) if learning else None
        if below is not None:
            if below.config != self.consolidator.config:
                raise ValueError(
                    f"layer {self.layer_idx} has other settings of consolidation than a layer below; mixers of one "
                    "model share phase and price, so give all the same"
                )
            self.consolidator = below
        elif learning:
            self.consolidator.count()
        policy, noise = self._policy(x) if self.training else (self._evaluation_policy(), None)
        timeline = Timeline.build(torch.ones(x.shape[:2], device=x.device) if dt is None else dt)
        out = self.block(x, timeline, None, policy, noise=noise, keep_state=False)
        added: Tensor = out.x - x
        self._reads, self._auxiliary = out.reads, None
        if learning and added.grad_fn is not None:
            _metadata(added.grad_fn)[_MARK] = self.consolidator
            self.consolidator.watch(out, policy, first=below is None)
            positions = timeline.mask.numel()
            self._auxiliary = self.consolidator.loss(out.losses, positions=positions, scored=positions)
        return added

    def get_auxiliary_loss(self) -> Tensor:
        """What the benchmark adds to its loss: the layer's own losses in the last forward; 0 if not a training one."""
        return self.block.norm_memory.weight.new_zeros(()) if self._auxiliary is None else self._auxiliary

    def state_size(self, sequence_length: int = 2048) -> int:
        """Numbers of four bytes that the layer remembers of a sequence, once reads are released."""
        state = self.block.initial_state(1)
        if state.episodic is not None and self.block.episodic is not None:
            slots = self.block.episodic.config.slots
            held = state.episodic.widen(sequence_length if slots is None else min(slots, sequence_length))
            state = dataclasses.replace(state, episodic=held)
        return math.ceil(state.nbytes / 4)

    def get_extra_state(self) -> Tensor:
        """Phase, counts and price as a tensor, so that every way to save a state_dict will do."""
        return torch.tensor(list(json.dumps(self.consolidator.state_dict()).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """The inverse of `get_extra_state`."""
        self.consolidator.load_state_dict(json.loads(bytes(state.tolist())))

    def __getstate__(self) -> dict[str, Any]:
        """For copies: a loss that is part of a graph cannot be copied."""
        return {**self.__dict__, "_auxiliary": None}

    def _policy(self, x: Tensor) -> tuple[RoutingPolicy, Tensor | None]:
        """How a training forward routes, and its random numbers."""
        batch, length, _ = x.shape
        draws = Draws(
            seed=torch.initial_seed(), step=self.consolidator.steps, rows=torch.arange(batch, device=x.device)
        )
        policy = dataclasses.replace(self.consolidator.policy(float(batch * length)), most=_MOST, draws=draws)
        # While all read, a token skips, or is on trial, in all layers alike; see `Cram.run_blocks`.
        layers = 1 if policy.reads == "dense" else self.layer_idx + 1
        return policy, policy.noise(batch, length, layers)[-1]

    def _evaluation_policy(self) -> RoutingPolicy:
        return self.consolidator.dense() if self.consolidator.released_at is None else RoutingPolicy()


class _Projection(nn.Module):
    """x Wᵀ + b. Not an `nn.Linear`, so that a stack which initialises all of these anew passes it by."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = like.weight, like.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def _shield(module: nn.Module) -> None:
    """Exchange every `nn.Linear` inside: what weights begin with matters, queries and keys alike for instance."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, _Projection(child))
        else:
            _shield(child)


def _consolidator_below(x: Tensor) -> TrialConsolidator | None:
    """Of a mixer that x was made from the output of, found along the graph; None: there is none."""
    seen: set[Node] = set()
    waiting = [x.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        found = _metadata(node).get(_MARK)
        if isinstance(found, TrialConsolidator):
            return found
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return None


def _metadata(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.metadata  # type: ignore[assignment]  # an attribute, whatever its type says
    return found
