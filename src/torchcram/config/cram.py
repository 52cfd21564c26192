"""What a CRAM model is made of, as frozen keyword-only dataclasses.

Every value is checked when a config is made; a wrong one raises a `ValueError` that names the field, the value
seen and what is allowed. This module needs no torch, so that a command line can read configs quickly.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torchcram.strict import StrictConfig, check_choice, check_flag, check_integer, check_name, check_number, reject

Carry = Literal["scan", "none"]
Quality = Literal["predicted", "exact"]
RouterFeatures = Literal["input", "scalars"]
Rule = Literal["choice", "worth"]
Missing = Literal["error", "nan"]
HeadKind = Literal["tokens", "labels", "regression", "classification"]


@dataclass(frozen=True, kw_only=True)
class WorkingConfig(StrictConfig):
    """Working memory: the continuous-time expert that runs on every token."""

    steps: int = 3
    """K, Euler steps per token."""
    carry: Carry = "scan"
    """`scan` carries the state along the sequence by a decay exact in Δτ; `none` starts each token from 0."""
    time_unit: float = 1.0
    """τ₀, the task's unit of time; `Cram` hands it to the timeline (for a `Block` alone: `Timeline.build(unit=…)`)."""
    fastest: float = 0.1
    """Shortest decay time at initialisation, in units of τ₀."""
    slowest: float = 1000.0
    """Longest decay time at initialisation, in units of τ₀."""

    def __post_init__(self) -> None:
        check_integer("working.steps", self.steps, 1)
        check_choice("working.carry", self.carry, Carry)
        check_number("working.time_unit", self.time_unit, 0, open_low=True)
        check_number("working.fastest", self.fastest, 0, open_low=True)
        check_number("working.slowest", self.slowest, self.fastest)


@dataclass(frozen=True, kw_only=True)
class EpisodicConfig(StrictConfig):
    """Episodic memory: attention over a bounded buffer of written events."""

    slots: int | None = 512
    """M, events a layer can hold; None keeps them all."""
    heads: int = 8
    """H, attention heads; must divide the width."""
    layers: tuple[int, ...] | None = None
    """Which layers own a buffer (from 0); None is all of them, as in the paper."""
    convolution: int = 1
    """Taps of the short causal convolution before keys, values, queries and the router; 1 is none."""
    recency: bool = True
    """Learn a bias per head in log(1 + age of the event)."""
    trained_length: int | None = None
    """Positions of a sequence in training: further on, where more keys compete, reads get sharper; None: nowhere."""

    def __post_init__(self) -> None:
        if self.slots is not None:
            check_integer("episodic.slots", self.slots, 1)
        check_integer("episodic.heads", self.heads, 1)
        if self.layers is not None:
            if not isinstance(self.layers, tuple):
                reject("episodic.layers", self.layers, "a tuple of layer numbers, or None for all")
            for layer in self.layers:
                check_integer("episodic.layers", layer, 0)
            if list(self.layers) != sorted(set(self.layers)):
                reject("episodic.layers", self.layers, "layer numbers in rising order, each once")
        check_integer("episodic.convolution", self.convolution, 1)
        check_flag("episodic.recency", self.recency)
        if self.trained_length is not None:
            check_integer("episodic.trained_length", self.trained_length, 2)


@dataclass(frozen=True, kw_only=True)
class SemanticConfig(StrictConfig):
    """Semantic memory: the low-rank map that learns what an episodic read would return."""

    rank: int = 32
    """R, width of the bottleneck; 0 is no semantic memory, and so no quality: the router can but read or not."""

    def __post_init__(self) -> None:
        check_integer("semantic.rank", self.rank, 0)


@dataclass(frozen=True, kw_only=True)
class ContradictionConfig(StrictConfig):
    """The index of what the context says and semantic memory does not."""

    rank: int = 0
    """Length of the codes that writes are entered with and asked for by, 64 for instance; 0 is no index."""
    entries: int = 4096
    """Writes that the index holds, the latest; what they say is in the buffers, if it is still there."""

    def __post_init__(self) -> None:
        check_integer("contradiction.rank", self.rank, 0)
        check_integer("contradiction.entries", self.entries, 1)


@dataclass(frozen=True, kw_only=True)
class RouterConfig(StrictConfig):
    """The consolidation-aware router and the quality signal it listens to."""

    rule: Rule = "choice"
    """Who reads: `choice`, those for which the router prefers it; `worth`, those whose read is thought to be worth more
    than its price."""
    quality: Quality = "predicted"
    """`predicted` estimates q before attention; `exact` is the paper's q, which needs (and counts) every read."""
    features: RouterFeatures = "input"
    """`input` lets the router see the token; `scalars` are the paper's four numbers alone."""
    informed: bool = True
    """The router hears of q; without, neither as a number nor by the consolidation term: for ablations."""
    hidden: int = 32
    """Width of the router's hidden layer."""
    threshold: float = 0.7
    """q*, the quality at which recall is as good as a read to the router."""
    sharpness: float = 8.0
    """κ at initialisation, the weight of (q - q*); 0 removes the term, as in the paper."""
    scale: float = 1.0
    """σ² of eq. 6 in units of the running centred variance of episodic reads."""

    def __post_init__(self) -> None:
        check_choice("router.rule", self.rule, Rule)
        check_choice("router.quality", self.quality, Quality)
        check_choice("router.features", self.features, RouterFeatures)
        check_flag("router.informed", self.informed)
        check_integer("router.hidden", self.hidden, 1)
        check_number("router.threshold", self.threshold, 0, 1)
        check_number("router.sharpness", self.sharpness, 0)
        check_number("router.scale", self.scale, 0, open_low=True)


