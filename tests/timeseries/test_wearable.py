"""The batteryless sensor: trials as series, and who may have made which."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from torchcram.timeseries import wearable
from torchcram.timeseries.wearable import CHANNELS, CLASSES
from torchcram.timeseries.windows import windows

REAL = Path(__file__).parents[3] / "shared" / "data" / "uci_batteryless_hop"
real = pytest.mark.skipif(not REAL.is_dir(), reason="needs the shared data")

TRIAL = """0,0.27203,1.0082,-0.082102,1,-63.5,2.4252,924.25,1
0.5,0.3,1,0,4,-63,4.7369,921.75,1
0.5,0.5,2,1,2,-61,2.7369,923.75,4
1.75,0.44791,0.91636,-0.013684,3,-63,2.0371,921.25,3
"""


def load(folder, files, packed=True):
    folder.mkdir(exist_ok=True)
    if packed:
        with zipfile.ZipFile(folder / "Datasets_Healthy_Older_People.zip", "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    else:
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    return wearable.load(folder, kept=folder / "cache")


@pytest.mark.parametrize("packed", [True, False])
def test_what_was_written_is_what_is_read(tmp_path, packed):
    files = {"S2_Dataset/d2p19M": TRIAL, "S2_Dataset/README.txt": "text", "S1_Dataset/d1p08F": TRIAL}
    series = load(tmp_path, files, packed)
    assert series.ids.tolist() == ["d1p08F", "d2p19M"]
    assert series.times.tolist() == [0, 0.5, 1.75] * 2
    first = [0.27203, 1.0082, -0.082102, -63.5, 2.4252, 924.25, 1, 0, 0, 0]
    merged = [0.4, 1.5, 0.5, -62, 3.7369, 922.75, 0, 0.5, 0, 0.5]
    np.testing.assert_allclose(series.values[3:5], [first, merged], rtol=1e-6)
    assert [CLASSES[label] for label in series.labels[:3]] == ["sit on bed", "ambulating", "lying"]
    assert CHANNELS[6:] == ("antenna=1", "antenna=2", "antenna=3", "antenna=4")
    assert series.static_names == ("Sex=F", "Sex=M", "Room=1", "Room=2")
    assert series.statics.tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("S1_Dataset/d1p01M", "room 1, stretch 1"),
        ("S1_Dataset/d1p07M", "room 1, stretch 1"),
        ("S1_Dataset/d1p08F", "room 1, stretch 2"),
        ("S1_Dataset/d1p35F", "room 1, stretch 3"),
        ("S1_Dataset/d1p60F", "room 1, stretch 7"),
        ("S2_Dataset/d2p05F", "room 2, stretch 1"),
        ("S2_Dataset/d2p06F", "room 2, stretch 2"),
        ("S2_Dataset/d2p27F", "room 2, stretch 5"),
    ],
)
def test_trials_of_a_stretch_are_a_group(tmp_path, name, group):
    assert load(tmp_path, {name: TRIAL}).groups.tolist() == [group]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRIAL.replace("1.0082", "up"), "d1p08F, line 1: .* is not time, three accelerations, antenna"),
        (TRIAL.replace("1.0082", "nan"), "line 1: .* is not time"),
        (TRIAL.replace(",921.25", ""), "line 4: .* is not time"),
        (TRIAL.replace("921.25,3", "921.25,5"), "line 4: the label is 5; allowed: 1 to 4"),
        (TRIAL.replace("921.25,3", "921.25,0"), "line 4: the label is 0"),
        (TRIAL.replace("921.25,3", "921.25,1.5"), "line 4: the label is 1.5"),
        (TRIAL.replace("921.25,3", "921.25,NaN"), "line 4: .* is not time, .*, label"),
        (TRIAL.replace("921.25,3", "921.25,"), "line 4: .* is not time, .*, label"),
        (TRIAL.replace("921.25,3", "921.25"), "line 4: .* is not time, .*, label"),
        (TRIAL.replace("-0.013684,3", "-0.013684,7"), "line 4: there is no antenna 7; known: 1, 2, 3, 4"),
        ("", "d1p08F is empty"),
        (b"0,\xb0", "d1p08F is not UTF-8 text"),
    ],
)
def test_trials_that_are_wrong(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, {"S1_Dataset/d1p08F": text})
    assert not (tmp_path / "cache").exists()


def test_a_folder_or_archive_without_trials(tmp_path):
    with pytest.raises(ValueError, match=r"has no Datasets_Healthy_Older_People.zip or .*archive.ics.uci.edu"):
        wearable.load(tmp_path, kept=tmp_path / "cache")
    with pytest.raises(ValueError, match="holds no trial, such as S1_Dataset/d1p01M"):
        load(tmp_path, {"S1_Dataset/d3p01M": TRIAL, "S1_Dataset/d1p01M.bak": TRIAL})


def test_a_name_that_leads_outside(tmp_path):
    with pytest.raises(ValueError, match="leads outside"):
        load(tmp_path, {"S1_Dataset/d1p01M": TRIAL, "../d1p02M": TRIAL})
    assert [path.name for path in tmp_path.iterdir()] == ["Datasets_Healthy_Older_People.zip"]
    assert not (tmp_path.parent / "d1p02M").exists()


def test_an_archive_cut_short(tmp_path):
    load(tmp_path / "whole", {"S1_Dataset/d1p08F": TRIAL})
    data = (tmp_path / "whole" / "Datasets_Healthy_Older_People.zip").read_bytes()
    for size in (0, 60, len(data) - 1):
        (tmp_path / "Datasets_Healthy_Older_People.zip").write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"Older_People.zip is damaged or cut short .*; download it again"):
            wearable.load(tmp_path, kept=tmp_path / "cache")
        assert not (tmp_path / "cache").exists()


def test_it_is_read_once(tmp_path, monkeypatch):
    files = {"S1_Dataset/d1p08F": TRIAL}
    load(tmp_path, files)
    monkeypatch.setattr(wearable, "_read", None)
    assert len(wearable.load(tmp_path, kept=tmp_path / "cache")) == 1


def five(tmp_path, sizes=(9, 5, 4, 3, 2, 1)):
    """One trial a stretch, first of room 1, with so many readings of class 1 to 4 by turns, and one of each."""
    names = ("d1p01M", "d1p08F", "d1p13F", "d1p36M", "d1p44M", "d1p49F")
    readings = "{},0,1,0,1,-60,1,920,{}\n"
    return load(
        tmp_path,
        {
            f"S1_Dataset/{name}": "".join(readings.format(time, 1 + time % 4) for time in range(4 * size))
            for name, size in zip(names, sizes, strict=False)
        },
    )


def test_folds_hold_about_as_much_as_each_other(tmp_path):
    series = five(tmp_path)
    judged = [wearable.split(series, number).test.ids.tolist() for number in range(1, 6)]
    assert judged == [["d1p01M"], ["d1p08F"], ["d1p13F"], ["d1p36M"], ["d1p44M", "d1p49F"]]
    split = wearable.split(series, 5)
    assert split.val.ids.tolist() == ["d1p01M"]
    assert split.train.ids.tolist() == ["d1p08F", "d1p13F", "d1p36M"]


def test_splits_that_cannot_be(tmp_path):
    series = five(tmp_path)
    for number in (0, 6):
        with pytest.raises(ValueError, match=r"split = .* allowed: 1 to 5"):
            wearable.split(series, number)
    with pytest.raises(ValueError, match="5 folds need as many stretches of trials; there are 4: room 1, stretch 1;"):
        wearable.split(series.take([0, 1, 2, 3]), 1)
    with pytest.raises(ValueError, match="tested = 'X' is not possible; allowed: 'F' or 'M'"):
        wearable.by_sex(series, "X")
    with pytest.raises(ValueError, match="needs trials of both"):
        wearable.by_sex(series.take([0, 3, 4]), "F")
    with pytest.raises(ValueError, match="two stretches"):
        wearable.by_sex(series.take([0, 1]), "F")


def test_a_split_by_sex_shares_nobody(tmp_path):
    split = wearable.by_sex(five(tmp_path), "F")
    assert split.test.ids.tolist() == ["d1p08F", "d1p13F", "d1p49F"]
    assert split.val.ids.tolist() == ["d1p44M"]
    assert split.train.ids.tolist() == ["d1p01M", "d1p36M"]


@real
def test_the_real_trials(tmp_path):
    series = wearable.load(REAL, kept=tmp_path / "cache")
    assert len(series) == 87
    assert len(series.times) == 75128 - 92  # so many readings have the time of the one before
    assert np.bincount(series.labels).tolist() == [16406, 4911, 51430, 2289]
    assert (series.lengths.min(), series.lengths.max()) == (7, 4638)
    assert series.statics.sum(0).tolist() == [62, 25, 60, 27]
    assert not np.isnan(series.values).any()
    room = series.statics[:, 3].repeat(series.lengths) == 1
    assert (series.values[room, 9] == 0).all()  # room 2 has three antennas
    assert (series.values[~room, 9] > 0).any()
    for group in set(series.groups.tolist()):
        assert len(set(series.of([group]).statics[:, 0])) == 1  # a stretch is of one sex
    judged = []
    for number in range(1, 6):
        split = wearable.split(series, number)
        assert len(split.train) + len(split.val) + len(split.test) == 87
        assert (np.bincount(split.test.labels) > 250).all()
        judged += split.test.ids.tolist()
    assert sorted(judged) == series.ids.tolist()
    cut = windows(series, 100, 100, rest=True)
    assert len(cut.times) == len(series.times)
    assert set(wearable.split(cut, 2).test.groups.tolist()) == set(wearable.split(series, 2).test.groups.tolist())
    women = wearable.by_sex(series, "F")
    assert (len(women.train), len(women.val), len(women.test)) == (20, 5, 62)
