"""Small irregular series with something to learn in them."""

import numpy as np


def classes(samples: int = 160, steps: int = 12, seed: int = 0) -> dict[str, np.ndarray]:
    """The label is whether the last value of feature 0 is above 0; half of all values are missing."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(samples, steps, 3))
    X[rng.random(X.shape) < 0.5] = np.nan
    X[:, 0, 0] = rng.normal(size=samples)
    last = [row[~np.isnan(row)][-1] for row in X[:, :, 0]]
    return {"X": X, "time": np.sort(rng.random((samples, steps)) * 10, axis=1), "y": (np.array(last) > 0).astype(int)}


def labels(samples: int = 60, steps: int = 20, seed: int = 0) -> dict[str, np.ndarray]:
    """The label of each time stamp is whether its feature 1 is above 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(samples, steps, 2))
    return {"X": X, "y": (X[:, :, 1] > 0).astype(int)}