@dataclass(frozen=True, kw_only=True)
class BlockConfig(StrictConfig):
    """What surrounds the memories in a layer."""

    width: int = 512
    """D, the width of the residual stream."""
    expansion: float = 2.0
    """Width of the feed-forward layer in units of D; 2 gives a layer about the size of a Transformer's at 4; 0 is none,
    for a stack that has its own."""

    def __post_init__(self) -> None:
        check_integer("block.width", self.width, 1)
        check_number("block.expansion", self.expansion, 0)

    @property
    def feed_forward(self) -> int:
        """Hidden units of the feed-forward layer; 0 without one."""
        return max(1, round(self.width * self.expansion)) if self.expansion else 0


@dataclass(frozen=True, kw_only=True)
class TokenField(StrictConfig):
    """One stream of token ids, 0 ≤ id < vocabulary."""

    name: str
    vocabulary: int

    def __post_init__(self) -> None:
        check_name("inputs.tokens.name", self.name)
        if self.name == "channels":
            reject("inputs.tokens.name", self.name, "any name but 'channels', which is the continuous input")
        check_integer("inputs.tokens.vocabulary", self.vocabulary, 1)


@dataclass(frozen=True, kw_only=True)
class InputConfig(StrictConfig):
    """What arrives at each position: token fields, continuous channels, and always the gap Δτ."""

    tokens: tuple[TokenField, ...] = ()
    channels: int = 0
    """C, continuous values a position."""
    missing: Missing = "error"
    """`nan` takes NaN in a channel as "not measured" and tells the model so; `error` refuses it."""
    frequencies: int = 16
    """Sines and cosines of Δτ given to the model besides log(1 + Δτ), half an octave apart."""

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, tuple) or not all(isinstance(t, TokenField) for t in self.tokens):
            reject("inputs.tokens", self.tokens, "a tuple of TokenField")
        names = [t.name for t in self.tokens]
        if len(names) != len(set(names)):
            reject("inputs.tokens", names, "field names that differ")
        check_integer("inputs.channels", self.channels, 0)
        check_choice("inputs.missing", self.missing, Missing)
        check_integer("inputs.frequencies", self.frequencies, 0, 64)
        if not self.tokens and not self.channels:
            reject("inputs", "nothing", "at least one token field or one channel")


