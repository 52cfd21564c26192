"""Windows that overlap, so that every time stamp is seen with some before it."""

import numpy as np
import pytest

from torchcram.timeseries.series import Sample, assemble
from torchcram.timeseries.windows import overlapping


def samples(*lengths):
    made = [
        Sample(id=k, times=10.0 * np.arange(n) + 3, values=np.full((n, 1), k), label=np.arange(n) % 2)
        for k, n in enumerate(lengths)
    ]
    return assemble(made, channels=["a"], classes=["no", "yes"])


@pytest.mark.parametrize("length", [2, 3, 4, 7, 8])
def test_each_time_stamp_is_new_once_and_has_enough_before_it(length):
    lengths = 1, 2, 3, 4, 5, 8, 9, 16, 23
    series = samples(*lengths)
    pieces, new = overlapping(series, length)
    assert pieces.lengths.max() <= length
    np.testing.assert_array_equal(pieces.values[new], series.values)
    np.testing.assert_array_equal(pieces.labels[new], series.labels)
    # How many come before each time stamp, in its piece and in its sample.
    in_piece = (np.arange(len(new)) - np.repeat(pieces.offsets[:-1], pieces.lengths))[new]
    in_sample = np.concatenate([np.arange(n) for n in lengths])
    assert (in_piece >= np.minimum(in_sample, length // 2)).all()
    np.testing.assert_array_equal(pieces.times[new], 10 * in_piece)


def test_a_window_of_one_overlaps_with_nothing():
    with pytest.raises(ValueError, match="length = 1 is not possible"):
        overlapping(samples(3), 1)
