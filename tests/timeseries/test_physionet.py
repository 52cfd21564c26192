"""PhysioNet 2012: records and outcomes as they are written, and the splits of the literature."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from torchcram.timeseries import physionet
from torchcram.timeseries.physionet import SENSORS, STATICS
from torchcram.timeseries.series import Sample, assemble

REAL = Path(__file__).parents[3] / "shared" / "data" / "physionet2012"
real = pytest.mark.skipif(not REAL.is_dir(), reason="needs the shared data")
unofficial = pytest.mark.filterwarnings("ignore:.*not, byte for byte, the official file")

FIRST = """Time,Parameter,Value
00:00,RecordID,101
00:00,Age,54
00:00,Gender,0
00:00,Height,-1
00:00,ICUType,4
00:00,Weight,80.5
00:07,HR,73
00:07,HR,75
00:07,Temp,35.1
01:30,HR,-1
12:00,Weight,82
37:20,,5
48:00,pH,7.4
"""
SECOND = """Time,Parameter,Value
00:00,RecordID,102
00:00,Age,70
00:00,Gender,-1
00:00,Height,170
00:00,ICUType,2
00:00,Weight,-1
02:00,Urine,900
"""
STILL = SECOND.replace("102", "103").replace("02:00,Urine,900\n", "")
OUTCOMES = """RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death
101,6,1,5,-1,0
102,16,8,8,2,1
103,21,11,19,-1,0
"""


def write(folder, records=None, outcomes=OUTCOMES, packed=True, letter="a"):
    """A tiny set in the official format; what is read of it may warn that it is not the official one."""
    records = {101: FIRST, 102: SECOND, 103: STILL} if records is None else records
    texts = {f"set-{letter}/{number}.txt": text for number, text in records.items()}
    if packed:
        with tarfile.open(folder / f"set-{letter}.tar.gz", "w:gz") as archive:
            for name, text in texts.items():
                data = text if isinstance(text, bytes) else text.encode()
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    else:
        (folder / f"set-{letter}").mkdir()
        for name, text in texts.items():
            (folder / name).write_text(text)
    (folder / f"Outcomes-{letter}.txt").write_bytes(outcomes if isinstance(outcomes, bytes) else outcomes.encode())


def load(folder, sets="a"):
    return physionet.load(folder, sets=sets, kept=folder / "cache")


def test_a_file_that_is_not_the_official_one_is_read_with_a_warning(tmp_path):
    write(tmp_path)
    with pytest.warns(UserWarning, match="Outcomes-a.txt is not, byte for byte, the official file"):
        assert len(load(tmp_path)) == 2


@unofficial
@pytest.mark.parametrize("packed", [True, False])
def test_what_was_written_is_what_is_read(tmp_path, packed):
    write(tmp_path, packed=packed)
    series = load(tmp_path)
    assert series.ids.tolist() == series.groups.tolist() == [101, 102]  # nothing was measured in 103
    assert series.labels.tolist() == [0, 1]
    assert series.classes == ("survived", "died")
    assert series.offsets.tolist() == [0, 3, 4]
    assert series.times.tolist() == [7 / 60, 1.5, 48, 2]
    measured = {
        (row, SENSORS[channel]): float(series.values[row, channel])
        for row, channel in zip(*np.nonzero(~np.isnan(series.values)), strict=True)
    }
    assert measured == {
        (0, "HR"): 74,  # the mean of two in the same minute
        (0, "Temp"): pytest.approx(35.1),
        (1, "HR"): -1,  # unknown only on admission
        (2, "pH"): pytest.approx(7.4),
        (3, "Urine"): 900,
    }


@unofficial
def test_minus_one_is_unknown_on_admission(tmp_path):
    write(tmp_path)
    first, second = load(tmp_path).statics
    nan = np.nan
    assert STATICS[:4] == ("Age", "Gender=0", "Gender=1", "Height")
    np.testing.assert_array_equal(first, [54, 1, 0, nan, 0, 0, 0, 1, 80.5])
    np.testing.assert_array_equal(second, [70, nan, nan, 170, 0, 1, 0, 0, nan])


@unofficial
def test_sets_are_put_together_in_the_order_of_records(tmp_path):
    write(tmp_path, {205: SECOND}, OUTCOMES.splitlines()[0] + "\n205,1,1,1,1,1\n", letter="b")
    write(tmp_path, {301: FIRST}, OUTCOMES.splitlines()[0] + "\n301,1,1,1,1,0\n", letter="c")
    write(tmp_path)
    assert load(tmp_path, "cba").ids.tolist() == [101, 102, 205, 301]
    assert load(tmp_path, "b").labels.tolist() == [1]


@unofficial
def test_it_is_read_once(tmp_path, monkeypatch):
    write(tmp_path)
    load(tmp_path)
    monkeypatch.setattr(physionet, "_read", None)
    assert len(load(tmp_path)) == 2


@pytest.mark.parametrize("sets", ["", "d", "aa", "abd"])
def test_sets_that_there_are_not(tmp_path, sets):
    with pytest.raises(ValueError, match="some of the letters a, b and c, each once"):
        load(tmp_path, sets)


def test_files_that_are_missing_are_told_with_where_to_get_them(tmp_path):
    with pytest.raises(ValueError, match=r"no set-a.tar.gz or .*: the records of set a, described at physionet.org"):
        load(tmp_path)
    write(tmp_path)
    (tmp_path / "Outcomes-a.txt").unlink()
    with pytest.raises(ValueError, match=r"has no Outcomes-a.txt: the outcomes of set a"):
        load(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        load(tmp_path / "nowhere")


@unofficial
@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        (OUTCOMES.replace("102,16,8,8,2,1\n", ""), "has no outcome for record 102"),
        (OUTCOMES + "104,1,1,1,1,0\n", "lacks 1 of 4 records, 104 for one"),
        (OUTCOMES.replace("2,1\n", "2,2\n"), "line 3: In-hospital_death is '2'; allowed: 0 and 1"),
        (OUTCOMES.replace("2,1\n", "2,NaN\n"), "line 3: In-hospital_death is 'NaN'"),
        (OUTCOMES.replace("2,1\n", "2,\n"), "line 3: In-hospital_death is ''"),
        (OUTCOMES.replace("2,1\n", "2\n"), "line 3: In-hospital_death is None"),
        (OUTCOMES.replace("102,16", "x,16"), "line 3: RecordID is 'x'"),
        (OUTCOMES.replace("In-hospital_death", "Death"), "has no column In-hospital_death"),
        (OUTCOMES.replace("RecordID", "Id"), "has no column RecordID"),
        ("", "has no column In-hospital_death, RecordID"),
        (OUTCOMES.replace("SOFA", "SOFA\xb0").encode("latin-1"), "Outcomes-a.txt is not UTF-8 text"),
    ],
)
def test_outcomes_that_are_wrong(tmp_path, outcomes, message):
    write(tmp_path, outcomes=outcomes)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)
    assert not (tmp_path / "cache").exists()


@unofficial
@pytest.mark.parametrize(
    ("record", "message"),
    [
        (FIRST.replace("Temp", "Tmp"), "set-a/101.txt, line 10: 'Tmp' is not a parameter of this data set"),
        (FIRST.replace("00:07,Temp,35.1", "00:07,Temp"), "line 10: '00:07,Temp' is not Time,Parameter,Value"),
        (FIRST.replace("35.1", "warm"), "line 10: '00:07,Temp,warm' is not"),
        (FIRST.replace("35.1", "nan"), "line 10: '00:07,Temp,nan' is not"),
        (FIRST.replace("35.1", "inf"), "line 10: '00:07,Temp,inf' is not"),
        (FIRST.replace("01:30", "noon"), "line 11: 'noon,HR,-1' is not"),
        (FIRST.replace("48:00,pH", "48:00,Age"), "line 14: 'Age' is not a parameter"),
        (
            FIRST.replace("Time,Parameter,Value", "Time,Value"),
            "begins with 'Time,Value'; expected Time,Parameter,Value",
        ),
        ("", "begins with 'nothing'"),
        ("Time,Parameter,Value\n00:07,Temp,35\xb0\n".encode("latin-1"), "101.txt is not UTF-8 text"),
    ],
)
def test_records_that_are_wrong(tmp_path, record, message):
    write(tmp_path, {101: record, 102: SECOND, 103: STILL})
    with pytest.raises(ValueError, match=message):
        load(tmp_path)
    assert not (tmp_path / "cache").exists()


@unofficial
def test_an_archive_cut_short(tmp_path):
    write(tmp_path)
    path = tmp_path / "set-a.tar.gz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="is damaged or cut short"):
        load(tmp_path)
    assert not (tmp_path / "cache").exists()


@unofficial
def test_a_name_that_leads_outside(tmp_path):
    write(tmp_path, {101: FIRST, "../../102": SECOND, 103: STILL})
    with pytest.raises(ValueError, match=r"named 'set-a/../../102.txt', which leads outside the archive"):
        load(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Outcomes-a.txt", "set-a.tar.gz"]
    assert not (tmp_path.parent / "102.txt").exists()


def stays(count):
    samples = [Sample(id=number, times=[0], values=[[1.0]], label=number % 2) for number in range(count)]
    return assemble(samples, channels=("HR",), classes=("survived", "died"))


def test_the_split_of_mtand():
    """Sizes and patients as scikit-learn's train_test_split has them with random_state 42, then 11."""
    split = physionet.mtand(stays(4000))
    assert [len(part) for part in (split.train, split.val, split.test)] == [2560, 640, 800]
    assert sorted(np.concatenate([split.train.ids, split.val.ids, split.test.ids])) == list(range(4000))
    model_selection = pytest.importorskip("sklearn.model_selection")
    learned, judged = model_selection.train_test_split(np.arange(4000), train_size=0.8, random_state=42, shuffle=True)
    train, val = model_selection.train_test_split(learned, train_size=0.8, random_state=11, shuffle=True)
    assert split.test.ids.tolist() == judged.tolist()
    assert split.val.ids.tolist() == val.tolist()
    assert split.train.ids.tolist() == train.tolist()


