"""The models that CRAM is compared with."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torchcram.config.cram import ModelConfig
from torchcram.strict import StrictConfig, check_choice, check_flag, check_integer, check_number, reject

Mixer = Literal["attention", "space", "boat", "switch", "depth", "entropy"]

CATEGORIES = ("tokens", "labels")
"""Kinds of outputs that a position can be uncertain of: a choice at each."""


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(StrictConfig):
    """Attention of those baselines that have it."""

    heads: int = 4
    """H; must divide the width."""
    rotary: bool = True
    """Rotate queries and keys by their position in the sequence."""
    window: int | None = None
    """How many positions back a token can look, itself included; None: all. For `boat`, active tokens back."""
    slots: int | None = None
    """Keep only the events of highest priority, as CRAM's buffer does; None: all."""
    convolution: int = 1
    """Taps of a causal convolution before queries, keys and values, as CRAM's has; in layers that only attend."""

    def __post_init__(self) -> None:
        check_integer("attention.heads", self.heads, 1)
        check_flag("attention.rotary", self.rotary)
        check_integer("attention.convolution", self.convolution, 1)
        for name in ("window", "slots"):
            if getattr(self, name) is not None:
                check_integer(f"attention.{name}", getattr(self, name), 1)
        if self.window is not None and self.slots is not None:
            reject("attention.slots", self.slots, "None with a window")


@dataclass(frozen=True, kw_only=True)
class SpaceConfig(StrictConfig):
    """The selective state space (Mamba-2) of those baselines that have one."""

    size: int = 64
    """Numbers of state for each channel."""
    head: int = 32
    """Channels that share a decay; must divide the inner width."""
    expansion: float = 2.0
    """Inner width in units of D."""
    convolution: int = 4
    """Taps of the causal convolution before it."""

    def __post_init__(self) -> None:
        check_integer("space.size", self.size, 1)
        check_integer("space.head", self.head, 1)
        check_number("space.expansion", self.expansion, 0, open_low=True)
        check_integer("space.convolution", self.convolution, 1)


@dataclass(frozen=True, kw_only=True)
class BaselineConfig(ModelConfig):
    """A stack of layers, each a mixer and a feed-forward part; see `BASELINES` for those that have a name."""

    mixer: Mixer
    """What a layer does besides its feed-forward part: `attention` in every layer; `space`, a selective state space;
    `boat`, gated attention among tokens that a configurator activates (SeqBoat); `switch`, attention up to a position
    and a state space after it, with shared projections (TransMamba); `depth`, attention among the tokens that a router
    ranks highest (mixture of depths); `entropy`, a state space, and attention for tokens of which it is uncertain."""
    every: int | None = None
    """With `space`: every so many layers one has attention instead (Jamba); None: none."""
    capacity: float = 0.125
    """With `depth`: share of the tokens of a sequence that attend."""
    cost: float = 0.0
    """With `boat`: added to the loss for each active token, as a share of all (λ · mean p)."""
    temperature: float = 1.0
    """With `boat`: of the configurator's softmax."""
    deviations: float = 1.0
    """With `entropy`: standard deviations above the mean of entropies seen so far, from which on a token attends."""
    switch: int = 0
    """With `switch`: where the last layer changes from attention to state space; the first never attends, and the
    others are spread evenly between."""
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    space: SpaceConfig = field(default_factory=SpaceConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mixer", self.mixer, Mixer)
        if self.every is not None:
            check_integer("every", self.every, 1)
            if self.mixer != "space":
                reject("every", self.every, "None but with mixer='space'")
        check_number("capacity", self.capacity, 0, 1, open_low=True)
        check_number("cost", self.cost, 0)
        check_number("temperature", self.temperature, 0, open_low=True)
        check_number("deviations", self.deviations, -10, 10)
        check_integer("switch", self.switch, 0)
        width = self.block.width
        if width % self.attention.heads or width // self.attention.heads % 2:
            reject("attention.heads", self.attention.heads, f"a divisor of block.width = {width}, with even heads")
        if self.attention.slots is not None and self.mixer != "attention":
            reject("attention.slots", self.attention.slots, "None but with mixer='attention'")
        if self.attention.convolution > 1 and not self.has_attention_layers:
            reject(
                "attention.convolution",
                self.attention.convolution,
                "1 but with mixer='attention', or with mixer='space' and `every`",
            )
        kinds = [output.kind for output in self.outputs]
        if self.mixer == "entropy" and not set(kinds) & set(CATEGORIES):
            allowed = " or ".join(map(repr, CATEGORIES))
            reject("outputs", kinds, f"with mixer='entropy' at least one of kind {allowed}, to be uncertain of")
        if self.inner % self.space.head:
            reject("space.head", self.space.head, f"a divisor of the inner width, {self.inner}")

    @property
    def inner(self) -> int:
        """Inner width of the state space."""
        return round(self.block.width * self.space.expansion)

    @property
    def has_attention_layers(self) -> bool:
        """Whether any layer does nothing but attend."""
        return self.mixer == "attention" or self.every is not None

    def attends(self, layer: int) -> bool:
        """Whether a layer has attention where others have a state space: in the middle of each group, as in Jamba."""
        group = min(self.every or 0, self.layers)
        return group > 0 and layer % group == group // 2


BASELINES: Mapping[str, Mapping[str, Any]] = types.MappingProxyType(
    {
        "transformer": {"mixer": "attention"},
        "window": {"mixer": "attention", "attention.window": 256},
        "slots": {"mixer": "attention", "attention.slots": 512},
        "mamba": {"mixer": "space"},
        "jamba": {"mixer": "space", "every": 8, "attention.rotary": False},
        "seqboat": {"mixer": "boat", "attention.window": 256},
        "seqboat+cost": {"mixer": "boat", "attention.window": 256, "cost": 0.05},
        "transmamba": {"mixer": "switch", "switch": 1024},
        "mod": {"mixer": "depth"},
        "entropy": {"mixer": "entropy"},
    }
)
"""What makes each baseline; sizes come from the preset, and the feed-forward width from CRAM's number of parameters."""

CONTROLS: Mapping[str, Mapping[str, Any]] = types.MappingProxyType(
    {
        "gate": {"semantic.rank": 0, "contradiction.rank": 0},
        "working": {"semantic.rank": 0, "contradiction.rank": 0, "episodic.layers": []},
    }
)
"""CRAM without semantic memory, and without anything but working memory: what differs in the model."""