@dataclass(frozen=True, kw_only=True)
class OutputConfig(StrictConfig):
    """One head. `tokens`, `labels`, `regression`: an output a position; `classification`: one a sequence."""

    name: str
    kind: HeadKind
    size: int
    """Vocabulary, classes or regression targets."""

    def __post_init__(self) -> None:
        check_name("outputs.name", self.name)
        check_choice("outputs.kind", self.kind, HeadKind)
        check_integer("outputs.size", self.size, 1)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(StrictConfig):
    """What the config of every kind of model has."""

    layers: int
    inputs: InputConfig
    outputs: tuple[OutputConfig, ...]
    block: BlockConfig = field(default_factory=BlockConfig)

    def __post_init__(self) -> None:
        check_integer("layers", self.layers, 1)
        for f in dataclasses.fields(self):
            expected = typing.get_type_hints(type(self))[f.name]
            if isinstance(expected, type) and issubclass(expected, StrictConfig):
                part = getattr(self, f.name)
                if not isinstance(part, expected):
                    reject(f.name, part, f"a {expected.__name__}")
        if not isinstance(self.outputs, tuple) or not all(isinstance(o, OutputConfig) for o in self.outputs):
            reject("outputs", self.outputs, "a tuple of OutputConfig")
        names = [o.name for o in self.outputs]
        if not names or len(names) != len(set(names)):
            reject("outputs", names, "at least one head, with names that differ")

    @property
    def time_unit(self) -> float:
        """τ₀, the task's unit of time."""
        return 1.0

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of every field; states carry it, so that one is never fed to another model."""
        # Numbers are read back as floats: 1 and 1.0 are the same setting.
        data = json.loads(self.to_json(), parse_int=float)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class CramConfig(ModelConfig):
    """A whole model. `CramConfig.preset("small", inputs="tokens", vocabulary=256, outputs="tokens")`."""

    working: WorkingConfig = field(default_factory=WorkingConfig)
    episodic: EpisodicConfig = field(default_factory=EpisodicConfig)
    semantic: SemanticConfig = field(default_factory=SemanticConfig)
    contradiction: ContradictionConfig = field(default_factory=ContradictionConfig)
    router: RouterConfig = field(default_factory=RouterConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block.width % self.episodic.heads:
            reject("episodic.heads", self.episodic.heads, f"a divisor of block.width = {self.block.width}")
        if self.episodic.layers is not None and any(i >= self.layers for i in self.episodic.layers):
            reject("episodic.layers", self.episodic.layers, f"layer numbers below layers = {self.layers}")

    @property
    def time_unit(self) -> float:
        """τ₀, the task's unit of time."""
        return self.working.time_unit

    @property
    def episodic_layers(self) -> tuple[int, ...]:
        """The layers that own a buffer."""
        return tuple(range(self.layers)) if self.episodic.layers is None else self.episodic.layers

    @classmethod
    def preset(
        cls,
        name: str,
        *,
        inputs: str | InputConfig = "tokens",
        outputs: str | OutputConfig | Sequence[OutputConfig] = "tokens",
        vocabulary: int | Mapping[str, int] | None = None,
        channels: int | None = None,
        missing: Missing = "error",
        size: int | None = None,
    ) -> CramConfig:
        """A model of a known size (`PRESETS`), with its inputs and outputs.

        `inputs` is `"tokens"` (give `vocabulary`: a number, or names and numbers for several fields),
        `"channels"` (give `channels`) or an `InputConfig`. `outputs` is `"tokens"` (next token),
        `"labels"`, `"regression"`, `"classification"` (give `size`), or one or several `OutputConfig`.
        """
        if name not in PRESETS:
            reject("preset", name, ", ".join(PRESETS))
        if isinstance(inputs, str):
            inputs = _inputs_from_word(inputs, vocabulary, channels, missing)
        elif not isinstance(inputs, InputConfig):
            reject("inputs", inputs, "'tokens', 'channels' or an InputConfig")
        elif vocabulary is not None or channels is not None:
            raise ValueError("give vocabulary and channels either in the InputConfig or beside it, not both")
        if isinstance(outputs, str):
            heads: tuple[OutputConfig, ...] = (_head_from_word(outputs, inputs, size),)
        elif isinstance(outputs, OutputConfig):
            heads = (outputs,)
        else:
            if not isinstance(outputs, Sequence):
                reject("outputs", outputs, "a kind of head, or one or several OutputConfig")
            heads = (*outputs,)
        return cls.from_dict({**PRESETS[name], "inputs": inputs, "outputs": heads})


def _inputs_from_word(
    word: str, vocabulary: int | Mapping[str, int] | None, channels: int | None, missing: Missing
) -> InputConfig:
    if word == "tokens":
        if vocabulary is None:
            raise ValueError("inputs='tokens' needs vocabulary=, a number or a mapping of field names to numbers")
        fields = vocabulary if isinstance(vocabulary, Mapping) else {"tokens": vocabulary}
        tokens = tuple(TokenField(name=name, vocabulary=count) for name, count in fields.items())
        return InputConfig(tokens=tokens, channels=channels or 0, missing=missing)
    if word != "channels":
        reject("inputs", word, "'tokens', 'channels' or an InputConfig")
    if channels is None:
        raise ValueError("inputs='channels' needs channels=, the number of continuous values a position")
    if vocabulary is not None:
        raise ValueError("inputs='channels' takes no vocabulary=; use inputs='tokens' with both")
    return InputConfig(channels=channels, missing=missing)


def _head_from_word(word: str, inputs: InputConfig, size: int | None) -> OutputConfig:
    if word not in typing.get_args(HeadKind):
        allowed = ", ".join(repr(kind) for kind in typing.get_args(HeadKind))
        reject("outputs", word, f"{allowed}, or one or several OutputConfig")
    kind: HeadKind = word  # type: ignore[assignment]
    if size is None:
        if kind == "tokens" and len(inputs.tokens) != 1:
            raise ValueError(
                f"outputs='tokens' predicts the next token of one stream, and the input has {len(inputs.tokens)}; "
                "give size=, the vocabulary to predict"
            )
        if kind != "tokens":
            raise ValueError(f"outputs={word!r} needs size=, the number of classes or targets")
        size = inputs.tokens[0].vocabulary
    return OutputConfig(name=word, kind=kind, size=size)


PRESETS: Mapping[str, Mapping[str, Any]] = types.MappingProxyType(
    {
        "tiny": {"layers": 2, "block": {"width": 64}, "episodic": {"heads": 2}, "semantic": {"rank": 32}},
        "small": {"layers": 4, "block": {"width": 128}, "episodic": {"heads": 4}, "semantic": {"rank": 32}},
        "medium": {"layers": 4, "block": {"width": 256}, "episodic": {"heads": 4}, "semantic": {"rank": 64}},
        "paper": {"layers": 8, "block": {"width": 512}, "episodic": {"heads": 8}, "semantic": {"rank": 32}},
        "large": {"layers": 8, "block": {"width": 512}, "episodic": {"heads": 8}, "semantic": {"rank": 128}},
    }
)
"""Sizes by name; `paper` is the paper's (d=512, L=8, rank 32, M=512, K=3), `large` the same with rank 128."""