def test_splits_of_raindrop_that_cannot_be():
    for number in (0, 6):
        with pytest.raises(ValueError, match=r"split = .* allowed: 1 to 5"):
            physionet.raindrop(stays(3), number)
    with pytest.raises(ValueError, match="1199 of 1199 samples are not there"):
        physionet.raindrop(stays(3), 1)


@real
@unofficial
def test_some_real_records(tmp_path):
    """A handful of set a, packed anew with their outcomes; 140501 has no measurements."""
    wanted, records = {132539, 132540, 132541, 132543, 140501}, {}
    with tarfile.open(REAL / "set-a.tar.gz") as archive:
        for member in archive:
            if member.isfile() and int(Path(member.name).stem) in wanted:
                records[int(Path(member.name).stem)] = archive.extractfile(member).read().decode()
    lines = (REAL / "Outcomes-a.txt").read_text().splitlines()
    kept = [lines[0], *(line for line in lines[1:] if int(line.split(",")[0]) in wanted)]
    write(tmp_path, records, "\n".join(kept) + "\n")
    series = load(tmp_path)
    assert series.ids.tolist() == [132539, 132540, 132541, 132543]
    assert series.labels.tolist() == [0, 0, 0, 0]
    first = series.take([0])
    np.testing.assert_array_equal(first.statics[0], [54, 1, 0, np.nan, 0, 0, 0, 1, np.nan])
    assert first.times[0] == pytest.approx(7 / 60)
    assert first.values[0, SENSORS.index("GCS")] == 15
    assert first.values[0, SENSORS.index("HR")] == 73
    lines = records[132539].splitlines()[1:]
    measured = {(line.split(",")[0], line.split(",")[1]) for line in lines if line.split(",")[1] in SENSORS}
    assert (~np.isnan(first.values)).sum() == len(measured)
    assert len(first.times) == len({time for time, _ in measured})


@real
@pytest.mark.slow
def test_the_full_sets_and_the_five_splits_of_raindrop(tmp_path):
    series = physionet.load(REAL, kept=tmp_path / "cache")
    assert len(series) == 11988
    assert int(series.labels.sum()) == 1707  # none of the twelve without measurements died
    shares = [(14.31, 14.76, 13.18), (14.07, 15.35, 14.51), (14.32, 14.60, 13.26), (14.14, 14.60, 14.68)]
    shares.append((14.39, 12.93, 14.35))
    with np.load(REAL / "raindrop_splits" / "phy12_splits_recordids.npz") as official:
        for number, expected in enumerate(shares, start=1):
            split = physionet.raindrop(series, number)
            parts = {"train": split.train, "val": split.val, "test": split.test}
            assert [len(part) for part in parts.values()] == [9590, 1199, 1199]
            assert [round(100 * part.labels.mean(), 2) for part in parts.values()] == list(expected)
            for name, part in parts.items():
                assert set(part.ids.tolist()) == set(official[f"split{number}_{name}"].tolist())
