"""What all models have in common: inputs, time, state and heads around a stack of layers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from torchcram.config import ModelConfig
from torchcram.ledger import Ledger, count
from torchcram.memory import Norm, RoutingPolicy, Timeline, narrow_for_good
from torchcram.memory.compiling import compile_layer
from torchcram.memory.state import SequenceState, TensorTree
from torchcram.models import folder
from torchcram.models.generate import Generation, generate
from torchcram.models.inputs import Encoder, Inputs, arrange
from torchcram.models.outputs import Heads


class LayerOutput(Protocol):
    """What a layer tells of one call; each kind of model has its own, with more in it."""

    @property
    def x(self) -> Tensor:
        """[B, N, D]: the residual stream after the layer."""

    @property
    def state(self) -> TensorTree | None:
        """For the next call; None if it was not to be kept."""

    @property
    def reads(self) -> Tensor:
        """[B, N] bool: tokens that looked back, and count as reads."""

    @property
    def audits(self) -> Tensor:
        """[B, N] bool: tokens that looked back only to learn from it."""

    @property
    def writes(self) -> Tensor:
        """[B, N] bool: tokens that can be looked at."""

    @property
    def pairs(self) -> Tensor | None:
        """[B]: query-event pairs scored; None in a layer that has nothing to look back at."""

    @property
    def losses(self) -> dict[str, Tensor]:
        """The layer's own losses, in training only."""


Layer = TypeVar("Layer", bound=LayerOutput)
State = TypeVar("State", bound=SequenceState)


@dataclass(frozen=True, kw_only=True, repr=False)
class SequenceOutput(Generic[Layer, State]):
    """What a model returns: predictions, what each token did, and the state to go on from."""

    predictions: dict[str, Tensor]
    """Head name to predictions; see `logits`."""
    state: State | None
    timeline: Timeline
    layers: tuple[Layer, ...]
    """What each layer did, for objectives and analyses."""
    training: bool

    @property
    def logits(self) -> Tensor | dict[str, Tensor]:
        """The predictions: a tensor for a model with one head, else one entry a head.

        [B, N, size] for heads with an output a position (0 at padding), [B, size] for `classification`.
        """
        return next(iter(self.predictions.values())) if len(self.predictions) == 1 else self.predictions

    @cached_property
    def routing(self) -> Tensor:
        """[B, N, L] int8: 0 the token did not look back, 1 it did."""
        return torch.stack([layer.reads for layer in self.layers], dim=-1).to(torch.int8)

    @property
    def quality(self) -> Tensor | None:
        """[B, N, L]: how well each token's read could be recalled, in a model that knows; else None."""
        return None

    @property
    def hits(self) -> Tensor | None:
        """[B, N] bool: tokens that ask for what memory would get wrong, in a model that knows; else None."""
        return None

    @property
    def early(self) -> tuple[dict[str, Tensor], ...]:
        """Predictions of heads further down that are trained as well; most models have none."""
        return ()

    @cached_property
    def losses(self) -> dict[str, Tensor]:
        """The layers' own losses by name, summed over layers; empty at evaluation."""
        found: dict[str, list[Tensor]] = {}
        for layer in self.layers:
            for name, value in layer.losses.items():
                found.setdefault(name, []).append(value)
        return {name: torch.stack(values).sum() for name, values in found.items()}

    def surprises(self) -> list[bool]:
        """Checks of memory, in the order of positions, and whether it was wrong; most models make none."""
        return []

    def ledger(self) -> Ledger:
        """What was executed, counted."""
        with torch.no_grad():
            nothing = self.timeline.position.new_zeros(())
            pairs = [layer.pairs for layer in self.layers]
            return count(
                training=self.training,
                mask=self.timeline.mask,
                position=self.timeline.position[:, :-1],
                reads=[layer.reads for layer in self.layers],
                audits=[layer.audits for layer in self.layers],
                pairs=[nothing if each is None else each for each in pairs],
                writes=[layer.writes for layer in self.layers],
                compared=self._compared(nothing),
                buffers=sum(each is not None for each in pairs),
            )

    def _compared(self, nothing: Tensor) -> Tensor:
        """[B]: comparisons with a contradiction index."""
        return nothing


