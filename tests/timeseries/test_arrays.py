"""What users have becomes a `Series`, or a clear error."""

import numpy as np
import pytest
import torch

from torchcram.timeseries import UNKNOWN, as_series, from_aeon, from_triplets
from torchcram.timeseries.arrays import placed

NAN = np.nan


def test_an_array_and_labels():
    X = np.array([[[1.0, NAN], [NAN, NAN], [3.0, 4.0]], [[NAN, 5.0], [6.0, NAN], [NAN, NAN]]])
    series = as_series(X, ["b", "a"])
    assert series.classes == ("a", "b")
    assert series.labels.tolist() == [1, 0]
    assert series.offsets.tolist() == [0, 2, 4]  # nothing was measured at the others
    assert series.times.tolist() == [0, 2, 0, 1]
    np.testing.assert_array_equal(series.values, np.float32([[1, NAN], [3, 4], [NAN, 5], [6, NAN]]))
    assert series.statics.shape == (2, 0)


def test_times_are_put_in_order_and_those_at_one_moment_become_one():
    data = {
        "X": [[[1.0, NAN], [2.0, NAN], [4.0, 7.0], [NAN, NAN]]],
        "time": [[5.0, 1.0, 5.0, NAN]],
        "lengths": [3],
        "y": [2],
    }
    series = as_series(data)
    assert series.times.tolist() == [1, 5]
    np.testing.assert_array_equal(series.values, np.float32([[2, NAN], [2.5, 7]]))
    assert series.classes == ("2",)


def test_a_sample_in_which_nothing_was_measured_keeps_one_time_stamp():
    series = as_series(np.full((2, 4, 3), NAN), [0, 1])
    assert series.lengths.tolist() == [1, 1]
    assert series.times.tolist() == [3, 3]
    assert np.isnan(series.values).all()


def test_one_measurement_is_enough():
    X = np.full((1, 1, 2), NAN)
    X[0, 0, 1] = 3
    assert as_series(X, [1]).values.tolist()[0][1] == 3


def test_labels_of_time_stamps():
    data = {"X": [[[1.0], [NAN], [2.0], [3.0]]], "y": [[1, 0, NAN, 1]], "time": [0, 1, 2, 2]}
    series = as_series(data, per_step=True)
    assert series.per_step
    assert series.times.tolist() == [0, 1, 2]  # also where nothing was measured
    assert series.labels.tolist() == [1, 0, 1]  # the last label of a moment
    assert as_series({"X": np.zeros((1, 3, 1))}, per_step=True).labels.tolist() == [UNKNOWN] * 3


def test_known_classes():
    assert as_series(np.zeros((2, 1, 1)), [3, 1], classes=[1, 2, 3]).labels.tolist() == [2, 0]
    with pytest.raises(ValueError, match="y holds 4, which is not among the classes"):
        as_series(np.zeros((2, 1, 1)), [4, 1], classes=[1, 2, 3])


