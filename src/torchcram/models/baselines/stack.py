"""Baselines: a mixer and a feed-forward part in every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from torchcram.config import BaselineConfig, OutputConfig
from torchcram.config.baseline import CATEGORIES
from torchcram.memory import Norm, RoutingPolicy, Timeline, narrowed
from torchcram.memory.compiling import compile_layer
from torchcram.memory.losses import Counts
from torchcram.memory.state import TensorTree
from torchcram.models.baselines.adaptive import Boat, Depth, Uncertain
from torchcram.models.baselines.attention import Attention, SlottedAttention
from torchcram.models.baselines.mixer import Mixed, Mixer
from torchcram.models.baselines.space import SelectiveSpace, Switch
from torchcram.models.baselines.state import BaselineState, MixerState
from torchcram.models.outputs import Heads
from torchcram.models.sequence import SequenceModel, SequenceOutput

_IDLE = 0.1  # weight of the entropy of answers that nobody asks for


@dataclass(frozen=True, kw_only=True, repr=False)
class BaselineLayer:
    """What a layer did in one call."""

    x: Tensor
    state: MixerState | None
    reads: Tensor
    audits: Tensor
    writes: Tensor
    pairs: Tensor | None
    losses: dict[str, Tensor]
    early: dict[str, Tensor] | None = None
    """What the heads would answer before the layer's attention, where that decides who attends."""


class BaselineBlock(nn.Module):
    """x ← x + mixer(norm(x)); x ← x + FFN(norm(x)), if there is one."""

    def __init__(self, config: BaselineConfig, layer: int) -> None:
        super().__init__()
        width = config.block.width
        self.norm_mixer = Norm(width)
        self.mixer = cast(Mixer, _mixer(config, layer))
        if isinstance(self.mixer, Uncertain):
            self.norm_early, self.norm_attention = Norm(width), Norm(width)
            self.early = Heads(width, [o for o in config.outputs if o.kind != "classification"])
        hidden = config.block.feed_forward
        self.norm_feed = Norm(width) if hidden else None
        self.feed = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)) if hidden else None

    def initial_state(self, batch: int) -> MixerState:
        """Before anything was seen."""
        return self.mixer.initial_state(batch)

    def forward(
        self, x: Tensor, timeline: Timeline, state: MixerState, *, keep_state: bool, asked: Tensor | None = None
    ) -> BaselineLayer:
        """x [B, N, D]; asked: see `RoutingPolicy`."""
        x = timeline.clean(x)
        u = self.norm_mixer(x)
        early = None
        if isinstance(self.mixer, Uncertain):
            mixed, early = self._look_if_uncertain(self.mixer, x, u, timeline, state, asked, keep=keep_state)
        else:
            mixed = self.mixer(u, timeline, state, keep=keep_state)
        x = x + mixed.value
        if self.feed is not None and self.norm_feed is not None:
            x = x + self.feed(self.norm_feed(x))
        x = timeline.clean(x)
        return BaselineLayer(
            x=x,
            state=mixed.state if keep_state else None,
            reads=mixed.reads,
            audits=torch.zeros_like(mixed.reads),
            writes=mixed.writes,
            pairs=mixed.pairs,
            losses=mixed.losses,
            early=early if self.training else None,
        )

    def compile_parts(self) -> None:
        """Compile the layer; where the number of rows is known only when it runs, the compiler breaks it up."""
        compile_layer(self)

    def _look_if_uncertain(
        self,
        mixer: Uncertain,
        x: Tensor,
        u: Tensor,
        timeline: Timeline,
        state: MixerState,
        asked: Tensor | None,
        *,
        keep: bool,
    ) -> tuple[Mixed, dict[str, Tensor]]:
        cheap = mixer.space(u, timeline, state, keep=keep)
        x = x + cheap.value
        answers, _ = self.early(self.norm_early(x), timeline, None)
        entropy = _entropy(answers, self.early.outputs)
        losses = {}
        if self.training and asked is not None:
            # Nothing else tells its heads how sure they should be where no answer is scored: so they learn to be.
            idle = timeline.mask & ~asked
            losses["idle"] = _IDLE * (entropy * idle).sum() / Counts.of(timeline.mask, None, None).tokens
        chosen = mixer.uncertain(entropy.detach(), timeline.mask, asked)
        looked = mixer.look(self.norm_attention(x), timeline, state, chosen, keep=keep)
        after = MixerState(cache=looked.state.cache, space=cheap.state.space, recent=cheap.state.recent)
        return looked._replace(value=cheap.value + looked.value, state=after, losses=losses), answers


@dataclass(frozen=True, kw_only=True, repr=False)
class BaselineOutput(SequenceOutput[BaselineLayer, BaselineState]):
    """What a `Baseline` returns."""

    @property
    def early(self) -> tuple[dict[str, Tensor], ...]:
        """In training: what the heads of layers answer that look back only where they are uncertain."""
        return tuple(layer.early for layer in self.layers if layer.early is not None)


class Baseline(SequenceModel[BaselineLayer, BaselineState]):
    """A model that CRAM is compared with: the same inputs, outputs, state and ledger around other layers."""

    config: BaselineConfig
    state_kind = BaselineState
    output_kind = BaselineOutput

    def make_blocks(self) -> Iterator[BaselineBlock]:
        """The layers."""
        return (BaselineBlock(self.config, layer) for layer in range(self.config.layers))

    def run_blocks(
        self,
        x: Tensor,
        timeline: Timeline,
        states: Sequence[TensorTree],
        policy: RoutingPolicy,
        *,
        keep_state: bool,
    ) -> list[BaselineLayer]:
        """x [B, N, D] through all layers. Of a policy only `asked` applies: each has one way to choose who attends."""
        if policy.reads == "off" or policy.actions is not None or policy.priorities is not None:
            raise ValueError(
                "reads and writes can be forced for CRAM alone; a baseline has one way to choose who attends"
            )
        layers: list[BaselineLayer] = []
        for block, state in zip(narrowed(self.blocks), states, strict=True):
            layers.append(block(x, timeline, state, keep_state=keep_state, asked=policy.asked))
            x = layers[-1].x
        return layers


def _mixer(config: BaselineConfig, layer: int) -> nn.Module:
    match config.mixer:
        case "attention" if config.attention.slots is not None:
            return SlottedAttention(config)
        case "attention":
            return Attention(config)
        case "space":
            return Attention(config) if config.attends(layer) else SelectiveSpace(config)
        case "boat":
            return Boat(config)
        case "switch":
            return Switch(config, round(config.switch * layer / max(1, config.layers - 1)))
        case "depth":
            return Depth(config)
        case "entropy":
            return Uncertain(config)


def _entropy(answers: dict[str, Tensor], outputs: Sequence[OutputConfig]) -> Tensor:
    """[B, N]: of the answers of all heads together, in nats."""
    return torch.stack([_entropy_of(answers[o.name]) for o in outputs if o.kind in CATEGORIES]).sum(0)


def _entropy_of(logits: Tensor) -> Tensor:
    log = torch.log_softmax(logits.float(), dim=-1)
    return -(log.exp() * log).sum(-1)