class SequenceModel(nn.Module, ABC, Generic[Layer, State]):
    """Inputs to the residual stream, a stack of layers, a head for each output.

    Feed a sequence whole, in chunks, or token by token: with the state passed on, the results are the same.
    """

    blocks: nn.ModuleList
    """The layers."""
    state_kind: type[State]
    output_kind: type[SequenceOutput[Layer, State]] = SequenceOutput

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.block.width
        self.encoder = Encoder(width, config.inputs, config.time_unit)
        self.blocks = nn.ModuleList(self.make_blocks())
        self.norm = Norm(width)
        self.heads = Heads(width, config.outputs)
        self.check_values = True
        """Look at the values of inputs (ranges, NaN) and refuse bad ones; off saves a GPU from waiting."""

    @abstractmethod
    def make_blocks(self) -> Iterable[nn.Module]:
        """The layers, from the first to the last; each has `initial_state(batch)`."""

    @abstractmethod
    def run_blocks(
        self,
        x: Tensor,
        timeline: Timeline,
        states: Sequence[TensorTree],
        policy: RoutingPolicy,
        *,
        keep_state: bool,
    ) -> list[Layer]:
        """x [B, N, D] through all layers, each with its state."""

    def forward(
        self,
        inputs: Inputs,
        *,
        dt: Tensor | None = None,
        mask: Tensor | None = None,
        start: Tensor | None = None,
        state: State | None = None,
        policy: RoutingPolicy | None = None,
        keep_state: bool = True,
        last: bool = False,
    ) -> SequenceOutput[Layer, State]:
        """Run N positions of B sequences.

        inputs: ids [B, N] for one token field, [B, N, F] for several; values [B, N, C] for channels; or a mapping of
        field names (and `channels`) to tensors. dt [B, N]: time since the position before, also across calls;
        default 1. mask [B, N]: True = real; padding touches nothing. start [B, N]: True where another sequence
        begins in the same row. state: what the call before returned. policy: how actions are chosen.
        last: predict from the last real position of each row alone, [B, 1, size], as for a prompt: of a long one, all
        predictions would be more than everything else that is kept.
        """
        like = self.norm.weight
        batch = arrange(
            self.config.inputs,
            inputs,
            dt,
            mask,
            start,
            device=like.device,
            dtype=like.dtype,
            time_unit=self.config.time_unit,
            check_values=self.check_values,
        )
        rows, length = batch.dt.shape
        state = self.fitting(state, rows)
        policy = policy or RoutingPolicy()
        if not isinstance(policy, RoutingPolicy):
            raise ValueError(
                f"policy is a {type(policy).__name__}; expected a RoutingPolicy, e.g. RoutingPolicy(reads='dense')"
            )
        if policy.actions is not None:
            self._check_actions(policy.actions, (rows, length, self.config.layers))
        if policy.priorities is not None and policy.priorities.shape != (rows, length, self.config.layers):
            found, shape = tuple(policy.priorities.shape), (rows, length, self.config.layers)
            raise ValueError(f"policy.priorities has shape {found}; expected {shape}")
        for name, where in (("answered", policy.answered), ("asked", policy.asked)):
            if where is not None and (where.shape != (rows, length) or where.dtype != torch.bool):
                raise ValueError(
                    f"policy.{name} has shape {tuple(where.shape)} and dtype {where.dtype}; "
                    f"expected {(rows, length)} and torch.bool"
                )
        timeline = Timeline.build(
            batch.dt,
            mask=batch.mask,
            start=batch.start,
            position=state.position,
            time=state.time,
            unit=self.config.time_unit,
        )
        layers = self.run_blocks(self.encoder(batch), timeline, state.layers, policy, keep_state=keep_state)
        predictions, pooled = self._predict(layers[-1].x, timeline, state.pooled, last=last)
        new_state = None
        if keep_state:
            new_state = self.state_kind(
                fingerprint=state.fingerprint,
                position=timeline.position[:, -1].clone(),
                time=timeline.time[:, -1].clone(),
                pooled=pooled,
                layers=tuple(layer.state for layer in layers if layer.state is not None),
            )
        return self.output_kind(
            predictions=predictions,
            state=new_state,
            timeline=timeline,
            layers=tuple(layers),
            training=self.training,
        )

    def _predict(
        self, x: Tensor, timeline: Timeline, pooled: Tensor | None, *, last: bool
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Predictions from what the layers made of a call [B, N, D], and the next sum of those who need one."""
        at = None
        if last and not self.heads.pools:
            at, timeline = timeline.last()
            x = x.gather(1, at.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        found, pooled = self.heads(self.norm(x), timeline, pooled)
        if last and at is None:  # a head needs all of the call, and so all heads have seen it
            at, _ = timeline.last()
            for output in self.heads.outputs:
                if output.kind != "classification":
                    every = found[output.name]
                    found[output.name] = every.gather(1, at.unsqueeze(-1).expand(-1, -1, every.shape[-1]))
        return found, pooled

    def narrow(self, dtype: torch.dtype = torch.bfloat16) -> None:
        """Keep weights of linear maps and norms as layers that learn under autocast have them, for evaluation under it.

        Autocast need not narrow them at each call then. Results are those of autocast, but that weights of norms, and a
        few that are not multiplied, are rounded too. What is no product (rates, gates, embeddings) stays as it is. A
        model that is still to learn should not be made narrow; a `Decoder` has copies of its own, and kernels for them
        only where all weights are of one kind.
        """
        narrow_for_good(self, dtype)

    def compile_parts(self) -> None:
        """Compile each layer, and what is before the first one and after the last."""
        for block in self.blocks:
            block.compile_parts()  # type: ignore[operator]
        for part in (self.encoder, self.norm, self.heads):
            compile_layer(part)

    def initial_state(self, batch: int) -> State:
        """The state before anything was seen; what `state=None` means."""
        like = self.norm.weight
        return self.state_kind(
            fingerprint=self.config.fingerprint,
            position=torch.zeros(batch, dtype=torch.int64, device=like.device),
            time=torch.zeros(batch, dtype=torch.float64, device=like.device),
            pooled=torch.zeros(
                batch, len(like), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device
            )
            if self.heads.pools
            else None,
            layers=tuple(block.initial_state(batch) for block in self.blocks),  # type: ignore[operator]
        )

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        steps: int,
        *,
        dt: Tensor | None = None,
        mask: Tensor | None = None,
        state: State | None = None,
        step_dt: float = 1.0,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | None = None,
        seed: int | None = None,
    ) -> Generation:
        """Continue token sequences; see `torchcram.models.generate.generate`."""
        return generate(
            self,
            tokens,
            steps,
            dt=dt,
            mask=mask,
            state=state,
            step_dt=step_dt,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            stop=stop,
            seed=seed,
        )

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a folder: `config.json` and `model.safetensors`."""
        folder.save(path, self.config, self.state_dict())

    def fitting(self, state: State | None, batch: int) -> State:
        """The state, if it is one of this model's, for so many sequences; None: that before anything was seen."""
        if state is None:
            return self.initial_state(batch)
        if not isinstance(state, self.state_kind):
            raise ValueError(f"state is a {type(state).__name__}; expected the state of an earlier output")
        if state.fingerprint != self.config.fingerprint:
            raise ValueError("the state belongs to a model of another config")
        if state.batch != batch:
            raise ValueError(f"the state is of {state.batch} sequences, the input of {batch}")
        if state.position.device != self.norm.weight.device:
            raise ValueError(
                f"the state is on {state.position.device}, the model on {self.norm.weight.device}; use state.to(…)"
            )
        if self.check_values:
            mine, given = self.initial_state(1).layout(), state.layout()
            for name in mine | given:
                if mine.get(name) != given.get(name):
                    raise ValueError(
                        f"the state does not fit this model: {name} is {given.get(name)}, expected {mine.get(name)}"
                    )
        return state

    def _check_actions(self, actions: Tensor, shape: tuple[int, int, int]) -> None:
        raise ValueError("policy.actions is for models with a router")


AnyModel = SequenceModel[Any, Any]
"""A model of whatever kind."""
