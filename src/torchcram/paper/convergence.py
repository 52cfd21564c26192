"""Consolidation on drawn data: how fast semantic memory and the reads that it saves converge, for theorems 2 and 3."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def squared_errors(
    steps: int,
    rate: float,
    *,
    sampled: bool,
    misfit: float,
    width: int = 8,
    trials: int = 64,
    seed: int = 0,
) -> Array:
    """Mean squared error of a linear semantic memory before each of `steps` updates, [steps].

    Inputs are random directions of length 1, so that the map is 1-Lipschitz in its weights (L = 1) and rates below 2
    are allowed. What it should return is a linear map of length 1 plus what no linear map can return.

    sampled: Each update has the gradient of one input, as in training; else the gradient of the expectation.
    misfit: ε_approx², variance of what cannot be returned.
    """
    rng = np.random.default_rng(seed)
    wanted = _directions(rng, trials, width)
    weights = np.zeros((trials, width))
    errors = np.empty(steps)
    for step in range(steps):
        away = wanted - weights
        # Inputs are uniform on the sphere: their second moments are 1/width.
        errors[step] = misfit + (away**2).sum(1).mean() / width
        if sampled:
            inputs = _directions(rng, trials, width)
            noise = np.sqrt(misfit) * rng.standard_normal(trials)
            weights += rate * ((away * inputs).sum(1) + noise)[:, None] * inputs
        else:
            weights += rate * away / width
    return errors


def _directions(rng: np.random.Generator, rows: int, width: int) -> Array:
    drawn = rng.standard_normal((rows, width))
    unit: Array = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit


def least_constant(errors: Array, rate: float, floor: float) -> float:
    """The smallest C with which theorem 2 holds at every step: max over T of T η (error - ε_approx²)."""
    after = np.arange(1, len(errors))
    return float((after * rate * (errors[1:] - floor)).max())


def attention_ratios(
    steps: int,
    recurring: float,
    patterns: int,
    exposures: int,
    *,
    trials: int = 256,
    seed: int = 0,
) -> Array:
    """Attention at a step ÷ at step 0, one number a trial, [trials].

    A pattern is asked for with the same chance every step and needs no read once it has been seen `exposures` times;
    what does not recur always reads.
    """
    rng = np.random.default_rng(seed)
    seen = rng.binomial(max(0, steps), recurring / patterns, size=(trials, patterns))
    unlearned: Array = (seen < exposures).mean(1)
    return 1 - recurring + recurring * unlearned


def steps_until(
    ratio: float, delta: float, recurring: float, patterns: int, exposures: int, *, trials: int = 256, seed: int = 0
) -> int:
    """Steps after which attention is down to `ratio` with probability 1 - δ, by trial; doubled, then halved."""

    def reached(steps: int) -> bool:
        found = attention_ratios(steps, recurring, patterns, exposures, trials=trials, seed=seed)
        return bool((found <= ratio + 1e-12).mean() >= 1 - delta)

    if reached(0):
        return 0
    if ratio < 1 - recurring:
        raise ValueError(f"ratio = {ratio} is not possible; allowed: 1 - recurring = {1 - recurring} or more")
    high = 1
    while not reached(high):
        high *= 2
    low = high // 2
    while high - low > max(1, high // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
