"""Samples of unequal length as padded tensors, similar lengths together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchcram.timeseries.series import UNKNOWN, Array, Series

_GROUP = 16  # batches among which samples are put together by their length


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B samples of at most N time stamps."""

    values: Tensor
    """[B, N, C] float32; NaN = not measured, and so everywhere in padding."""
    times: Tensor
    """[B, N] float32: since the sample began, in units of time that suit the data; the last one in padding."""
    mask: Tensor
    """[B, N] bool: True = real."""
    statics: Tensor
    """[B, F] float32; NaN = unknown."""
    labels: Tensor
    """[B] or [B, N] int64; `UNKNOWN` where there is none, and in padding."""
    summaries: Tensor | None = None
    """[B, N, C · features]: of the values since a sample began, where it is not these that tell; see `summaries`."""

    @property
    def dt(self) -> Tensor:
        """[B, N]: time since the stamp before; 0 at the first."""
        return torch.diff(self.times, dim=1, prepend=self.times[:, :1])

    @property
    def known_statics(self) -> Tensor:
        """[B, 2 F]: the statics, 0 where unknown, and behind them whether they are known."""
        return torch.cat([self.statics.nan_to_num(), (~self.statics.isnan()).to(self.statics.dtype)], dim=-1)

    @property
    def last(self) -> Tensor:
        """[B]: where each sample's last time stamp is."""
        return (self.mask.sum(1) - 1).clamp_min(0)

    @property
    def scored(self) -> Tensor:
        """How many labels there are."""
        return (self.labels != UNKNOWN).sum()


def pad(
    series: Series,
    samples: Array,
    *,
    unit: float = 1.0,
    begins: Array | None = None,
    device: torch.device | str = "cpu",
) -> Batch:
    """Some samples; times are told in multiples of `unit`.

    begins: [S], when each sample of the series began; default: at its first time stamp.
    """
    lengths = series.lengths[samples]
    size = len(samples), int(lengths.max())
    mask = np.arange(size[1]) < lengths[:, None]
    # Row numbers of real places in their order; padding repeats its sample's last.
    rows = series.offsets[samples][:, None] + np.minimum(np.arange(size[1]), lengths[:, None] - 1)
    values = np.where(mask[..., None], series.values[rows], np.float32(np.nan))
    begin = series.times[series.offsets[samples]] if begins is None else begins[samples]
    times = ((series.times[rows] - begin[:, None]) / unit).astype(np.float32)
    labels = np.where(mask, series.labels[rows], UNKNOWN) if series.per_step else series.labels[samples]
    tensors = {
        "values": torch.from_numpy(values),
        "times": torch.from_numpy(times),
        "mask": torch.from_numpy(mask),
        "statics": torch.from_numpy(np.asarray(series.statics[samples], dtype=np.float32)),
        "labels": torch.from_numpy(np.ascontiguousarray(labels)),
    }
    return Batch(**{name: tensor.to(device) for name, tensor in tensors.items()})


def shuffled(lengths: Array, size: int, rng: np.random.Generator) -> Iterator[Array]:
    """Every sample once, in batches of `size`, in an order that is random but for lengths, which are alike in each."""
    order = rng.permutation(len(lengths))
    parts = []
    for begin in range(0, len(order), _GROUP * size):
        group = order[begin : begin + _GROUP * size]
        group = group[np.argsort(lengths[group], kind="stable")]
        parts += [group[at : at + size] for at in range(0, len(group), size)]
    for number in rng.permutation(len(parts)):
        yield parts[number]


def in_order(lengths: Array, positions: int) -> Iterator[Array]:
    """Every sample once, shortest first, in batches of about so many positions in all."""
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        # A batch is as wide as its longest, which comes last.
        width = lengths[order[begin:]]
        fits = int(np.searchsorted(width * np.arange(1, len(width) + 1), positions, side="right"))
        yield order[begin : begin + max(1, fits)]
        begin += max(1, fits)


def usual_gap(series: Series) -> float:
    """The median time from one stamp to the next: a unit that suits the data; 1 if there are no two stamps."""
    gaps = np.diff(series.times)
    within = np.ones(len(gaps), dtype=bool)
    inner = series.offsets[1:-1]
    within[inner - 1] = False
    gaps = gaps[within & (gaps > 0)]
    return float(np.median(gaps)) if len(gaps) else 1.0
