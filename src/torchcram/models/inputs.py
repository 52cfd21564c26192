"""From what a user passes to the residual stream: checks, then embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcram.config import InputConfig
from torchcram.memory.precision import narrow

Inputs = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One call's inputs, each part in its place and of one batch and length."""

    tokens: dict[str, Tensor]
    """Name to ids [B, N]."""
    channels: Tensor | None
    """[B, N, C]; NaN = missing, where the config allows it."""
    dt: Tensor
    mask: Tensor | None
    start: Tensor | None


class Encoder(nn.Module):
    """Sum of the embeddings of token fields, channels (and which were measured) and the gap Δτ.

    The gap is seen as log(1 + Δτ/τ₀) and as sines and cosines of Δτ/τ₀, at frequencies from 2^-6 up, half an octave
    apart: smooth functions of the gap are within reach of one linear map.
    """

    frequencies: Tensor

    def __init__(self, width: int, config: InputConfig, time_unit: float) -> None:
        super().__init__()
        self.config = config
        self.time_unit = time_unit
        self.tokens = nn.ModuleDict({f"{f.name}_ids": nn.Embedding(f.vocabulary, width) for f in config.tokens})
        if config.channels:
            self.channels = nn.Linear(config.channels, width)
            if config.missing == "nan":
                self.measured = nn.Linear(config.channels, width, bias=False)
        self.gap = nn.Linear(1 + 2 * config.frequencies, width)
        octaves = torch.arange(config.frequencies) / 2 - 6
        self.register_buffer("frequencies", torch.exp2(octaves), persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        """To [B, N, D]."""
        gap = (batch.dt / self.time_unit).unsqueeze(-1)
        phase = gap * self.frequencies
        dtype = self.gap.weight.dtype
        x: Tensor = self.gap(torch.cat([gap.log1p(), phase.sin(), phase.cos()], dim=-1).to(dtype)).to(dtype)
        for name, ids in batch.tokens.items():
            x = x + self.tokens[f"{name}_ids"](ids)
        if batch.channels is not None:
            values = batch.channels.to(x.dtype)
            if self.config.missing == "nan":
                missing = values.isnan()
                x = x + self.measured((~missing).to(x.dtype))
                values = values.masked_fill(missing, 0)
            x = x + self.channels(values)
        return narrow(x)


def arrange(
    config: InputConfig,
    inputs: Inputs,
    dt: Tensor | None,
    mask: Tensor | None,
    start: Tensor | None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    time_unit: float,
    check_values: bool,
) -> Batch:
    """Sort a call's arguments into a `Batch`, or say precisely what is wrong with them.

    Shapes and dtypes are always checked; values (ranges, NaN) only with `check_values`, which must look at the data
    and so makes a GPU wait.
    """
    side = {"dt": dt, "mask": mask, "start": start}
    for name, value in [*(inputs.items() if isinstance(inputs, Mapping) else []), *side.items()]:
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}; expected a tensor")
    tokens, channels = _parts(config, inputs)
    given = {**tokens, **({"channels": channels} if channels is not None else {})}
    lead = next(iter(given.values()))
    batch, length = lead.shape[:2]
    if batch == 0 or length == 0:
        raise ValueError(f"the input is empty (batch {batch}, length {length}); at least one of each is needed")
    given |= {name: value for name, value in side.items() if value is not None}
    for name, value in given.items():
        if value.device != device:
            raise ValueError(f"{name} is on {value.device}, the model on {device}; move one of them")
        if name in side and value.dim() != 2:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected [batch, length]")
        if value.shape[:2] != (batch, length):
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected it to start with {(batch, length)}")
    for name in ("mask", "start"):
        if name in given and given[name].dtype != torch.bool:
            raise ValueError(f"{name} has dtype {given[name].dtype}; expected torch.bool")
    if dt is None:
        dt = torch.ones(batch, length, device=device, dtype=torch.promote_types(dtype, torch.float32))
    elif dt.is_complex() or dt.dtype == torch.bool:
        raise ValueError(f"dt has dtype {dt.dtype}; expected numbers")
    else:
        dt = dt.to(torch.promote_types(dtype, torch.float32))
    if mask is not None:
        # Whatever stands at padding must not matter, not even if it is out of range.
        dt = torch.where(mask, dt, 0)
        tokens = {name: torch.where(mask, ids, 0) for name, ids in tokens.items()}
        channels = torch.where(mask.unsqueeze(-1), channels, 0) if channels is not None else None
    if check_values:
        _check_values(config, tokens, channels, dt, time_unit, mask, start)
    return Batch(tokens=tokens, channels=channels, dt=dt, mask=mask, start=start)


