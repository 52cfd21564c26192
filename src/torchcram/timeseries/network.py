"""A sequence model for irregular series: what it is told at each time stamp, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcram.config import BASELINES, BaselineConfig, CramConfig, InputConfig, OutputConfig, TokenField
from torchcram.memory import RoutingPolicy
from torchcram.models import baseline, build
from torchcram.models.inputs import Inputs
from torchcram.models.sequence import SequenceOutput
from torchcram.strict import StrictConfig, check_choice, check_integer, check_number, reject
from torchcram.timeseries.batches import Batch
from torchcram.timeseries.series import UNKNOWN
from torchcram.timeseries.summaries import FEATURES, running

Features = Literal["summaries", "values"]
Place = Literal["last", "mean"]
Layout = Literal["grid", "events"]

HEAD, WHICH = "label", "channel"
"""Names of the head, and of the token field that tells which channel an event is of."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(StrictConfig):
    """What a network for irregular series is made of."""

    channels: int
    """C"""
    statics: int
    """F"""
    classes: int
    per_step: bool = False
    """One answer for each time stamp; else one for a sample."""
    answer: Place = "last"
    """Where a sample's one answer comes from: its `last` time stamp, or the `mean` over all."""
    layout: Layout = "grid"
    """What a token is: `grid`, a time stamp with all that was measured then; `events`, a single measurement."""
    features: Features = "summaries"
    """On a grid, what it is told of each channel at each time stamp: its `values`, or besides them `summaries` of those
    so far."""
    interval: float | None = None
    """On a grid, for one answer a sample: a token is so much time (in units of `Batch.times`), with the last value of
    each channel in it; summaries are of all values. None: a token is a time stamp."""
    hide: float = 0.0
    """In training: share of the samples' inputs, each a channel or a feature of one, that are hidden from it."""
    model: CramConfig | BaselineConfig | None = None
    """The sequence model; its inputs and outputs follow from the above."""

    def __post_init__(self) -> None:
        check_integer("channels", self.channels, 1)
        check_integer("statics", self.statics, 0)
        check_integer("classes", self.classes, 2)
        check_choice("features", self.features, Features)
        check_choice("answer", self.answer, Place)
        check_choice("layout", self.layout, Layout)
        if self.layout == "events" and self.per_step:
            reject("layout", self.layout, "'grid' for an answer a time stamp")
        if self.interval is not None:
            check_number("interval", self.interval, 0, open_low=True)
            if self.layout == "events" or self.per_step:
                reject(
                    "interval", self.interval, "None for single measurements as tokens, and for an answer a time stamp"
                )
        if isinstance(self.model, BaselineConfig):
            self._check_mixer(self.model.mixer)
        check_number("hide", self.hide, 0, 0.9)

    def _check_mixer(self, mixer: str) -> None:
        if mixer == "entropy" and self.output.kind == "classification":
            reject("answer", self.answer, "'last' for a model that looks back where it is uncertain of its answer")

    @property
    def inputs(self) -> InputConfig:
        """Of the sequence model: values, features, the time so far, statics and which of those are known."""
        if self.layout == "events":
            which = TokenField(name=WHICH, vocabulary=self.channels)
            return InputConfig(tokens=(which,), channels=2 + 2 * self.statics)
        each = 1 + (len(FEATURES) if self.features == "summaries" else 0)
        return InputConfig(channels=each * self.channels + 1 + 2 * self.statics, missing="nan")

    @property
    def output(self) -> OutputConfig:
        """Of the sequence model."""
        pooled = not self.per_step and self.answer == "mean"
        return OutputConfig(name=HEAD, kind="classification" if pooled else "labels", size=self.classes)

    def with_model(self, name: str, preset: str, **changes: Any) -> NetworkConfig:
        """The same with a CRAM of a known size, or a baseline (`BASELINES`) with as many parameters."""
        if name in BASELINES:
            self._check_mixer(BASELINES[name]["mixer"])
        cram = CramConfig.preset(preset, inputs=self.inputs, outputs=self.output)
        model = cram if name == "cram" else baseline(name, cram)
        return self.override({"model": model.override(changes)})


class Along(NamedTuple):
    """Answers of all tokens of a batch."""

    logits: Tensor
    """[B, tokens, K]"""
    mask: Tensor
    """[B, tokens] bool: True = real."""


class Answer(NamedTuple):
    """What a network says of a batch."""

    logits: Tensor
    """[B, K], or [B, N, K] for an answer a time stamp."""
    out: SequenceOutput[Any, Any] | None = None
    """What its model told; None for a network that is not one of this project's models."""
    early: tuple[Tensor, ...] = ()
    """In training: what heads further down would answer, which are trained as well."""
    along: Along | None = None
    """Where only the answer of a sample's last token counts: what it would answer at each."""


class _Tokens(NamedTuple):
    """What the model sees of a batch."""

    inputs: Inputs
    dt: Tensor
    mask: Tensor
    last: Tensor
    """[B]: a sample's last token."""


def ends(times: Tensor, mask: Tensor, interval: float) -> Tensor:
    """[B, N] bool: of time stamps [B, N], the last real one of each interval since a sample began."""
    number = (times / interval).floor()
    alone = torch.ones_like(mask[:, :1])
    return mask & torch.cat([(number[:, 1:] != number[:, :-1]) | ~mask[:, 1:], alone], dim=1)


def beside(statics: Tensor, length: int) -> Tensor:
    """[B, F] at each of so many positions: [B, length, F]."""
    return statics.unsqueeze(1).expand(-1, length, -1)


