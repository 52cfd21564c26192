"""What is known of each channel so far, told at every time stamp: nothing of it is learned, nothing looks ahead."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchcram.timeseries.series import Series

FEATURES = ("last", "age", "ever", "mean", "highest", "lowest", "count")
"""Of each channel, up to and including the present."""


def running(values: Tensor, times: Tensor) -> Tensor:
    """values [B, N, C] with NaN where nothing was measured, times [B, N]: to [B, N, C · len(FEATURES)].

    The last value, how long ago it was measured (on a logarithmic scale), whether there is one at all, and mean,
    highest, lowest and number of the values so far. Where there is none, all are 0.
    """
    measured = ~values.isnan()
    value = values.nan_to_num()
    place = torch.arange(values.shape[1], device=values.device)[:, None].expand_as(values)
    last = torch.where(measured, place, -1).cummax(1).values
    ever = last >= 0
    last = last.clamp_min(0)
    now = times.unsqueeze(-1).expand_as(values)
    count = measured.cumsum(1)
    features = {
        "last": value.gather(1, last),
        "age": (now - now.gather(1, last)).clamp_min(0).log1p() - 1,
        "ever": torch.ones_like(value),
        "mean": (value * measured).cumsum(1) / count.clamp_min(1),
        "highest": torch.where(measured, value, -torch.inf).cummax(1).values.nan_to_num(neginf=0),
        "lowest": torch.where(measured, value, torch.inf).cummin(1).values.nan_to_num(posinf=0),
        "count": (count.log1p() - 1) / 2,
    }
    return torch.cat([features[name] * ever for name in FEATURES], dim=-1).to(values.dtype)


def of_whole(series: Series, unit: float = 1.0) -> Tensor:
    """[T, C · len(FEATURES)]: of all samples of a series, each from its beginning; `unit`: of time."""
    found = []
    for sample in range(len(series)):
        rows = series.rows(sample)
        times = (series.times[rows] - series.times[rows.start]) / unit
        values = np.asarray(series.values[rows], dtype=np.float32)
        given = (torch.from_numpy(np.array(x, dtype=np.float32)).unsqueeze(0) for x in (values, times))
        found.append(running(*given)[0])
    return torch.cat(found)