def _parts(config: InputConfig, inputs: Inputs) -> tuple[dict[str, Tensor], Tensor | None]:
    """Names to tensors, from a mapping or from the one tensor that stands for all."""
    names = [f.name for f in config.tokens] + (["channels"] if config.channels else [])
    if isinstance(inputs, Tensor):
        if config.tokens and config.channels:
            raise ValueError(f"this model takes several inputs: pass a mapping with {', '.join(names)}")
        if config.channels or len(names) == 1:
            inputs = {names[0]: inputs}
        elif inputs.dim() != 3 or inputs.shape[2] != len(names):
            raise ValueError(
                f"the input has shape {tuple(inputs.shape)}; expected [batch, length, {len(names)}], "
                f"or a mapping with {', '.join(names)}"
            )
        else:
            inputs = dict(zip(names, inputs.unbind(2), strict=True))
    if not isinstance(inputs, Mapping) or set(inputs) != set(names):
        if not isinstance(inputs, Mapping):
            raise ValueError(f"the input is a {type(inputs).__name__}; expected a torch.Tensor or a mapping of them")
        raise ValueError(f"the input has {', '.join(inputs)}; expected {', '.join(names)}")
    tokens = {f.name: inputs[f.name] for f in config.tokens}
    for name, ids in tokens.items():
        if ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            raise ValueError(f"{name} has dtype {ids.dtype}; expected integer token ids")
        if ids.dim() != 2:
            raise ValueError(f"{name} has shape {tuple(ids.shape)}; expected [batch, length]")
    channels = inputs.get("channels")
    if channels is not None:
        if not channels.is_floating_point():
            raise ValueError(f"channels has dtype {channels.dtype}; expected floating-point values")
        if channels.dim() != 3 or channels.shape[2] != config.channels:
            raise ValueError(f"channels has shape {tuple(channels.shape)}; expected [batch, length, {config.channels}]")
    return {name: ids.long() for name, ids in tokens.items()}, channels


def _check_values(
    config: InputConfig,
    tokens: dict[str, Tensor],
    channels: Tensor | None,
    dt: Tensor,
    time_unit: float,
    mask: Tensor | None,
    start: Tensor | None,
) -> None:
    for field in config.tokens:
        low, high = (int(v) for v in tokens[field.name].aminmax())
        if low < 0 or high >= field.vocabulary:
            raise ValueError(
                f"{field.name} has ids from {low} to {high}; allowed: 0 to {field.vocabulary - 1} "
                f"(vocabulary {field.vocabulary})"
            )
    bad = ~(dt / time_unit).isfinite() | (dt < 0)
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(f"dt = {float(dt[where]):g} at (row, position) {where}; allowed: finite and ≥ 0")
    if channels is not None:
        if bool(channels.isinf().any()):
            raise ValueError("channels holds infinite values; allowed: finite numbers" + _or_nan(config))
        if config.missing == "error" and bool(channels.isnan().any()):
            where = tuple(channels.isnan().nonzero()[0].tolist())
            raise ValueError(
                f"channels holds NaN, first at (row, position, channel) {where}; "
                "set missing='nan' in the inputs if NaN means 'not measured'"
            )
    if start is not None and mask is not None and bool((start & ~mask).any()):
        raise ValueError("start is True at a padded position; a sequence must begin at a real one")


def _or_nan(config: InputConfig) -> str:
    return ", or NaN for 'not measured'" if config.missing == "nan" else ""