class Network(nn.Module):
    """A `SequenceModel` behind features of what was measured."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        if config.model is None:
            raise ValueError("the network has no sequence model; use NetworkConfig.with_model")
        self.config = config
        self.model = build(config.model)
        self.model.check_values = False  # what features are made of is checked where it comes in

    def forward(self, batch: Batch, policy: RoutingPolicy | None = None, *, keep_state: bool = False) -> Answer:
        """What it says of a batch; where an answer is asked for, the policy is told."""
        tokens = self._events(batch) if self.config.layout == "events" else self._grid(batch)
        if policy is not None:
            policy = replace(policy, asked=self._asked(batch, tokens))
        out = self.model(tokens.inputs, dt=tokens.dt, mask=tokens.mask, policy=policy, keep_state=keep_state)
        early = tuple(self._pick(answers[HEAD], tokens) for answers in out.early)
        every = out.predictions[HEAD]
        answer = self._pick(every, tokens)
        return Answer(answer, out, early, None if answer is every else Along(every, tokens.mask))

    def inputs(self, batch: Batch) -> Tensor:
        """[B, N, inputs]: what the model sees on a grid."""
        parts = [batch.values, batch.times.log1p().unsqueeze(-1), beside(batch.known_statics, batch.values.shape[1])]
        if self.config.features == "summaries":
            known = batch.summaries
            parts.append(running(batch.values, batch.times) if known is None else known)
        return torch.cat(parts, dim=-1)

    def _pick(self, logits: Tensor, tokens: _Tokens) -> Tensor:
        """The answers that count, of those that a head gives: of a sample's last token, unless all do."""
        if self.config.per_step or logits.dim() == 2:
            return logits
        return logits[torch.arange(len(logits), device=logits.device), tokens.last]

    def _asked(self, batch: Batch, tokens: _Tokens) -> Tensor:
        """[B, tokens] bool: where an answer is scored."""
        if batch.labels.dim() == 2:
            return batch.labels != UNKNOWN
        place = torch.arange(tokens.mask.shape[1], device=tokens.mask.device)
        return (place == tokens.last.unsqueeze(1)) & (batch.labels != UNKNOWN).unsqueeze(1) & tokens.mask

    def _grid(self, batch: Batch) -> _Tokens:
        if self.config.interval is not None:
            batch = self._coarse(batch, self.config.interval)
        return _Tokens(self._hidden(self.inputs(batch)), batch.dt, batch.mask, batch.last)

    def _coarse(self, batch: Batch, interval: float) -> Batch:
        """The same with a time stamp an interval: its last, with the last that was measured of each channel in it."""
        told = batch.summaries
        if self.config.features == "summaries" and told is None:
            told = running(batch.values, batch.times)
        chosen = ends(batch.times, batch.mask, interval)
        order, mask = _first(chosen)
        place = torch.where(~batch.values.isnan(), torch.arange(chosen.shape[1], device=order.device)[:, None], -1)
        last = _rows(place.cummax(1).values, order)
        # Rows after the last of the interval before are of this one.
        before = nn.functional.pad(order[:, :-1], (1, 0), value=-1).unsqueeze(-1)
        values = batch.values.gather(1, last.clamp_min(0))
        return replace(
            batch,
            values=values.masked_fill((last <= before) | ~mask.unsqueeze(-1), torch.nan),
            times=batch.times.gather(1, order),
            mask=mask,
            summaries=None if told is None else _rows(told, order),
        )

    def _events(self, batch: Batch) -> _Tokens:
        """Every measurement a token, in the order of time, then of channels."""
        measured = ~batch.values.isnan()
        if self.training and self.config.hide > 0:
            measured &= torch.rand(measured.shape, device=measured.device) >= self.config.hide
        order, mask = _first(measured.flatten(1))
        value = batch.values.flatten(1).gather(1, order).masked_fill(~mask, 0)
        times = batch.times.gather(1, order // self.config.channels)
        told = torch.cat(
            [value.unsqueeze(-1), times.log1p().unsqueeze(-1), beside(batch.known_statics, order.shape[1])], dim=-1
        )
        dt = torch.diff(times, dim=1, prepend=times[:, :1]).masked_fill(~mask, 0)
        inputs = {WHICH: order % self.config.channels, "channels": told}
        return _Tokens(inputs, dt, mask, (mask.sum(1) - 1).clamp_min(0))

    def _hidden(self, inputs: Tensor) -> Tensor:
        if not self.training or self.config.hide == 0:
            return inputs
        hidden = torch.rand(inputs.shape[0], 1, inputs.shape[2], device=inputs.device) < self.config.hide
        nothing = inputs.new_zeros(inputs.shape[2])
        nothing[: self.config.channels] = torch.nan  # as if it had not been measured
        return torch.where(hidden, nothing, inputs)


def _first(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Of [B, N] bool: where each row's chosen places are, in their order [B, most], and which of those are real."""
    count = chosen.sum(1)
    order = chosen.logical_not().to(torch.int8).argsort(dim=1, stable=True)[:, : max(1, int(count.max()))]
    return order, torch.arange(order.shape[1], device=order.device) < count.unsqueeze(1)


def _rows(of: Tensor, places: Tensor) -> Tensor:
    """of [B, N, P] at places [B, n]: [B, n, P]."""
    return of.gather(1, places.unsqueeze(-1).expand(-1, -1, of.shape[2]))
