"""Sequences that go on by one position at a time, in memory that is made once."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from torchcram.ledger import Ledger
from torchcram.memory import EPISODIC, Block, BlockOutput, BlockState, CramState, RoutingPolicy, Timeline
from torchcram.memory.fused import FusedLayer
from torchcram.models.cram import Cram
from torchcram.models.ends import Ends
from torchcram.models.inputs import Batch, Inputs, arrange
from torchcram.models.recording import record
from torchcram.ops.dispatch import choose

_LEAST = 64  # slots to begin with


class Decoder:
    """Feeds a model one position of each sequence at a time.

        prompt = model(tokens)
        decoder = Decoder(model, prompt.state)
        predictions = decoder.step(prompt.logits[:, -1].argmax(-1))

    The state is a copy that every step changes in place: so memory and the time of a step do not grow with what has
    been seen, once buffers are full. On a GPU it has all slots from the start, and a step is recorded once and then
    replayed. If there are kernels for the layers, it uses copies of their weights, made when the decoder is, unless
    under autocast; else it scores the slots of all sequences, also of those that do not read.
    """

    def __init__(
        self, model: Cram, state: CramState | None = None, *, batch: int | None = None, compile: bool = False
    ) -> None:
        """From a state, or from the beginning of `batch` sequences.

        compile: what is before and after the layers as well, if there are no kernels for it (`Ends.suits`); that takes
        some seconds at the first step.
        """
        if not isinstance(model, Cram) or not self.suits(model):
            raise ValueError("a Decoder is for CRAM with bounded buffers and without a contradiction index")
        if model.training:
            raise ValueError("the model is in training mode; call model.eval() first")
        if (state is None) == (batch is None):
            raise ValueError("give either a state to go on from, or how many sequences begin")
        given = model.fitting(state, len(state.position)) if state is not None else model.initial_state(batch or 0)
        self.model = model
        blocks = choose(_FUSED, given.position)(model)
        self.state = self._roomy(given, bool(blocks) or given.position.is_cuda)
        """Where the sequences stand; the next step changes it."""
        layers = model.config.layers
        self._tally = given.position.new_zeros(layers, 3, len(given.position))
        """What the last step of each fused layer did; see `ops.step.Scratch`."""
        self._fused = [FusedLayer(*parts) for parts in zip(blocks, self.state.layers, self._tally, strict=False)]
        self._counts = torch.zeros(3 + 3 * layers, dtype=torch.int64, device=given.position.device)
        """Real positions, those that read, dense pairs; then reads, pairs and writes of each layer."""
        self._ends = Ends(model, self.state, self._counts) if blocks and Ends.suits(model) else None
        self._begin, self._finish = self._before, self._after
        if compile:
            self._begin = torch.compile(self._before, fullgraph=True)
            self._finish = torch.compile(self._after, fullgraph=True)
        self._inputs: Batch | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._predictions: dict[str, Tensor] = {}
        self._usual = False
        """Whether the recorded step's gaps and mask are those of a step that was given none."""

    @staticmethod
    def suits(model: Cram) -> bool:
        """Whether there can be a decoder for the model."""
        return model.config.episodic.slots is not None and all(block.index is None for block in model.blocks)

    @torch.no_grad()
    def step(self, inputs: Inputs, dt: Tensor | None = None, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Predictions after one more position: [B, size] for each head.

        inputs as for the model, without the dimension N; dt [B], default 1; mask [B]: False for a sequence that stays
        where it is. On a GPU the next step overwrites what this one returns.
        """
        like = self.model.norm.weight
        if dt is None and mask is None and isinstance(inputs, Tensor) and self._same(inputs):
            return self._again(inputs)
        single: Inputs
        if isinstance(inputs, Tensor):
            single = inputs.unsqueeze(1)
        else:
            single = {name: x.unsqueeze(1) for name, x in inputs.items()}
        batch = arrange(
            self.model.config.inputs,
            single,
            None if dt is None else dt.unsqueeze(1),
            None if mask is None else mask.unsqueeze(1),
            None,
            device=like.device,
            dtype=like.dtype,
            time_unit=self.model.config.time_unit,
            check_values=self.model.check_values,
        )
        if len(batch.dt) != len(self.state.position):
            raise ValueError(f"inputs are of {len(batch.dt)} sequences, the state of {len(self.state.position)}")
        if like.is_cuda:
            self._usual = dt is None and mask is None
            return self._replay(batch)
        if self._held < self._most and int(self.state.position.max()) >= self._held:
            self.state = self._roomy(self.state)
        return self._advance(batch)

    def snapshot(self) -> CramState:
        """A copy of the state, as the model itself would have left it: events in the order of writing."""
        used = min(self._most, int(self.state.position.max()))

        def sort(layer: BlockState) -> BlockState:
            if layer.episodic is None:
                return layer
            return dataclasses.replace(layer, episodic=layer.episodic.in_order().map(lambda x: x[:, :used]))

        return dataclasses.replace(self.state, layers=tuple(map(sort, self.state.layers))).map(_copy)

    def ledger(self) -> Ledger:
        """What all steps so far have executed; on a GPU, what of that was asked for."""
        every = self._counts.tolist()
        layers = self.model.config.layers
        reads, pairs, writes = (tuple(every[3 + i * layers : 3 + (i + 1) * layers]) for i in range(3))
        return Ledger(
            training=False,
            positions=every[0],
            positions_reading=every[1],
            layer_read_counts=reads,
            audit_counts=(0,) * layers,
            pair_counts=pairs,
            write_counts=writes,
            compared_count=0,
            dense_pairs=every[2],
            buffers=len(self.model.config.episodic_layers),
        )

    def _advance(self, batch: Batch) -> dict[str, Tensor]:
        fused = bool(self._fused) and not torch.is_autocast_enabled(batch.dt.device.type)
        known = None
        if fused and self._ends is not None:
            x, timeline, known = self._ends.begin(batch)
        else:
            x, timeline = self._begin(batch)
        if fused:
            for layer in self._fused:
                stepped = layer.step(x, timeline, known)
                x, known = stepped.x, stepped.squares
            if self._ends is not None and known is not None:
                return self._ends.finish(x, known, self._tally)
            return self._finish(x, timeline, self._tally)
        layers: list[BlockOutput] = []
        policy = RoutingPolicy()
        for block, memory in zip(self.model.blocks, self.state.layers, strict=True):
            layers.append(block(x, timeline, memory, policy, in_place=True))
            x = layers[-1].x
        return self._finish(x, timeline, _tally(timeline, layers))

    def _before(self, batch: Batch) -> tuple[Tensor, Timeline]:
        """What the first layer is given [B, 1, D], and when."""
        state = self.state
        timeline = Timeline.single(batch.dt, batch.mask, state.position, state.time, self.model.config.time_unit)
        return self.model.encoder(batch), timeline

    def _after(self, x: Tensor, timeline: Timeline, tally: Tensor) -> dict[str, Tensor]:
        """Predictions from the last x [B, 1, D]; the clock goes on, and what layers did [L, 3, B] is counted."""
        model, state = self.model, self.state
        predictions, pooled = model.heads(model.norm(x), timeline, state.pooled)
        self._counts += _counts(timeline, tally)
        state.position.copy_(timeline.position[:, -1])
        state.time.copy_(timeline.time[:, -1])
        if state.pooled is not None and pooled is not None:
            state.pooled.copy_(pooled)
        return {name: x.squeeze(1) if x.dim() == 3 else x for name, x in predictions.items()}

    def _replay(self, batch: Batch) -> dict[str, Tensor]:
        """Put the inputs where the recorded step looks for them, and run it."""
        if batch.mask is None:
            batch = dataclasses.replace(batch, mask=torch.ones_like(batch.dt, dtype=torch.bool))
        if self._graph is None:
            self._record(batch)
        assert self._inputs is not None
        assert self._graph is not None
        for old, new in zip(_tensors(self._inputs), _tensors(batch), strict=True):
            old.copy_(new)
        self._graph.replay()
        return self._predictions

    def _same(self, tokens: Tensor) -> bool:
        """Whether nothing but the tokens sets a step apart from the one before it, and they need not be looked at."""
        if not self._usual or self._inputs is None or self.model.check_values or self._inputs.channels is not None:
            return False
        kept = list(self._inputs.tokens.values())
        return len(kept) == 1 and tokens.shape == kept[0].shape[:1] and tokens.dtype == kept[0].dtype

    def _again(self, tokens: Tensor) -> dict[str, Tensor]:
        """A step for which the host has next to nothing to do."""
        assert self._inputs is not None
        assert self._graph is not None
        (kept,) = self._inputs.tokens.values()
        kept.copy_(tokens.unsqueeze(1))
        self._graph.replay()
        return self._predictions

    def _record(self, batch: Batch) -> None:
        self._inputs = Batch(
            tokens={name: x.clone() for name, x in batch.tokens.items()},
            channels=None if batch.channels is None else batch.channels.clone(),
            dt=batch.dt.clone(),
            mask=None if batch.mask is None else batch.mask.clone(),
            start=None,
        )
        before, counts = self.state.map(_copy), self._counts.clone()
        inputs = self._inputs
        self._graph, self._predictions = record(lambda: self._advance(inputs), inputs.dt.device)
        # Recording does not run anything, but warming up did.
        for (_, now), (_, then) in zip(self.state.named_tensors(), before.named_tensors(), strict=True):
            now.copy_(then)
        self._counts.copy_(counts)

    @property
    def _most(self) -> int:
        """M."""
        slots = self.model.config.episodic.slots
        assert slots is not None
        return slots

    @property
    def _held(self) -> int:
        """Slots that there are now."""
        return _slots(self.state)

    def _roomy(self, state: CramState, whole: bool = False) -> CramState:
        """A copy with room for twice as many events, or for all there can be."""
        slots = self._most if whole else min(self._most, max(_LEAST, 2 * _slots(state)))

        def widen(layer: BlockState) -> BlockState:
            if layer.episodic is None:
                return layer
            return dataclasses.replace(layer, episodic=layer.episodic.widen(slots))

        return dataclasses.replace(state, layers=tuple(map(widen, state.layers))).map(_copy)


def _slots(state: CramState) -> int:
    return max((layer.episodic.slots for layer in state.layers if layer.episodic is not None), default=0)


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format)


def _none(_: Cram) -> list[Block]:
    return []


def _all_or_none(model: Cram) -> list[Block]:
    """The layers, if there are kernels for a step of each."""
    blocks = [block for block in model.blocks if isinstance(block, Block) and FusedLayer.suits(block)]
    return blocks if len(blocks) == len(model.blocks) else []


_FUSED = {"fast": _none, "triton": _all_or_none}


def _tally(timeline: Timeline, layers: list[BlockOutput]) -> Tensor:
    """What each layer did [L, 3, B], as fused ones tell it: action, whether the position was admitted, pairs scored."""
    nothing = torch.zeros_like(timeline.position[:, 0])
    each = [
        torch.stack(
            [
                torch.where(layer.reads & timeline.mask, EPISODIC, layer.decision.actions).squeeze(1),
                layer.writes.squeeze(1).to(nothing.dtype),
                nothing if layer.pairs is None else layer.pairs,
            ]
        )
        for layer in layers
    ]
    return torch.stack(each)


def _counts(timeline: Timeline, tally: Tensor) -> Tensor:
    """What one step adds to `Decoder._counts`."""
    actions, writes, pairs = tally.unbind(1)
    reads = actions == EPISODIC
    dense = ((timeline.position[:, :-1] + 1) * timeline.mask).sum()
    whole = torch.stack([timeline.mask.sum(), reads.any(0).sum(), dense])
    return torch.cat([whole, reads.sum(1), pairs.sum(1), writes.sum(1)])


def _tensors(batch: Batch) -> list[Tensor]:
    every = (*batch.tokens.values(), batch.channels, batch.dt, batch.mask)
    return [x for x in every if x is not None]
