"""Small irregular series for tests."""

import numpy as np
import torch

from torchcram.timeseries.batches import Batch
from torchcram.timeseries.series import Sample, Series, assemble


def random_series(
    seed: int,
    *,
    samples: int = 6,
    channels: int = 3,
    statics: int = 2,
    classes: int = 2,
    per_step: bool = False,
    longest: int = 9,
    missing: float = 0.5,
) -> Series:
    """Of unequal lengths, with channels and statics missing at random and the last channel of sample 0 throughout."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(samples):
        length = int(rng.integers(2, longest + 1))
        values = rng.normal(size=(length, channels))
        values[rng.random(values.shape) < missing] = np.nan
        if number == 0:
            values[:, -1] = np.nan
        known = rng.normal(size=statics)
        known[rng.random(statics) < 0.3] = np.nan
        found.append(
            Sample(
                id=number,
                times=rng.uniform(0, 100) + np.cumsum(rng.exponential(size=length)),
                values=values,
                label=rng.integers(classes, size=length) if per_step else int(rng.integers(classes)),
                statics=known,
            )
        )
    return assemble(
        found,
        channels=[f"channel{number}" for number in range(channels)],
        static_names=[f"static{number}" for number in range(statics)],
        classes=[f"class{number}" for number in range(classes)],
    )


def in_float64(batch: Batch) -> Batch:
    """The same numbers in double precision."""
    return Batch(
        values=batch.values.double(),
        times=batch.times.double(),
        mask=batch.mask,
        statics=batch.statics.double(),
        labels=batch.labels,
    )


def toy_accuracy(network: torch.nn.Module, train: Batch, test: Batch, *, steps: int, rate: float) -> float:
    """Share of the test labels that a network finds after so many steps on all of a batch."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(network(train)[0], train.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()
    with torch.no_grad():
        return (network(test)[0].argmax(-1) == test.labels).float().mean().item()


def by_last_value(seed: int, samples: int) -> Series:
    """The label tells whether the last value of channel 0 is positive; it is seldom the one at the last time stamp."""
    series = random_series(seed, samples=samples, channels=2, statics=0, longest=12)
    labels = np.empty(len(series), dtype=np.int64)
    for number, (_, values) in enumerate(series):
        if np.isnan(values[:, 0]).all():
            values[0, 0] = 1.0
        labels[number] = values[~np.isnan(values[:, 0]), 0][-1] > 0
    series.labels[:] = labels
    return series
