"""Irregular series as arrays: what is taken from them is what was put in."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcram.timeseries.series import UNKNOWN, Sample, Series, Split, assemble, last_on_grid, on_grid

NAN = np.nan


def three(per_step=False):
    """Samples of 2, 1 and 3 time stamps; two channels; samples 7 and 9 are of the same person."""
    values = (
        [[1, NAN], [2, 3]],
        [[NAN, 4]],
        [[5, 6], [NAN, NAN], [7, NAN]],
    )
    labels = ([0, 1], [1], [0, 0, UNKNOWN]) if per_step else (0, 1, 0)
    samples = [
        Sample(
            id=number, group=group, times=np.arange(len(grid)) * 0.5, values=np.asarray(grid), label=label, statics=[s]
        )
        for number, group, grid, label, s in zip(
            (7, 8, 9),
            ("a", "b", "a"),
            values,
            map(np.asarray, labels) if per_step else labels,
            (1.5, NAN, 3),
            strict=True,
        )
    ]
    return assemble(samples, channels=("x", "y"), static_names=("age",), classes=("no", "yes"))


def same(one, other):
    for name in ("ids", "groups", "offsets", "times", "values", "statics", "labels"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert (one.channels, one.static_names, one.classes) == (other.channels, other.static_names, other.classes)


def test_samples_lie_one_after_another():
    series = three()
    assert len(series) == 3
    assert series.offsets.tolist() == [0, 2, 3, 6]
    assert series.lengths.tolist() == [2, 1, 3]
    assert series.times.tolist() == [0, 0.5, 0, 0, 0.5, 1]
    assert series.rows(2) == slice(3, 6)
    assert series.labels.tolist() == [0, 1, 0]
    assert series.groups.tolist() == ["a", "b", "a"]
    np.testing.assert_array_equal(series.statics, [[1.5], [NAN], [3]])
    assert [array.dtype for array in (series.offsets, series.times, series.values, series.statics, series.labels)] == [
        np.int64, np.float64, np.float32, np.float32, np.int64,
    ]  # fmt: skip
    times, values = list(series)[2]
    assert times.tolist() == [0, 0.5, 1]
    np.testing.assert_array_equal(values, [[5, 6], [NAN, NAN], [7, NAN]])


def test_a_sample_without_a_group_is_one_of_its_own():
    series = assemble([Sample(id=5, times=[0], values=[[1]], label=0)], channels="x", classes=("no",))
    assert series.groups.tolist() == [5]
    assert series.statics.shape == (1, 0)


@pytest.mark.parametrize("per_step", [False, True])
def test_take_keeps_the_order_given(per_step):
    series = three(per_step)
    assert series.per_step == per_step
    taken = series.take([2, 0, 2])
    assert taken.ids.tolist() == [9, 7, 9]
    assert taken.groups.tolist() == ["a", "a", "a"]
    assert taken.offsets.tolist() == [0, 3, 5, 8]
    assert taken.times.tolist() == [0, 0.5, 1, 0, 0.5, 0, 0.5, 1]
    np.testing.assert_array_equal(taken.values[:, 0], [5, NAN, 7, 1, 2, 5, NAN, 7])
    np.testing.assert_array_equal(taken.statics[:, 0], [3, 1.5, 3])
    assert taken.labels.tolist() == ([0, 0, -1, 0, 1, 0, 0, -1] if per_step else [0, 0, 0])


def test_nothing_taken_is_an_empty_series():
    nothing = three().take([])
    assert (len(nothing), len(nothing.times), nothing.values.shape) == (0, 0, (0, 2))


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.booleans(), st.randoms(use_true_random=False))
def test_taking_all_in_another_order_and_back_changes_nothing(lengths, per_step, random):
    samples = [
        Sample(
            id=number,
            times=np.arange(length),
            values=np.asarray([[random.random(), NAN] for _ in range(length)]),
            label=np.asarray([random.randrange(3) for _ in range(length)]) if per_step else random.randrange(3),
            statics=[random.random()],
        )
        for number, length in enumerate(lengths)
    ]
    series = assemble(samples, channels="xy", static_names="s", classes="abc")
    order = list(range(len(lengths)))
    random.shuffle(order)
    same(series.take(order).take(np.argsort(order)), series)
    same(series.take(order).select(range(len(lengths))), series)


def test_select_goes_by_name():
    same(three().select([9, 7]), three().take([2, 0]))
    with pytest.raises(ValueError, match="1 of 2 samples are not there, the first is 3"):
        three().select([7, 3])


def test_of_goes_by_group_in_the_order_of_the_samples():
    same(three().of(["b", "a"]), three())
    same(three().of(["a"]), three().take([0, 2]))
    assert len(three().of(["c"])) == 0


def test_events_are_single_measurements():
    events = three().events()
    assert events.offsets.tolist() == [0, 3, 4, 7]
    assert events.times.tolist() == [0, 0.5, 0.5, 0, 0, 0, 1]
    assert events.channel.tolist() == [0, 0, 1, 1, 0, 1, 0]
    assert events.value.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert events.step.tolist() == [0, 1, 1, 0, 0, 0, 2]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(-9, 9)), min_size=1, max_size=30))
def test_a_grid_holds_the_mean_of_what_was_measured_at_a_moment(measured):
    times, channel, value = (np.asarray(column) for column in zip(*measured, strict=True))
    stamps, grid = on_grid(times / 4, channel, value, 3)
    assert stamps.tolist() == sorted({time / 4 for time in times.tolist()})
    assert (stamps.dtype, grid.dtype) == (np.float64, np.float32)
    for row, stamp in enumerate(stamps):
        for column in range(3):
            there = [v for t, c, v in measured if t / 4 == stamp and c == column]
            expected = np.float32(sum(there) / len(there)) if there else NAN
            np.testing.assert_array_equal(grid[row, column], expected)


def test_the_last_label_of_a_moment_stands():
    assert last_on_grid(np.asarray([2.0, 0, 2, 1, 2]), np.asarray([5, 6, 7, 8, 9])).tolist() == [6, 8, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.zeros(4, int)}, r"labels has shape \(4,\); allowed: \(3,\) or \(6,\)"),
        ({"values": np.zeros((6, 3))}, r"values has shape \(6, 3\); allowed: \(6, 2\)"),
        ({"groups": np.zeros(2)}, "groups has shape"),
        ({"statics": np.zeros((3, 2))}, "statics has shape"),
        ({"offsets": np.asarray([0, 3, 2, 6])}, "offsets must rise from 0 to the number of rows, 6"),
        ({"offsets": np.asarray([0, 3, 3, 6])}, "no sample is without any"),
        ({"offsets": np.asarray([1, 2, 3, 6])}, "offsets must rise"),
        ({"offsets": np.asarray([0, 2, 3, 5])}, "offsets must rise"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(three(), **changes)


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="there are no samples"):
        assemble([], channels=(), classes=())


def test_a_split_keeps_groups_apart():
    series = three()
    parts = [series.take([number]) for number in range(3)]
    with pytest.raises(ValueError, match="1 groups are in two parts of the split, 'a' for one"):
        Split(train=parts[0], val=parts[1], test=parts[2])
    assert len(Split(train=series.of(["a"]), val=parts[1], test=series.take([])).train) == 2


def test_series_are_frozen():
    with pytest.raises(AttributeError):
        three().times = None
    assert isinstance(three(), Series)


def test_by_order_forgets_when_things_were_measured():
    made = [
        Sample(id=0, times=[3.0, 7.5, 8.0], values=[[1], [2], [3]], label=0),
        Sample(id=1, times=[100.0], values=[[4]], label=1),
    ]
    series = assemble(made, channels=["a"], classes=["no", "yes"])
    assert series.by_order().times.tolist() == [0, 1, 2, 0]
    assert series.by_order().times.dtype == series.times.dtype
    assert series.times.tolist() == [3, 7.5, 8, 100]
