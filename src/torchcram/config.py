"""What a CRAM model is made of, as frozen keyword-only dataclasses.

Every value is checked when a config is made; a wrong one raises a `ValueError` that names the field, the value
seen and what is allowed. This module needs no torch, so that a command line can read configs quickly.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

Carry = Literal["scan", "none"]
Quality = Literal["predicted", "exact"]
RouterFeatures = Literal["input", "scalars"]
Missing = Literal["error", "nan"]
HeadKind = Literal["tokens", "labels", "regression", "classification"]


def _reject(name: str, value: object, allowed: str) -> typing.NoReturn:
    raise ValueError(f"{name} = {value!r} is not possible; allowed: {allowed}")


def _integer(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        _reject(name, value, f"an integer of at least {minimum}")


def _number(name: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    allowed = f"a finite number {'above' if open_low else 'of at least'} {low:g}"
    if high < math.inf:
        allowed += f" and at most {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _reject(name, value, allowed)
    if value < low or value > high or (open_low and value == low):
        _reject(name, value, allowed)


def _choice(name: str, value: object, literal: object) -> None:
    options = typing.get_args(literal)
    if value not in options:
        _reject(name, value, " or ".join(repr(option) for option in options))


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        _reject(name, value, "True or False")


def _name(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.isidentifier():
        _reject(name, value, "a name of letters, digits and underscores, not starting with a digit")


@dataclass(frozen=True, kw_only=True)
class _Config:
    """Strict conversion to and from plain data, shared by every part."""

    def to_dict(self) -> dict[str, Any]:
        """This config as JSON-ready data."""
        data: dict[str, Any] = dataclasses.asdict(self)
        return json.loads(json.dumps(data))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; unknown keys are errors, absent keys take their defaults."""
        return cls._parse(data, where="")

    @classmethod
    def _parse(cls, data: object, where: str) -> Self:
        label = where.rstrip(".") or cls.__name__
        if not isinstance(data, Mapping):
            _reject(label, data, "a mapping of field names to values")
        hints = typing.get_type_hints(cls)
        unknown = sorted(set(data) - set(hints))
        if unknown:
            raise ValueError(f"{label} has no field {', '.join(repr(k) for k in unknown)}; fields: {', '.join(hints)}")
        values = {key: _decode(hints[key], value, f"{where}{key}") for key, value in data.items()}
        missing = [
            f.name
            for f in dataclasses.fields(cls)
            if f.name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise ValueError(f"{label} needs {', '.join(repr(k) for k in missing)}")
        return cls(**values)


def _decode(hint: Any, value: object, where: str) -> Any:
    """Turn JSON data into the type of a field: nested configs and tuples; all else is left to validation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _decode(next(a for a in args if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            _reject(where, value, "a list")
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(hint, type) and issubclass(hint, _Config):
        return value if isinstance(value, hint) else hint._parse(value, where=f"{where}.")
    return value


@dataclass(frozen=True, kw_only=True)
class WorkingConfig(_Config):
    """Working memory: the continuous-time expert that runs on every token."""

    steps: int = 3
    """K, Euler steps per token."""
    carry: Carry = "scan"
    """`scan` carries the state along the sequence by a decay exact in Δτ; `none` starts each token from 0."""
    time_unit: float = 1.0
    """τ₀, the task's unit of time."""
    fastest: float = 0.1
    """Shortest decay time at initialisation, in units of τ₀."""
    slowest: float = 1000.0
    """Longest decay time at initialisation, in units of τ₀."""

    def __post_init__(self) -> None:
        _integer("working.steps", self.steps, 1)
        _choice("working.carry", self.carry, Carry)
        _number("working.time_unit", self.time_unit, 0, open_low=True)
        _number("working.fastest", self.fastest, 0, open_low=True)
        _number("working.slowest", self.slowest, self.fastest)


@dataclass(frozen=True, kw_only=True)
class EpisodicConfig(_Config):
    """Episodic memory: attention over a bounded buffer of written events."""

    slots: int | None = 512
    """M, events a layer can hold; None keeps them all."""
    heads: int = 8
    """H, attention heads; must divide the width."""
    layers: tuple[int, ...] | None = None
    """Which layers own a buffer (from 0); None is all of them, as in the paper."""
    convolution: int = 1
    """Taps of the short causal convolution before keys, values and queries; 1 is none."""
    recency: bool = True
    """Learn a bias per head in log(1 + age of the event)."""

    def __post_init__(self) -> None:
        if self.slots is not None:
            _integer("episodic.slots", self.slots, 1)
        _integer("episodic.heads", self.heads, 1)
        if self.layers is not None:
            if not isinstance(self.layers, tuple):
                _reject("episodic.layers", self.layers, "a tuple of layer numbers, or None for all")
            for layer in self.layers:
                _integer("episodic.layers", layer, 0)
            if list(self.layers) != sorted(set(self.layers)):
                _reject("episodic.layers", self.layers, "layer numbers in rising order, each once")
        _integer("episodic.convolution", self.convolution, 1)
        _flag("episodic.recency", self.recency)


@dataclass(frozen=True, kw_only=True)
class SemanticConfig(_Config):
    """Semantic memory: the low-rank map that learns what an episodic read would return."""

    rank: int = 32
    """R, width of the bottleneck."""

    def __post_init__(self) -> None:
        _integer("semantic.rank", self.rank, 1)


@dataclass(frozen=True, kw_only=True)
class RouterConfig(_Config):
    """The consolidation-aware router and the quality signal it listens to."""

    quality: Quality = "predicted"
    """`predicted` estimates q before attention; `exact` is the paper's q, which needs (and counts) every read."""
    features: RouterFeatures = "input"
    """`input` lets the router see the token; `scalars` are the paper's four numbers alone."""
    hidden: int = 32
    """Width of the router's hidden layer."""
    threshold: float = 0.7
    """q*, the quality at which recall is as good as a read to the router."""
    sharpness: float = 8.0
    """κ at initialisation, the weight of (q - q*); 0 removes the term, as in the paper."""
    scale: float = 1.0
    """σ² of eq. 6 in units of the running centred variance of episodic reads."""

    def __post_init__(self) -> None:
        _choice("router.quality", self.quality, Quality)
        _choice("router.features", self.features, RouterFeatures)
        _integer("router.hidden", self.hidden, 1)
        _number("router.threshold", self.threshold, 0, 1)
        _number("router.sharpness", self.sharpness, 0)
        _number("router.scale", self.scale, 0, open_low=True)


@dataclass(frozen=True, kw_only=True)
class BlockConfig(_Config):
    """What surrounds the memories in a layer."""

    width: int = 512
    """D, the width of the residual stream."""
    expansion: float = 2.0
    """Width of the feed-forward layer in units of D; 2 gives a layer about the size of a Transformer's at 4."""

    def __post_init__(self) -> None:
        _integer("block.width", self.width, 1)
        _number("block.expansion", self.expansion, 0, open_low=True)

    @property
    def feed_forward(self) -> int:
        """Hidden units of the feed-forward layer."""
        return max(1, round(self.width * self.expansion))


@dataclass(frozen=True, kw_only=True)
class TokenField(_Config):
    """One stream of token ids, 0 ≤ id < vocabulary."""

    name: str
    vocabulary: int

    def __post_init__(self) -> None:
        _name("inputs.tokens.name", self.name)
        if self.name == "channels":
            _reject("inputs.tokens.name", self.name, "any name but 'channels', which is the continuous input")
        _integer("inputs.tokens.vocabulary", self.vocabulary, 1)


@dataclass(frozen=True, kw_only=True)
class InputConfig(_Config):
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
            _reject("inputs.tokens", self.tokens, "a tuple of TokenField")
        names = [t.name for t in self.tokens]
        if len(names) != len(set(names)):
            _reject("inputs.tokens", names, "field names that differ")
        _integer("inputs.channels", self.channels, 0)
        _choice("inputs.missing", self.missing, Missing)
        _integer("inputs.frequencies", self.frequencies, 0)
        if not self.tokens and not self.channels:
            _reject("inputs", "nothing", "at least one token field or one channel")


@dataclass(frozen=True, kw_only=True)
class OutputConfig(_Config):
    """One head. `tokens`, `labels`, `regression`: an output a position; `classification`: one a sequence."""

    name: str
    kind: HeadKind
    size: int
    """Vocabulary, classes or regression targets."""

    def __post_init__(self) -> None:
        _name("outputs.name", self.name)
        _choice("outputs.kind", self.kind, HeadKind)
        _integer("outputs.size", self.size, 1)


@dataclass(frozen=True, kw_only=True)
class CramConfig(_Config):
    """A whole model. `CramConfig.preset("small", inputs="tokens", vocabulary=256, outputs="tokens")`."""

    layers: int
    inputs: InputConfig
    outputs: tuple[OutputConfig, ...]
    block: BlockConfig = field(default_factory=BlockConfig)
    working: WorkingConfig = field(default_factory=WorkingConfig)
    episodic: EpisodicConfig = field(default_factory=EpisodicConfig)
    semantic: SemanticConfig = field(default_factory=SemanticConfig)
    router: RouterConfig = field(default_factory=RouterConfig)

    def __post_init__(self) -> None:
        _integer("layers", self.layers, 1)
        for f in dataclasses.fields(self):
            expected = typing.get_type_hints(type(self))[f.name]
            if isinstance(expected, type) and issubclass(expected, _Config):
                part = getattr(self, f.name)
                if not isinstance(part, expected):
                    _reject(f.name, part, f"a {expected.__name__}")
        if not isinstance(self.outputs, tuple) or not all(isinstance(o, OutputConfig) for o in self.outputs):
            _reject("outputs", self.outputs, "a tuple of OutputConfig")
        names = [o.name for o in self.outputs]
        if not names or len(names) != len(set(names)):
            _reject("outputs", names, "at least one head, with names that differ")
        if self.block.width % self.episodic.heads:
            _reject("episodic.heads", self.episodic.heads, f"a divisor of block.width = {self.block.width}")
        if self.episodic.layers is not None and any(i >= self.layers for i in self.episodic.layers):
            _reject("episodic.layers", self.episodic.layers, f"layer numbers below layers = {self.layers}")

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
            _reject("preset", name, ", ".join(PRESETS))
        if isinstance(inputs, str):
            inputs = _inputs_from_word(inputs, vocabulary, channels, missing)
        elif not isinstance(inputs, InputConfig):
            _reject("inputs", inputs, "'tokens', 'channels' or an InputConfig")
        elif vocabulary is not None or channels is not None:
            raise ValueError("give vocabulary and channels either in the InputConfig or beside it, not both")
        if isinstance(outputs, str):
            heads: tuple[OutputConfig, ...] = (_head_from_word(outputs, inputs, size),)
        elif isinstance(outputs, OutputConfig):
            heads = (outputs,)
        else:
            heads = tuple(outputs)
        return cls.from_dict({**PRESETS[name], "inputs": inputs, "outputs": heads})

    def override(self, changes: Mapping[str, Any]) -> CramConfig:
        """A copy with some fields changed by dotted name: `config.override({"episodic.slots": 64})`."""
        data = self.to_dict()
        for path, value in changes.items():
            *parents, leaf = path.split(".")
            part = data
            for parent in parents:
                part = part.get(parent) if isinstance(part, dict) else None  # type: ignore[assignment]
            if not isinstance(part, dict) or leaf not in part:
                raise ValueError(f"the config has no field {path!r}; top-level fields: {', '.join(data)}")
            part[leaf] = value
        return CramConfig.from_dict(data)

    def to_json(self) -> str:
        """This config as indented JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> CramConfig:
        """The inverse of `to_json`."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"the config is not valid JSON: {error}") from error
        return cls.from_dict(data)

    @property
    def fingerprint(self) -> str:
        """A short hash of every field; states carry it, so that one is never fed to another model."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _inputs_from_word(
    word: str, vocabulary: int | Mapping[str, int] | None, channels: int | None, missing: Missing
) -> InputConfig:
    if word == "tokens":
        if vocabulary is None:
            raise ValueError("inputs='tokens' needs vocabulary=, a number or a mapping of field names to numbers")
        fields = vocabulary if isinstance(vocabulary, Mapping) else {"tokens": vocabulary}
        tokens = tuple(TokenField(name=name, vocabulary=count) for name, count in fields.items())
        return InputConfig(tokens=tokens, channels=channels or 0, missing=missing)
    if word == "channels":
        if channels is None:
            raise ValueError("inputs='channels' needs channels=, the number of continuous values a position")
        if vocabulary is not None:
            raise ValueError("inputs='channels' takes no vocabulary=; use inputs='tokens' with both")
        return InputConfig(channels=channels, missing=missing)
    _reject("inputs", word, "'tokens', 'channels' or an InputConfig")


def _head_from_word(word: str, inputs: InputConfig, size: int | None) -> OutputConfig:
    if word not in typing.get_args(HeadKind):
        allowed = ", ".join(repr(kind) for kind in typing.get_args(HeadKind))
        _reject("outputs", word, f"{allowed}, or one or several OutputConfig")
    kind: HeadKind = word  # type: ignore[assignment]
    if size is None:
        if kind != "tokens" or len(inputs.tokens) != 1:
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