@pytest.mark.parametrize(
    ("data", "y", "message"),
    [
        (np.zeros((2, 3)), [0, 1], r"X has shape \(2, 3\); expected \[samples, steps, features\]"),
        (np.zeros((0, 3, 1)), [], "none of them 0"),
        ([[[1.0]], [[1.0], [2.0]]], [0, 1], "X must be numbers in an array of one shape"),
        ([[["a"]]], [0], "X must be numbers"),
        ([[[np.inf]]], [0], r"X holds an infinite value, first at \[0, 0, 0\]"),
        (np.zeros((2, 3, 1)), [0], r"y has shape \(1,\); expected \(2,\)"),
        (np.zeros((2, 3, 1)), [0, NAN], r"y holds NaN, and every sample needs a label, first at \[1\]"),
        (np.zeros((2, 3, 1)), [0, 0.5], "y holds fractions"),
        ({"y": [0]}, None, "have no X"),
        (
            {"X": np.zeros((1, 1, 1)), "z": 3},
            None,
            "have z; allowed: X, y, time, lengths, statics, groups, ids, channels",
        ),
        ({"X": np.zeros((1, 1, 1)), "y": [0]}, [0], "y is given twice"),
        ({"X": np.zeros((1, 2, 1)), "time": np.zeros(3)}, None, r"time has shape \(3,\); allowed: \(1, 2\) or \(2,\)"),
        (
            {"X": np.zeros((1, 2, 1)), "time": [0, NAN]},
            None,
            r"time holds a value that is not finite .*first at \[0, 1\]",
        ),
        ({"X": np.zeros((1, 2, 1)), "lengths": [3]}, None, "lengths go from 3 to 3; allowed: 1 to 2"),
        ({"X": np.zeros((1, 2, 1)), "lengths": [0]}, None, "lengths go from 0 to 0"),
        ({"X": np.zeros((1, 2, 1)), "lengths": [1.5]}, None, "whole numbers"),
        ({"X": np.zeros((1, 2, 1)), "statics": [1.0]}, None, r"statics has shape \(1,\)"),
        ([[[1e39]]], [0], "X holds an infinite value"),
        ({"X": np.zeros((1, 2, 1)), "time": np.array(["2020-01-01", "NaT"], "M8[s]")}, None, "is not finite"),
        ({"X": np.zeros((2, 2, 1)), "ids": ["a", "a"]}, None, "ids has 1 names for 2; expected one each"),
        ({"X": np.zeros((1, 2, 1)), "channels": ["a", "b"]}, None, "channels has 2 names for 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_used_is_told(data, y, message):
    with pytest.raises(ValueError, match=message):
        as_series(data, y)


def test_a_table_of_measurements():
    found = from_triplets(
        sample=["p2", "p1", "p1", "p1", "p2"],
        time=[0.0, 4.0, 1.0, 1.0, 3.0],
        channel=["hr", "hr", "temp", "hr", "hr"],
        value=[80, 71, 37.5, 70, 82],
        y={"p1": 0, "p2": 1},
    )
    assert found["y"].tolist() == [0, 1]
    assert found["lengths"].tolist() == [2, 2]
    assert found["time"].tolist() == [[1, 4], [0, 3]]
    np.testing.assert_array_equal(found["X"], np.float32([[[70, 37.5], [71, NAN]], [[80, NAN], [82, NAN]]]))
    series = as_series(found)
    assert series.lengths.tolist() == [2, 2]
    assert series.channels == ("hr", "temp")
    assert series.ids.tolist() == ["p1", "p2"]
    with pytest.raises(ValueError, match="y has nothing for 1 of 2 samples, 'p2'"):
        from_triplets(["p1", "p2"], [0, 0], [0, 0], [1, 1], {"p1": 0})
    with pytest.raises(ValueError, match="y must be a dict from sample to what is told of it; got list"):
        from_triplets(["p1", "p2"], [0, 0], [0, 0], [1, 1], [0, 1])
    with pytest.raises(ValueError, match="the columns have 2, 1, 1, 1 rows"):
        from_triplets(["p1", "p2"], [0], [0], [1])
    with pytest.raises(ValueError, match="no measurements"):
        from_triplets([], [], [], [])


def test_channels_of_a_table_keep_their_places():
    given = from_triplets(["a", "a"], [0, 0], ["spo2", "hr"], [97, 60], channels=["hr", "temp", "spo2"])
    np.testing.assert_array_equal(given["X"], np.float32([[[60, NAN, 97]]]))
    with pytest.raises(ValueError, match=r"channel holds 'spo2', which is not among the channels \['hr', 'temp'\]"):
        from_triplets(["a"], [0], ["spo2"], [97], channels=["hr", "temp"])


def test_what_is_missing_in_a_table_wipes_nothing_out():
    given = from_triplets(["a", "a", "b"], [0, 0, 2], ["hr"] * 3, [60, NAN, NAN], statics={"a": [1.0], "b": [NAN]})
    assert given["X"][0, 0, 0] == 60
    assert np.isnan(given["X"][1]).all()
    assert given["lengths"].tolist() == [1, 1]
    assert as_series(given).statics[0, 0] == 1


def test_padding_has_no_labels_and_no_class():
    data = {"X": np.zeros((2, 3, 1)), "lengths": [3, 1], "y": [[0, 1, 0], [1, -1, -1]]}
    series = as_series(data, per_step=True)
    assert series.classes == ("0", "1")
    assert series.labels.tolist() == [0, 1, 0, 1]


def test_words_can_be_missing_for_time_stamps():
    y = np.array([["a", None, NAN, "b"]], dtype=object)
    series = as_series({"X": np.zeros((1, 4, 1)), "y": y}, per_step=True)
    assert (series.classes, series.labels.tolist()) == (("a", "b"), [0, UNKNOWN, UNKNOWN, 1])
    assert as_series(np.zeros((2, 1, 1)), np.array([b"ill", b"well"])).classes == ("ill", "well")


def test_where_each_step_is():
    given = {"X": np.zeros((2, 3, 1)), "time": [[5.0, 1.0, 5.0], [0.0, 1.0, 2.0]], "lengths": [3, 2]}
    series, rows = placed(given, per_step=True)
    assert series.times.tolist() == [1, 5, 0, 1]
    assert rows.tolist() == [[1, 0, 1], [2, 3, -1]]


def test_dates_are_times_and_coarse_times_are_told_of():
    days = np.array(["2020-01-01", "2020-01-02"], "M8[D]")
    assert np.diff(as_series({"X": np.zeros((1, 2, 1)), "time": days}).times).tolist() == [86400]
    late = np.float32(1.6e9) + np.arange(3, dtype=np.float32)
    with pytest.warns(UserWarning, match="time is float32, too coarse"):
        as_series({"X": np.zeros((1, 3, 1)), "time": late})
    assert as_series({"X": np.zeros((1, 3, 1)), "time": 1.6e9 + np.arange(3)}).lengths.tolist() == [3]


def test_a_tensor_that_has_gradients():
    X = torch.zeros(2, 3, 1, requires_grad=True)
    assert as_series({"X": X, "groups": ["p", "p"]}).groups.tolist() == ["p", "p"]


def test_aeon():
    found = from_aeon([np.arange(6.0).reshape(2, 3), np.ones((2, 1))], ["u", "v"])
    assert found["X"].shape == (2, 3, 2)
    assert found["lengths"].tolist() == [3, 1]
    assert as_series(found).values[:3].tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(ValueError, match="different numbers of channels"):
        from_aeon([np.ones((2, 1)), np.ones((3, 1))])
    with pytest.raises(ValueError, match="list of arrays"):
        from_aeon([np.ones(3)])


def test_a_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "train.h5"
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = np.zeros((2, 3, 1)), [0, 1]
    assert as_series(path).labels.tolist() == [0, 1]
    with h5py.File(path, "a") as file:
        file["times"] = np.zeros(3)
    with pytest.raises(ValueError, match="the data have times; allowed: X, y, time"):
        as_series(path)
    path.write_bytes(b"no such file")
    with pytest.raises(ValueError, match=r"is not an \.h5 file of arrays, or is damaged"):
        as_series(path)
    with pytest.raises(ValueError, match="is not a file"):
        as_series(tmp_path / "none.h5")
