"""What is told of each channel at each time stamp is what was measured up to it."""

import math

import numpy as np
import pytest
import torch

from tests.timeseries.samples import random_series
from torchcram.timeseries.batches import pad
from torchcram.timeseries.summaries import FEATURES, running


def one_by_one(times: list[float], values: np.ndarray) -> dict[str, np.ndarray]:
    """Features of one sample, from a list of what was seen so far."""
    found = {name: np.zeros(values.shape) for name in FEATURES}
    for channel in range(values.shape[1]):
        seen: list[float] = []
        when = 0.0
        for step, now in enumerate(times):
            if not math.isnan(values[step, channel]):
                seen.append(float(values[step, channel]))
                when = now
            if seen:
                told = {
                    "last": seen[-1],
                    "age": math.log(1 + now - when) - 1,
                    "ever": 1.0,
                    "mean": sum(seen) / len(seen),
                    "highest": max(seen),
                    "lowest": min(seen),
                    "count": (math.log(1 + len(seen)) - 1) / 2,
                }
                for name in FEATURES:
                    found[name][step, channel] = told[name]
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("missing", [0.0, 0.5, 0.9])
def test_features_are_those_of_a_plain_loop(seed, missing):
    series = random_series(seed, missing=missing)
    batch = pad(series, np.arange(len(series)))
    features = running(batch.values, batch.times).unflatten(-1, (len(FEATURES), 3))
    assert features.dtype == torch.float32
    assert features.isfinite().all()
    for sample, length in enumerate(series.lengths):
        real = slice(0, int(length))
        expected = one_by_one(batch.times[sample, real].tolist(), batch.values[sample, real].numpy())
        for place, name in enumerate(FEATURES):
            found = features[sample, real, place].numpy()
            np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_nothing_looks_ahead():
    batch = pad(random_series(0, longest=12), np.arange(6))
    before = running(batch.values, batch.times)
    for step in range(1, batch.values.shape[1]):
        values, times = batch.values.clone(), batch.times.clone()
        values[:, step:] = torch.randn_like(values[:, step:]) * 100
        times[:, step:] += 5
        after = running(values, times)
        assert torch.equal(after[:, :step], before[:, :step])
        assert not torch.equal(after[:, step:], before[:, step:])


def test_padding_changes_nothing():
    series = random_series(1)
    together = pad(series, np.arange(len(series)))
    features = running(together.values, together.times)
    for sample, length in enumerate(series.lengths):
        alone = pad(series, np.array([sample]))
        assert torch.equal(features[sample, : int(length)], running(alone.values, alone.times)[0])


def test_in_padding_nothing_is_new():
    series = random_series(1)
    batch = pad(series, np.arange(len(series)))
    features = running(batch.values, batch.times)
    for sample, length in enumerate(series.lengths):
        after = features[sample, int(length) - 1 :]
        assert torch.equal(after, after[:1].expand_as(after))


def test_a_channel_without_measurements_is_all_zero():
    batch = pad(random_series(2), np.array([0]))
    assert batch.values[..., -1].isnan().all()
    features = running(batch.values, batch.times).unflatten(-1, (len(FEATURES), 3))
    assert (features[..., -1] == 0).all()
