"""Models from their configs, and configs of a given size."""

from __future__ import annotations

import os
from typing import TypeVar

import torch

from torchcram.config import BASELINES, CONTROLS, BaselineConfig, CramConfig, ModelConfig
from torchcram.models import folder
from torchcram.models.baselines import Baseline
from torchcram.models.cram import Cram
from torchcram.models.sequence import AnyModel
from torchcram.strict import reject

Config = TypeVar("Config", bound=ModelConfig)


def build(config: ModelConfig) -> AnyModel:
    """An untrained model."""
    if isinstance(config, CramConfig):
        return Cram(config)
    if isinstance(config, BaselineConfig):
        return Baseline(config)
    raise ValueError(f"there is no model for a {type(config).__name__}")


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> AnyModel:
    """Read a model of any kind from a folder that `save_pretrained` wrote, ready for evaluation."""
    config, weights = folder.load(path)
    model = build(config)
    folder.fill(model, weights, path)
    return model.to(device).eval()


def parameters(config: ModelConfig) -> int:
    """How many numbers a model of this config learns."""
    with torch.device("meta"):
        return sum(p.numel() for p in build(config).parameters())


def baseline(name: str, like: CramConfig) -> CramConfig | BaselineConfig:
    """The config of a baseline (`BASELINES`) or control (`CONTROLS`) with the size of a CRAM.

    It has the same inputs, outputs, layers, width, heads and number of parameters: the width of the feed-forward layers
    makes up for what the mixers differ in.
    """
    if name in CONTROLS:
        return matched(like.override(CONTROLS[name]), parameters(like), name)
    if name not in BASELINES:
        reject("model", name, ", ".join([*CONTROLS, *BASELINES]))
    data = {"layers": like.layers, "inputs": like.inputs, "outputs": like.outputs, "block": like.block}
    attention = {"heads": like.episodic.heads}
    config = BaselineConfig.from_dict({**data, "mixer": BASELINES[name]["mixer"], "attention": attention})
    config = config.override(BASELINES[name])
    if config.has_attention_layers:
        config = config.override({"attention.convolution": like.episodic.convolution})
    return matched(config, parameters(like), name)


_TOGETHER = {512: 64, 128: 8, 0: 1}
"""Units of a feed-forward layer that come together in models of at least a width: GPUs are slower at other sizes."""


def matched(config: Config, wanted: int, name: str | None = None) -> Config:
    """The same with as many parameters as wanted, as nearly as whole units of the feed-forward layers allow.

    In models of some width they come in multiples (`_TOGETHER`), which leaves a difference of about 1 % at most.

    name: What an error calls the model.
    """
    width = config.block.width
    least = config.override({"block.expansion": 1 / width})
    others = parameters(least)
    units = 1 + round((wanted - others) / (config.layers * (2 * width + 1)))
    together = next(count for least_width, count in _TOGETHER.items() if width >= least_width)
    units = max(together, round(units / together) * together) if units >= 1 else units
    if units < 1:
        why = f"one that leaves some of {wanted:,} parameters to feed-forward layers; without those it has {others:,}"
        if isinstance(config, BaselineConfig) and config.mixer == "entropy":
            size = sum(output.size for output in config.outputs if output.kind != "classification")
            heads = f"{config.layers * size * (width + 1):,} of them in early heads, which every layer has"
            why += f", {heads}: too many for {size:,} possible answers; "
            why += "give the task a smaller vocabulary (task.vocabulary)"
        reject("model", name or type(config).__name__, why)
    return config.override({"block.expansion": units / width})
