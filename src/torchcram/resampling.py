"""Groups drawn again and again: how sure a figure is that rests on patients, people or documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def resampled(groups: Array, draws: int, seed: int = 0) -> Iterator[Array]:
    """Rows of each draw of as many groups as there are, with replacement; groups [rows] tells whose each row is."""
    names, number = np.unique(groups, return_inverse=True)
    order = np.argsort(number, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(number))])
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        chosen = rng.integers(len(names), size=len(names))
        if len(names) == len(groups):
            yield order[chosen]
        else:
            yield np.concatenate([order[starts[k] : starts[k + 1]] for k in chosen])
