"""Person activity: readings of four tags as series, windows of them, and who is in which part of a split."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from torchcram.timeseries import activity
from torchcram.timeseries.activity import CHANNELS, CLASSES, TAGS
from torchcram.timeseries.windows import windows

REAL = Path(__file__).parents[3] / "shared" / "data" / "uci_person_activity"
LEFT, RIGHT, CHEST, BELT = TAGS
START = 633790226051280329

unofficial = pytest.mark.filterwarnings("ignore:.*not, byte for byte, the official file")


def row(sequence, tag, tick, x, y, z, doing):
    return f"{sequence},{tag},{START + tick},27.05.2009 14:03:25:127,{x},{y},{z},{doing}\n"


ROWS = (
    row("B02", BELT, 0, 1, 2, 3, "lying down")
    + row("A01", LEFT, 0, 4.0629, 1.8924, 0.5074, "walking")
    + row("A01", CHEST, 5_400_000, 4.29, 1.78, 1.34, "falling")
    + row("A01", RIGHT, 5_400_000, 1, 1, 1, "lying")
    + row("A01", CHEST, 5_400_000, 4.31, 1.8, 1.36, "sitting on the ground")
    + row("A01", BELT, 2_700_000, 4.3, 1.8, 0.9, "standing up from sitting on the ground")
)


def load(folder, text=ROWS, name="ConfLongDemo_JSI.txt"):
    data = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return activity.load(folder, kept=folder / "cache")


def test_a_file_that_is_not_the_official_one_is_read_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="ConfLongDemo_JSI.txt is not, byte for byte, the official file"):
        assert len(load(tmp_path)) == 2


@unofficial
@pytest.mark.parametrize(
    "name", ["ConfLongDemo_JSI.txt", "ConfLongDemo_JSI.txt.gz", "ConfLongDemo_JSI_first16486rows.txt.gz"]
)
def test_readings_keep_their_time_and_only_equal_times_are_one(tmp_path, name):
    series = load(tmp_path, name=name)
    assert series.ids.tolist() == ["A01", "B02"]
    assert series.groups.tolist() == ["A", "B"]
    assert series.times.tolist() == [0, 0.27, 0.54, 0]
    nan = np.nan
    expected = np.full((4, 12), nan)
    expected[0, :3] = [4.0629, 1.8924, 0.5074]  # left ankle
    expected[1, 9:] = [4.3, 1.8, 0.9]  # belt
    expected[2, 3:9] = [1, 1, 1, 4.3, 1.79, 1.35]  # right ankle, and the mean of two of the chest
    expected[3, 9:] = [1, 2, 3]
    np.testing.assert_allclose(series.values, expected, rtol=1e-6)
    assert [CLASSES[label] for label in series.labels] == ["walking", "standing up", "sitting on the ground", "lying"]
    assert series.per_step
    assert series.channels == CHANNELS
    assert CHANNELS[::3] == ("left ankle x", "right ankle x", "chest x", "belt x")


@unofficial
def test_eleven_activities_are_seven_classes(tmp_path):
    merged = {
        "walking": "walking",
        "falling": "falling",
        "lying down": "lying",
        "lying": "lying",
        "sitting down": "sitting",
        "sitting": "sitting",
        "standing up from lying": "standing up",
        "standing up from sitting": "standing up",
        "standing up from sitting on the ground": "standing up",
        "on all fours": "on all fours",
        "sitting on the ground": "sitting on the ground",
    }
    series = load(tmp_path, "".join(row("A01", BELT, tick, 0, 0, 0, doing) for tick, doing in enumerate(merged)))
    assert [CLASSES[label] for label in series.labels] == list(merged.values())


@unofficial
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS.replace("1.8924", "far"), "line 2: .*is not sequence, tag, time, date, x, y, z, activity"),
        (ROWS.replace("1.8924", "nan"), "line 2: .*is not sequence"),
        (ROWS.replace("1.8924,", ""), "line 2: .*is not sequence"),
        (ROWS.replace("1.8924,", "1,2,"), "line 2: .*is not sequence"),
        (ROWS.replace(f"{START + 2_700_000}", "noon"), "line 6: .*is not sequence"),
        (ROWS + "\n", "line 7: '' is not sequence"),
        (ROWS.replace(RIGHT, "010-000-030-097"), "line 4: there is no tag '010-000-030-097'; known: 010-000-024-033"),
        (ROWS.replace("falling", "flying"), "line 3: there is no activity 'flying'; known: walking"),
        (ROWS.replace("falling", "NaN"), "line 3: there is no activity 'NaN'"),
        (ROWS.replace("falling", ""), "line 3: there is no activity ''"),
        (ROWS.replace(",falling", ""), "line 3: .*is not sequence"),
        (ROWS.replace("27.05", "27\xb005").encode("latin-1"), "is not UTF-8 text"),
        ("", "is empty"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text)
    assert not (tmp_path / "cache").exists()


def test_a_missing_or_damaged_file(tmp_path):
    with pytest.raises(ValueError, match=r"has no ConfLongDemo_JSI.txt or .* described at archive.ics.uci.edu"):
        activity.load(tmp_path)
    (tmp_path / "ConfLongDemo_JSI.txt.gz").write_bytes(gzip.compress(ROWS.encode())[:-9])
    with pytest.raises(ValueError, match="is damaged or cut short"):
        activity.load(tmp_path, kept=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_it_is_read_once(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match="official"):
        load(tmp_path)
    monkeypatch.setattr(activity, "_read", None)
    assert len(activity.load(tmp_path, kept=tmp_path / "cache")) == 2


def people(tmp_path, names, length=120):
    text = "".join(
        row(f"{name}0{number}", BELT, 1000 * tick, tick, number, 0, "walking")
        for name in names
        for number in (1, 2)
        for tick in range(length)
    )
    return load(tmp_path, text, "ConfLongDemo_JSI.txt.gz")


def test_windows_overlap_by_half_and_leave_out_what_is_left_over(tmp_path):
    series = people(tmp_path, "A")
    cut = windows(series)
    assert cut.ids.tolist() == ["A01:0", "A01:25", "A01:50", "A02:0", "A02:25", "A02:50"]
    assert cut.groups.tolist() == ["A"] * 6
    assert cut.lengths.tolist() == [50] * 6
    _, second, *_, last = list(cut)
    assert second[1][:, 9].tolist() == list(range(25, 75))
    assert second[0] == pytest.approx(np.arange(50) / 10_000)  # from the start of the window
    assert last[1][:, 9].tolist() == list(range(50, 100))
    assert last[1][:, 10].tolist() == [2] * 50
    assert cut.per_step
    assert len(cut.labels) == 300


def test_windows_with_the_rest(tmp_path):
    series = people(tmp_path, "A")
    cut = windows(series, 50, 50, rest=True)
    assert cut.ids.tolist()[:3] == ["A01:0", "A01:50", "A01:100"]
    assert cut.lengths.tolist() == [50, 50, 20] * 2
    assert cut.values[:, 9].tolist() == series.values[:, 9].tolist()  # each once
    # 120 = 70 + 50: the window from 75 on holds all that is left, so none begins at 100.
    assert windows(series, 50, 25, rest=True).ids.tolist()[:4] == ["A01:0", "A01:25", "A01:50", "A01:75"]
    assert windows(series, 200, 25, rest=True).lengths.tolist() == [120, 120]
    assert windows(series, 120, 1).lengths.tolist() == [120, 120]
    assert windows(series, 120, 1, rest=True).ids.tolist() == ["A01:0", "A02:0"]


def test_windows_that_cannot_be(tmp_path):
    series = people(tmp_path, "A")
    with pytest.raises(ValueError, match="no sample has 121 time stamps; the longest has 120"):
        windows(series, 121)
    for bad in ({"length": 0}, {"step": 0}, {"length": 2.5}):
        with pytest.raises(ValueError, match="allowed: an integer of at least 1"):
            windows(series, **bad)


def test_the_split_of_the_literature_is_by_window(tmp_path):
    cut = windows(people(tmp_path, "ABC", length=1300))  # 51 windows a sequence
    split = activity.window_split(cut, seed=3)
    parts = [part.ids.tolist() for part in (split.train, split.val, split.test)]
    assert [len(part) for part in parts] == [196, 49, 61]
    assert sorted(name for part in parts for name in part) == sorted(cut.ids.tolist())
    assert {name[0] for name in parts[0]} == {name[0] for name in parts[2]} == set("ABC")
    assert split.test.groups.tolist() == parts[2]
    again, other = (activity.window_split(cut, seed) for seed in (3, 4))
    assert again.test.ids.tolist() == parts[2] != other.test.ids.tolist()
    place = cut.ids.tolist().index(parts[2][0])
    np.testing.assert_array_equal(split.test.take([0]).values, cut.take([place]).values)


def test_one_person_is_left_out(tmp_path):
    series = people(tmp_path, "ABDC")
    split = activity.leave_one_person_out(series, "B")
    assert split.test.ids.tolist() == ["B01", "B02"]
    assert split.val.ids.tolist() == ["C01", "C02"]
    assert split.train.ids.tolist() == ["A01", "A02", "D01", "D02"]
    split = activity.leave_one_person_out(windows(series), "D")
    assert set(split.val.groups.tolist()) == {"A"}
    assert set(split.test.groups.tolist()) == {"D"}
    assert len(split.train) == 12
    with pytest.raises(ValueError, match="person = 'E' is not possible; allowed: A, B, C, D"):
        activity.leave_one_person_out(series, "E")


def test_two_people_are_too_few(tmp_path):
    with pytest.raises(ValueError, match="needs three people; there are 2: A, B"):
        activity.leave_one_person_out(people(tmp_path, "AB"), "A")


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the shared data")
def test_the_real_fragment(tmp_path):
    series = activity.load(REAL, kept=tmp_path / "cache")
    assert series.ids.tolist() == ["A01", "A02", "A03"]
    assert series.lengths.tolist() == [5830, 5691, 4965]
    assert np.bincount(series.labels).tolist() == [2281, 270, 6726, 3190, 1813, 738, 1468]
    assert ((~np.isnan(series.values)).sum(1) == 3).all()
    assert series.values[0, :3] == pytest.approx([4.062931, 1.892434, 0.507425], abs=1e-6)
    assert series.times[1] == pytest.approx(0.0540584)
    assert all((np.diff(times) > 0).all() for times, _ in series)
    assert len(windows(series)) == 655
    with pytest.raises(ValueError, match="needs three people; there are 1: A"):
        activity.leave_one_person_out(series, "A")
