"""Padded samples are the samples; batches hold each of them once."""

import numpy as np
import pytest
import torch

from tests.timeseries.samples import random_series
from torchcram.timeseries.batches import in_order, pad, shuffled, usual_gap
from torchcram.timeseries.series import UNKNOWN, Sample, assemble

NAN = float("nan")


def two(per_step: bool = False):
    """A sample of three time stamps and one of one."""
    return assemble(
        [
            Sample(
                id="a",
                times=np.array([10.0, 12.0, 18.0]),
                values=np.array([[1.0, NAN], [NAN, 2.0], [3.0, 4.0]]),
                label=np.array([0, UNKNOWN, 1]) if per_step else 1,
                statics=[7.0, NAN],
            ),
            Sample(
                id="b",
                times=np.array([5.0]),
                values=np.array([[5.0, NAN]]),
                label=np.array([1]) if per_step else UNKNOWN,
                statics=[NAN, 8.0],
            ),
        ],
        channels=["x", "y"],
        static_names=["s", "t"],
        classes=["no", "yes"],
    )


def same(tensor: torch.Tensor, expected) -> None:
    torch.testing.assert_close(tensor, torch.tensor(expected).to(tensor.dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("per_step", [False, True])
def test_what_is_padded_looks_so(per_step):
    batch = pad(two(per_step), np.array([1, 0]), unit=2.0)
    same(batch.values, [[[5, NAN], [NAN, NAN], [NAN, NAN]], [[1, NAN], [NAN, 2], [3, 4]]])
    same(batch.times, [[0, 0, 0], [0, 1, 4]])
    same(batch.dt, [[0, 0, 0], [0, 1, 3]])
    same(batch.mask, [[True, False, False], [True, True, True]])
    same(batch.statics, [[NAN, 8], [7, NAN]])
    same(batch.labels, [[1, -1, -1], [0, -1, 1]] if per_step else [UNKNOWN, 1])
    same(batch.last, [0, 2])
    assert batch.scored == (3 if per_step else 1)
    assert (batch.values.dtype, batch.times.dtype, batch.labels.dtype) == (torch.float32, torch.float32, torch.int64)


def test_times_are_exact_however_late_a_sample_begins():
    series = two()
    series.times[:] += 1.6e9  # seconds since 1970 do not fit float32
    same(pad(series, np.array([0])).times, [[0, 2, 8]])


def test_samples_keep_their_order_and_may_come_twice():
    series = random_series(0)
    batch = pad(series, np.array([3, 1, 3]))
    assert torch.equal(batch.values[0].nan_to_num(), batch.values[2].nan_to_num())
    same(batch.mask.sum(1), series.lengths[[3, 1, 3]].tolist())


@pytest.mark.parametrize("count", [1, 7, 64, 300])
def test_shuffled_holds_each_sample_once(count):
    lengths = np.random.default_rng(0).integers(1, 50, size=count)
    batches = list(shuffled(lengths, 8, np.random.default_rng(1)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert all(1 <= len(batch) <= 8 for batch in batches)
    assert len(batches) == -(-count // 8)


def test_shuffled_puts_like_lengths_together_in_an_order_of_its_own():
    lengths = np.random.default_rng(0).integers(1, 500, size=512)
    batches = list(shuffled(lengths, 32, np.random.default_rng(1)))
    wasted = sum(len(batch) * lengths[batch].max() - lengths[batch].sum() for batch in batches)
    assert wasted < 0.2 * lengths.sum()
    firsts = [lengths[batch].mean() for batch in batches]
    assert firsts != sorted(firsts)
    again = list(shuffled(lengths, 32, np.random.default_rng(1)))
    other = list(shuffled(lengths, 32, np.random.default_rng(2)))
    assert all(np.array_equal(one, two) for one, two in zip(batches, again, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(batches, other, strict=True))
    assert {frozenset(batch.tolist()) for batch in batches} != {frozenset(batch.tolist()) for batch in other}


@pytest.mark.parametrize("positions", [1, 40, 100, 1000, 10**6])
def test_in_order_holds_each_sample_once_within_its_budget(positions):
    lengths = np.random.default_rng(0).integers(1, 50, size=200)
    batches = list(in_order(lengths, positions))
    assert sorted(np.concatenate(batches).tolist()) == list(range(200))
    assert (np.diff(lengths[np.concatenate(batches)]) >= 0).all()
    for number, batch in enumerate(batches):
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= positions
        if number + 1 < len(batches):  # the next one would not have fitted
            assert (len(batch) + 1) * lengths[batches[number + 1][0]] > positions


def alone(*times: float) -> Sample:
    return Sample(id=len(times) + sum(times), times=np.array(times), values=np.zeros((len(times), 1)), label=0)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([alone(0, 1, 3, 6, 10)], 2.5),
        ([alone(0, 1), alone(1000, 1001), alone(5000, 5001)], 1.0),  # times to the next sample do not count
        ([alone(90), alone(0, 2), alone(500, 504, 506), alone(7)], 2.0),  # nor do samples of one stamp, at the ends
        ([alone(3), alone(9)], 1.0),
        ([alone(3)], 1.0),
    ],
)
def test_the_usual_gap_is_between_time_stamps_of_a_sample(samples, expected):
    assert usual_gap(assemble(samples, channels=["x"], classes=["no", "yes"])) == expected


def test_moments_told_twice_are_no_gap():
    series = assemble([alone(0, 0, 0, 4)], channels=["x"], classes=["no", "yes"])
    assert usual_gap(series) == 4.0
