"""What a model did with a sample, token by token."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from torchcram.memory import EPISODIC, SEMANTIC, BlockState
from torchcram.timeseries.batches import pad
from torchcram.timeseries.network import Layout, Network, ends
from torchcram.timeseries.series import Array, Series
from torchcram.timeseries.windows import overlapping, windows

_WORDS = {EPISODIC: "read", SEMANTIC: "recalled"}


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What a model did at one token of a sample: a time stamp, or with `layout="events"` a single measurement.

    With `interval`, a token is an interval: `time` is that of its last time stamp.
    """

    time: float
    measured: dict[str, float]
    """Channels and their values, as they were given; in an interval, the last of each."""
    actions: list[str]
    """Of each layer: `read`, `recalled` or `ignored` (neither)."""
    looked_at: float
    """How much of the reads of later tokens went here, over all layers, the mean over heads: 1 is a whole read."""


def explain(
    network: Network, told: Series, given: Series, *, unit: float, device: torch.device, context: int | None
) -> list[Explained]:
    """One sample, as the network is `told` it and as it was `given`; `unit` and `context` as in `predict`."""
    if context is None:
        (routing,), (looked_at,) = _did(network, told, unit, device)
    else:
        routing, looked_at = _in_pieces(network, told, unit, device, context)
    times, measured = _tokens(given, network.config.layout, given.channels)
    if network.config.interval is not None:
        batch = pad(told, np.arange(1), unit=unit)
        last = np.flatnonzero(ends(batch.times, batch.mask, network.config.interval)[0])
        first = [0, *(last[:-1] + 1)]
        times = times[last]
        measured = [dict(ChainMap(*measured[a : b + 1][::-1])) for a, b in zip(first, last, strict=True)]
    return [
        Explained(
            time=float(times[token]),
            measured=measured[token],
            actions=[_WORDS.get(int(action), "ignored") for action in routing[token]],
            looked_at=float(looked_at[token]),
        )
        for token in range(len(times))
    ]


@torch.no_grad()
def _did(network: Network, told: Series, unit: float, device: torch.device) -> tuple[Array, Array]:
    """The actions of samples [S, tokens, L], and how much of later reads went to each token [S, tokens]."""
    out = network(pad(told, np.arange(len(told)), unit=unit, device=device), keep_state=True).out
    assert out is not None
    assert out.state is not None
    routing: Array = out.routing.cpu().numpy()
    looked_at = np.zeros(routing.shape[:2])
    for layer in out.state.layers:
        if isinstance(layer, BlockState) and layer.episodic is not None:
            position, mass = layer.episodic.position.cpu().numpy(), layer.episodic.mass.double().cpu().numpy()
            sample, slot = np.nonzero(position >= 0)
            np.add.at(looked_at, (sample, position[sample, slot]), mass[sample, slot])
    return routing, looked_at


def _in_pieces(network: Network, told: Series, unit: float, device: torch.device, context: int) -> tuple[Array, Array]:
    """The same of one sample that is labelled piece by piece: [tokens, L] and [tokens]."""
    pieces, new = overlapping(told, context)
    routing, looked_at = _did(network, pieces, unit, device)
    if len(pieces) > 1:
        # Tokens that a piece shares with the one before are only there to be looked at; what they read does not count.
        shared = windows(pieces.take(np.arange(1, len(pieces))), context // 2, context)
        looked_at[1:, : context // 2] -= _did(network, shared, unit, device)[1]
    real = np.arange(routing.shape[1]) < pieces.lengths[:, None]
    begin = np.arange(len(pieces)) * (context - context // 2)
    found = np.zeros(len(told.times))
    np.add.at(found, (begin[:, None] + np.arange(routing.shape[1]))[real], looked_at[real].clip(0))
    return routing[real][new], found


def _tokens(series: Series, layout: Layout, channels: Sequence[str]) -> tuple[Array, list[dict[str, float]]]:
    """When each token of a sample is, and what was measured then."""
    if layout == "events":
        events = series.events()
        pairs = zip(events.channel, events.value, strict=True)
        return events.times, [{channels[channel]: float(value)} for channel, value in pairs]
    measured = [
        {name: float(value) for name, value in zip(channels, row, strict=True) if not np.isnan(value)}
        for row in series.values
    ]
    return series.times, measured
