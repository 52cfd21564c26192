"""The whole model: an input encoder, a stack of layers, and heads."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import cast

import torch
from torch import Tensor

from torchcram.config import CramConfig
from torchcram.memory import (
    EPISODIC,
    NONE,
    Block,
    BlockOutput,
    ContradictionIndex,
    CramState,
    Guidance,
    RoutingPolicy,
    Timeline,
    narrowed,
)
from torchcram.memory.precision import Narrowed
from torchcram.memory.state import TensorTree
from torchcram.memory.store import Room
from torchcram.memory.together import Weights, can_learn_together, learn_together
from torchcram.models import folder
from torchcram.models.sequence import SequenceModel, SequenceOutput
from torchcram.ops import Rows, gather_rows
from torchcram.ops.rows import Call, kept

_CLAIMED, _CONFIRMED = 0.7, 0.4  # semantic memory claims to know above the one, and was wrong below the other


@dataclass(frozen=True, kw_only=True, repr=False)
class CramOutput(SequenceOutput[BlockOutput, CramState]):
    """What a `Cram` returns: predictions, what each token did, and the state to go on from."""

    @cached_property
    def routing(self) -> Tensor:
        """[B, N, L] int8: 0 nothing more than working memory, 1 episodic read, 2 semantic recall; 0 at padding."""
        return torch.stack([layer.decision.actions for layer in self.layers], dim=-1).to(torch.int8)

    @property
    def quality(self) -> Tensor:
        """[B, N, L]: q as the router saw it."""
        return torch.stack([layer.quality for layer in self.layers], dim=-1)

    @property
    def hits(self) -> Tensor | None:
        """[B, N] bool: tokens that ask for what memory would get wrong; None without a contradiction index."""
        return self.guidance.hits if self.guidance is not None else None

    @property
    def guidance(self) -> Guidance | None:
        """What the contradiction index told; None without one."""
        return self.layers[-1].guidance

    def surprises(self) -> list[bool]:
        """Checks of memory, in the order of positions, for a `consolidation.DriftAlarm`: whether it was wrong.

        One for each write of which the contradiction index expected something. Without an index, one for each read or
        audit where semantic memory claimed to know what would be read.
        """
        if self.guidance is not None and self.guidance.consulted is not None:
            found = self.guidance.consulted
            at = found.checked.T.nonzero()  # all sequences of a batch are one stream of checks
            return [bool(x) for x in found.surprising.T[at[:, 0], at[:, 1]].tolist()]
        checks = []
        for layer in self.layers:
            if layer.exact is None or layer.reading is None:
                continue
            rows = layer.reading.rows
            checked = rows.valid & (gather_rows(layer.quality, rows) > _CLAIMED)
            checks.append(torch.stack([rows.at[checked], (layer.exact[checked] < _CONFIRMED).long()], dim=1))
        if not checks:
            return []
        every = torch.cat(checks)
        return [bool(x) for x in every[every[:, 0].argsort(stable=True), 1].tolist()]

    def _compared(self, nothing: Tensor) -> Tensor:
        looked = self.guidance is not None and self.guidance.consulted is not None
        return self.guidance.consulted.pairs if looked else nothing  # type: ignore


class Cram(SequenceModel[BlockOutput, CramState]):
    """A sequence model with three memories (arXiv preprint "Learning to Forget Attention").

    Feed a sequence whole, in chunks, or token by token: with the state passed on, the results are the same.
    """

    config: CramConfig
    state_kind = CramState
    output_kind = CramOutput

    def make_blocks(self) -> Iterator[Block]:
        """The layers."""
        config = self.config
        # Where nothing is recalled nothing can be stale, and with exact quality every token reads anyway.
        guided = bool(config.contradiction.rank and config.semantic.rank and config.router.quality == "predicted")
        first = min(config.episodic_layers, default=None)
        return (
            Block(
                block=config.block,
                working=config.working,
                episodic=config.episodic if layer in config.episodic_layers else None,
                semantic=config.semantic,
                router=config.router,
                contradiction=config.contradiction if guided and layer == first else None,
                guided=guided and layer in config.episodic_layers,
                witnesses=len(config.episodic_layers),
            )
            for layer in range(config.layers)
        )

    def run_blocks(
        self,
        x: Tensor,
        timeline: Timeline,
        states: Sequence[TensorTree],
        policy: RoutingPolicy,
        *,
        keep_state: bool,
    ) -> list[BlockOutput]:
        """x [B, N, D] through all layers, each with its state and with what the contradiction index told."""
        rows, length = timeline.mask.shape
        layers: list[BlockOutput] = []
        guidance = None
        guided = any(block.index is not None for block in self.blocks)
        noise = policy.noise(rows, length, self.config.layers, guided=guided)
        if policy.reads == "dense" and policy.trial > 0 and policy.draws is None:
            noise = (policy.shared_noise(timeline.mask),) * self.config.layers
        dense = _dense_actions(policy, timeline, noise[0])
        # Read densely, a token is on trial in all layers at once: what each of several that read the same is worth
        # could not be told from one alone.
        shared = 1 if policy.reads == "dense" else self.config.layers
        call = kept()
        room = self._room(call, policy, length) if call is not None else None
        # Without room for its lists, compiled code would be in pieces; and for room that is a guess, it does not pay.
        compiled = self.blocks[0]._compiled_call_impl is not None
        plain = compiled and bool(self.config.episodic_layers) and (call is None or call.guessing)
        how = torch.compiler.set_stance("force_eager") if plain else contextlib.nullcontext()
        blocks = narrowed(self.blocks)
        apart = room is not None and self.training and compiled and not plain
        if apart and room is not None:
            apart = can_learn_together(cast(list[Block], list(self.blocks)), timeline, policy, room.rows)
        with how:
            for number, (block, memory) in enumerate(zip(blocks, states, strict=True)):
                forced = dense if number in self.config.episodic_layers else None
                if policy.actions is not None:
                    forced = policy.actions[..., number]
                layer: BlockOutput = block(
                    x,
                    timeline,
                    memory,
                    policy,
                    forced=forced,
                    priority=None if policy.priorities is None else policy.priorities[..., number],
                    noise=noise[number % shared],
                    guidance=guidance,
                    room=room,
                    keep_state=keep_state,
                    apart=apart,
                )
                x, guidance = layer.x, layer.guidance
                layers.append(layer)
        needed = [layer.needed for layer in layers if layer.needed is not None]
        if call is not None and needed:
            for name, count in zip(Room._fields, torch.stack(needed).amax(0), strict=True):
                call.need(name, count)
        if apart:
            layers = self._learn(blocks, layers)
        if guidance is not None and guidance.witnesses is not None:
            self._teach_index(layers, guidance.witnesses, torch.as_tensor(guidance.chance), policy.answered)
        return layers

    def _learn(self, blocks: Sequence[Narrowed], layers: Sequence[BlockOutput]) -> list[BlockOutput]:
        """What the layers did, with what they learn from it; losses of all of them go with the last."""
        materials = [layer.material for layer in layers if layer.material is not None]
        losses, exact = _compiled_learning()(Weights.of(blocks), materials, self.config.router.scale)
        done = [
            dataclasses.replace(layer, exact=each, material=None) for layer, each in zip(layers, exact, strict=True)
        ]
        done[-1] = dataclasses.replace(done[-1], losses={**done[-1].losses, **losses})
        return done

    def _room(self, call: Call, policy: RoutingPolicy, length: int) -> Room:
        """The same for all layers: lists of another length are others to compile for."""
        all_read = policy.reads == "dense" or self.config.router.quality == "exact"
        rows = call.room("rows", length, length if all_read else length // 4)
        return Room(rows, call.room("events", length, length))

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Cram:
        """Read a model from a folder that `save_pretrained` wrote, ready for evaluation."""
        config, weights = folder.load(path)
        if not isinstance(config, CramConfig):
            raise ValueError(f"{path} holds another kind of model; read it with torchcram.models.load")
        model = cls(config)
        folder.fill(model, weights, path)
        return model.to(device).eval()

    def _teach_index(self, layers: list[BlockOutput], witnesses: Rows, chance: Tensor, answered: Tensor | None) -> None:
        """Let the contradiction index learn from what all layers read; its loss goes with those of its own layer."""
        number = next(i for i, block in enumerate(self.blocks) if block.index is not None)
        index: ContradictionIndex = self.blocks[number].index  # type: ignore[assignment]
        evidence = [layer.evidence for layer in layers if layer.evidence is not None]
        own = layers[number]
        loss = index.loss(own.seen, witnesses, chance, evidence, own.taps, answered)
        layers[number] = dataclasses.replace(own, losses={**own.losses, "contradiction": loss})

    def _check_actions(self, actions: Tensor, shape: tuple[int, int, int]) -> None:
        if tuple(actions.shape) != shape or actions.is_floating_point():
            raise ValueError(
                f"policy.actions has shape {tuple(actions.shape)} and dtype {actions.dtype}; expected integers {shape}"
            )
        if not self.check_values:
            return
        if not bool(((actions >= 0) & (actions <= 2)).all()):
            raise ValueError("policy.actions holds values other than 0 (none), 1 (episodic), 2 (semantic)")
        for layer in set(range(self.config.layers)) - set(self.config.episodic_layers):
            if bool((actions[..., layer] == EPISODIC).any()):
                raise ValueError(f"policy.actions has reads in layer {layer}, which owns no buffer")


@cache
def _compiled_learning() -> Callable[..., tuple[dict[str, Tensor], tuple[Tensor, ...]]]:
    """`learn_together`, for all models: one that kept it could not be pickled."""
    return torch.compile(learn_together, dynamic=False)


def _dense_actions(policy: RoutingPolicy, timeline: Timeline, noise: Tensor | None) -> Tensor | None:
    """What tokens do under `dense` with `skip` [B, N]: one that skips does so in every layer, or it hardly would."""
    if policy.reads != "dense" or policy.skip == 0:
        return None
    return torch.where(policy.skips(timeline.mask, noise), NONE, EPISODIC)
