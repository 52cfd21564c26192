"""CRAM: the stack."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from torchcram.config import CramConfig
from torchcram.ledger import Ledger, count
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
)
from torchcram.models import folder
from torchcram.models.generate import Generation, generate
from torchcram.models.inputs import Encoder, Inputs, arrange
from torchcram.models.outputs import Heads
from torchcram.ops import Rows, gather_rows

_CLAIMED, _CONFIRMED = 0.7, 0.4  # semantic memory claims to know above the one, and was wrong below the other


@dataclass(frozen=True, kw_only=True, repr=False)
class CramOutput:
    """What a model returns: predictions, what each token did, and the state to go on from."""

    predictions: dict[str, Tensor]
    """Head name to predictions; see `logits`."""
    state: CramState | None
    timeline: Timeline
    layers: tuple[BlockOutput, ...]
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
        """[B, N, L] int8: 0 nothing more than working memory, 1 episodic read, 2 semantic recall; 0 at padding."""
        return torch.stack([layer.decision.actions for layer in self.layers], dim=-1).to(torch.int8)

    @cached_property
    def losses(self) -> dict[str, Tensor]:
        """The layers' own losses by name, summed over layers (see `Block.forward`); empty at evaluation."""
        total: dict[str, Tensor] = {}
        for layer in self.layers:
            for name, value in layer.losses.items():
                total[name] = total[name] + value if name in total else value
        return total

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

    def ledger(self) -> Ledger:
        """What was executed, counted."""
        with torch.no_grad():
            nothing = self.timeline.position.new_zeros(())
            return count(
                training=self.training,
                mask=self.timeline.mask,
                position=self.timeline.position[:, :-1],
                reads=[layer.reads for layer in self.layers],
                audits=[layer.audits for layer in self.layers],
                pairs=[layer.pairs if layer.reading else nothing for layer in self.layers],
                writes=[layer.writes for layer in self.layers],
                compared=self.guidance.consulted.pairs if self.guidance and self.guidance.consulted else nothing,
                buffers=sum(layer.reading is not None for layer in self.layers),
            )


class Cram(nn.Module):
    """A sequence model with three memories (arXiv preprint "Learning to Forget Attention").

    Feed a sequence whole, in chunks, or token by token: with the state passed on, the results are the same.
    """

    def __init__(self, config: CramConfig) -> None:
        super().__init__()
        self.config = config
        width = config.block.width
        self.encoder = Encoder(width, config.inputs, config.working.time_unit)
        # Where nothing is recalled nothing can be stale, and with exact quality every token reads anyway.
        guided = bool(config.contradiction.rank and config.semantic.rank and config.router.quality == "predicted")
        first = min(config.episodic_layers, default=None)
        self.blocks = nn.ModuleList(
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
        self.norm = nn.RMSNorm(width)
        self.heads = Heads(width, config.outputs)
        self.check_values = True
        """Look at the values of inputs (ranges, NaN) and refuse bad ones; off saves a GPU from waiting."""

    def forward(
        self,
        inputs: Inputs,
        *,
        dt: Tensor | None = None,
        mask: Tensor | None = None,
        start: Tensor | None = None,
        state: CramState | None = None,
        policy: RoutingPolicy | None = None,
        keep_state: bool = True,
    ) -> CramOutput:
        """Run N positions of B sequences.

        inputs: ids [B, N] for one token field, [B, N, F] for several; values [B, N, C] for channels; or a mapping of
        field names (and `channels`) to tensors. dt [B, N]: time since the position before, also across calls;
        default 1. mask [B, N]: True = real; padding touches nothing. start [B, N]: True where another sequence
        begins in the same row. state: what the call before returned. policy: how actions are chosen.
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
            time_unit=self.config.working.time_unit,
            check_values=self.check_values,
        )
        rows, length = batch.dt.shape
        state = self._fitting(state, rows)
        policy = policy or RoutingPolicy()
        if not isinstance(policy, RoutingPolicy):
            raise ValueError(
                f"policy is a {type(policy).__name__}; expected a RoutingPolicy, e.g. RoutingPolicy(reads='dense')"
            )
        if policy.actions is not None:
            self._check_actions(policy.actions, (rows, length, self.config.layers))
        timeline = Timeline.build(
            batch.dt,
            mask=batch.mask,
            start=batch.start,
            position=state.position,
            time=state.time,
            unit=self.config.working.time_unit,
        )
        x = self.encoder(batch)
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
        for number, (block, memory) in enumerate(zip(self.blocks, state.layers, strict=True)):
            forced = dense if number in self.config.episodic_layers else None
            if policy.actions is not None:
                forced = policy.actions[..., number]
            layer: BlockOutput = block(
                x,
                timeline,
                memory,
                policy,
                forced=forced,
                noise=noise[number % shared],
                guidance=guidance,
                keep_state=keep_state,
            )
            x, guidance = layer.x, layer.guidance
            layers.append(layer)
        if guidance is not None and guidance.witnesses is not None:
            self._teach_index(layers, guidance.witnesses, torch.as_tensor(guidance.chance))
        predictions, pooled = self.heads(self.norm(x), timeline, state.pooled)
        new_state = None
        if keep_state:
            new_state = CramState(
                fingerprint=state.fingerprint,
                position=timeline.position[:, -1].clone(),
                time=timeline.time[:, -1].clone(),
                pooled=pooled,
                layers=tuple(layer.state for layer in layers if layer.state is not None),
            )
        return CramOutput(
            predictions=predictions,
            state=new_state,
            timeline=timeline,
            layers=tuple(layers),
            training=self.training,
        )

    def initial_state(self, batch: int) -> CramState:
        """The state before anything was seen; what `state=None` means."""
        like = self.norm.weight
        return CramState(
            fingerprint=self.config.fingerprint,
            position=torch.zeros(batch, dtype=torch.int64, device=like.device),
            time=torch.zeros(batch, dtype=torch.float64, device=like.device),
            pooled=torch.zeros(batch, like.shape[0], dtype=like.dtype, device=like.device)
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
        state: CramState | None = None,
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

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Cram:
        """Read a model from a folder that `save_pretrained` wrote, ready for evaluation."""
        config, weights = folder.load(path)
        model = cls(config)
        folder.fill(model, weights, path)
        return model.to(device).eval()

    def _teach_index(self, layers: list[BlockOutput], witnesses: Rows, chance: Tensor) -> None:
        """Let the contradiction index learn from what all layers read; its loss goes with those of its own layer."""
        number = next(i for i, block in enumerate(self.blocks) if block.index is not None)
        index: ContradictionIndex = self.blocks[number].index  # type: ignore[assignment]
        evidence = [layer.evidence for layer in layers if layer.evidence is not None]
        own = layers[number]
        loss = index.loss(own.seen, witnesses, chance, evidence)
        layers[number] = dataclasses.replace(own, losses={**own.losses, "contradiction": loss})

    def _fitting(self, state: CramState | None, batch: int) -> CramState:
        if state is None:
            return self.initial_state(batch)
        if not isinstance(state, CramState):
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


def _dense_actions(policy: RoutingPolicy, timeline: Timeline, noise: Tensor | None) -> Tensor | None:
    """What tokens do under `dense` with `skip` [B, N]: one that skips does so in every layer, or it hardly would."""
    if policy.reads != "dense" or policy.skip == 0:
        return None
    return torch.where(policy.skips(timeline.mask, noise), NONE, EPISODIC)
