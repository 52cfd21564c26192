"""Values on a common scale, by their rank among those of the training samples: units and outliers do not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from torchcram.timeseries.series import Array, Series

_KNOTS = 101
_EDGE = 0.01  # share of the values at either end that all get the same score


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaling:
    """Monotone maps, one a channel, to what a normal distribution would have at the same rank.

    A channel that is constant, or never measured, in the training samples becomes 0: it tells by being measured.
    """

    values: Array
    """[2, C, knots]: values, and their scores."""
    statics: Array
    """[2, F, knots]"""

    @classmethod
    def fit(cls, train: Series) -> Scaling:
        """From the training samples alone."""
        return cls(values=_knots(train.values), statics=_knots(train.statics))

    def apply(self, series: Series) -> Series:
        """The same samples, scaled."""
        for name, knots in (("values", self.values), ("statics", self.statics)):
            if getattr(series, name).shape[1] != knots.shape[1]:
                raise ValueError(f"{name} have {getattr(series, name).shape[1]} columns; expected {knots.shape[1]}")
        return replace(
            series, values=_mapped(series.values, self.values), statics=_mapped(series.statics, self.statics)
        )

    def arrays(self) -> dict[str, Array]:
        """What to save."""
        return {"values": self.values, "statics": self.statics}

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> Scaling:
        """The inverse of `arrays`."""
        return cls(values=arrays["values"], statics=arrays["statics"])


def _knots(columns: Array) -> Array:
    rank = np.linspace(0, 1, _KNOTS)
    found = np.zeros((2, columns.shape[1], _KNOTS), dtype=np.float64)
    for number in range(columns.shape[1]):
        column = np.asarray(columns[:, number])
        column = column[~np.isnan(column)]
        if len(column) == 0:
            continue
        at = np.quantile(column, rank)
        # Equal values have equal scores: that of the middle of their ranks.
        _, first, count = np.unique(at, return_index=True, return_counts=True)
        middle = np.repeat((rank[first] + rank[first + count - 1]) / 2, count)
        found[0, number] = at
        if len(first) > 1:
            found[1, number] = ndtri(np.clip(middle, _EDGE, 1 - _EDGE))
    return found


def _mapped(columns: Array, knots: Array) -> Array:
    out = np.array(columns, dtype=np.float32)
    for number in range(out.shape[1]):
        column = out[:, number]
        measured = ~np.isnan(column)
        column[measured] = np.interp(column[measured], knots[0, number], knots[1, number])
    return out
