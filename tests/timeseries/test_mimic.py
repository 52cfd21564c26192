"""MIMIC-III: which stays are read, what of them, and how it is put on one scale."""

import csv
import gzip
import io
import re
from pathlib import Path

import numpy as np
import pytest

from torchcram.timeseries import mimic
from torchcram.timeseries.mimic import CHANNELS, STATICS
from torchcram.timeseries.series import Sample, assemble

REAL = Path(__file__).parents[3] / "shared" / "data" / "mimiciii-demo-1.4"
real = pytest.mark.skipif(not REAL.is_dir(), reason="needs the shared data")

ADMISSION = {"subject_id": 1, "hadm_id": 10, "admission_type": "EMERGENCY", "hospital_expire_flag": 1}
PATIENT = {"subject_id": 1, "gender": "F", "dob": "2100-01-01 00:00:00", "expire_flag": 0}
STAY = {
    "subject_id": 1,
    "hadm_id": 10,
    "icustay_id": 100,
    "first_careunit": "MICU",
    "last_careunit": "MICU",
    "first_wardid": 5,
    "last_wardid": 5,
    "intime": "2150-01-01 12:00:00",
    "outtime": "2150-01-03 13:00:00",
    "los": 2.0,
}
CHART = {"hadm_id": 10, "itemid": 211, "charttime": "2150-01-01 13:30:00", "valuenum": 80, "error": 0}
LAB = {"hadm_id": 10, "itemid": 50912, "charttime": "2150-01-01 13:30:00", "value": "1.2", "valuenum": 1.2}
OUTPUT = {"hadm_id": 10, "itemid": 40055, "charttime": "2150-01-01 14:00:00", "value": 100, "iserror": ""}
DEFAULT = {
    "ADMISSIONS": [ADMISSION],
    "PATIENTS": [PATIENT],
    "ICUSTAYS": [STAY],
    "CHARTEVENTS": [CHART],
    "LABEVENTS": [LAB],
    "OUTPUTEVENTS": [OUTPUT],
}


def write(folder, *, packed=False, capitals=False, **tables):
    """A tiny MIMIC; rows tell only how they differ from the ones above."""
    for name, usual in DEFAULT.items():
        rows = [usual[0] | row for row in tables.get(name.lower(), [{}])]
        text = io.StringIO()
        header = [column.upper() if capitals else column for column in rows[0]] if rows else list(usual[0])
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(row.values() for row in rows)
        data = text.getvalue().encode()
        if packed:
            (folder / f"{name}.csv.gz").write_bytes(gzip.compress(data))
        else:
            (folder / f"{name}.csv").write_bytes(data)


def load(folder, **tables):
    write(folder, **tables)
    return mimic.load(folder, kept=folder / "cache")


def measured(series, sample=0):
    """{(hour, channel): value} of a sample."""
    times, values = list(series)[sample]
    return {
        (round(float(times[row]), 4), CHANNELS[channel]): pytest.approx(float(values[row, channel]), abs=1e-4)
        for row, channel in zip(*np.nonzero(~np.isnan(values)), strict=True)
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("capitals", [False, True])
def test_what_was_written_is_what_is_read(tmp_path, packed, capitals):
    series = load(tmp_path, packed=packed, capitals=capitals)
    assert (series.ids.tolist(), series.groups.tolist(), series.labels.tolist()) == ([100], [1], [1])
    assert series.classes == ("survived", "died")
    assert measured(series) == {(1.5, "heart rate"): 80, (1.5, "creatinine"): 1.2, (2, "urine"): 100}
    known = dict(zip(STATICS, series.statics[0].tolist(), strict=True))
    assert known.pop("Age") == pytest.approx(50.0, abs=0.01)
    assert {name for name, value in known.items() if value} == {"Sex=F", "Unit=MICU", "Admission=EMERGENCY"}


def test_the_label_is_death_in_hospital_and_nothing_else(tmp_path):
    series = load(tmp_path, admissions=[{"hospital_expire_flag": 0}], patients=[{"expire_flag": 1}])
    assert series.labels.tolist() == [0]


def test_the_two_charting_systems_are_one(tmp_path):
    pairs = [(211, 220045), (51, 220050), (8441, 220180), (456, 220181), (618, 220210), (646, 220277), (184, 220739)]
    for number, (carevue, metavision) in enumerate(pairs):
        folder = tmp_path / str(number)
        folder.mkdir()
        series = load(folder, chartevents=[{"itemid": carevue, "valuenum": 2}, {"itemid": metavision, "valuenum": 4}])
        if carevue == 456:
            assert len(measured(series)) == 2  # nobody has a mean pressure of 2
        else:
            assert 3 in [value.expected for value in measured(series).values()]


def test_units_are_made_one(tmp_path):
    temperatures = [(678, 98.6), (223761, 104), (676, 38), (223762, 39)]
    oxygen = [(190, 0.5), (3420, 40), (223835, 100), (223835, 1)]
    rows = [
        {"itemid": item, "valuenum": value, "charttime": f"2150-01-01 1{hour}:00:00"}
        for values in (temperatures, oxygen)
        for hour, (item, value) in enumerate(values, start=3)
    ]
    found = measured(load(tmp_path, chartevents=rows, labevents=[], outputevents=[]))
    assert [found[hour, "temperature"] for hour in (1, 2, 3, 4)] == [37, 40, 38, 39]
    assert [found[hour, "inspired oxygen"] for hour in (1, 2, 3, 4)] == [0.5, 0.4, 1, 1]


def test_only_the_first_hours_are_read(tmp_path):
    rows = [
        {"charttime": "2150-01-01 11:59:59", "valuenum": 1},
        {"charttime": "2150-01-01 12:00:00", "valuenum": 2},
        {"charttime": "2150-01-03 12:00:00", "valuenum": 3},
        {"charttime": "2150-01-03 12:00:01", "valuenum": 4},
    ]
    series = load(tmp_path, chartevents=rows, labevents=[], outputevents=[])
    assert measured(series) == {(0, "heart rate"): 2, (48, "heart rate"): 3}


def test_entries_that_are_wrong_or_not_wanted_are_dropped(tmp_path):
    rows = [
        {},
        {"error": 1, "valuenum": 90},
        {"valuenum": ""},
        {"valuenum": 9999999},
        {"itemid": 220734, "valuenum": 7},  # the pH of urine
        {"hadm_id": 11, "valuenum": 99},
        {"hadm_id": "", "valuenum": 99},
    ]
    outputs = [{"iserror": 1}, {"itemid": 40086}, {"itemid": 227488}]  # an error, a drain, a rinse
    series = load(tmp_path, chartevents=rows, labevents=[{"valuenum": ""}], outputevents=outputs)
    assert measured(series) == {(1.5, "heart rate"): 80}


def test_repeats_are_averaged_but_urine_is_added_up(tmp_path):
    series = load(
        tmp_path,
        chartevents=[{}, {"valuenum": 90}, {"itemid": 811, "valuenum": 100}],
        labevents=[{"itemid": 50931, "valuenum": 110}],
        outputevents=[{}, {"itemid": 226560, "value": 50}, {"charttime": "2150-01-01 15:00:00", "value": 25}],
    )
    assert measured(series) == {
        (1.5, "heart rate"): 85,
        (1.5, "glucose"): 105,  # of the charts and of the laboratory
        (2, "urine"): 150,
        (3, "urine"): 25,
    }


def second(table, **changes):
    """The usual row, and one of another patient, admission and stay with these changes."""
    ids = {"subject_id": 2, "hadm_id": 20, "icustay_id": 200}
    return [{}, {key: value for key, value in ids.items() if key in DEFAULT[table][0]} | changes]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"los": 1.99}, False),
        ({"los": ""}, False),
        ({"last_careunit": "SICU"}, False),
        ({"last_wardid": 6}, False),
        ({"intime": "2117-12-30 12:00:00"}, False),
        ({"intime": "2118-01-03 12:00:00"}, True),
        ({"hadm_id": 10, "subject_id": 1}, None),
    ],
    ids=["usual", "short", "unknown length", "other unit", "other ward", "child", "just grown up", "two stays"],
)
def test_which_stays_are_read(tmp_path, changes, kept):
    moment = changes.get("intime", STAY["intime"])
    tables = {
        "admissions": second("ADMISSIONS"),
        "patients": second("PATIENTS"),
        "icustays": second("ICUSTAYS", **changes),
        "chartevents": second("CHARTEVENTS", charttime=moment),
    }
    if kept is None:
        with pytest.raises(ValueError, match="has no stay of an adult of 48 hours with measurements"):
            load(tmp_path, **tables)
    else:
        assert load(tmp_path, **tables).ids.tolist() == ([100, 200] if kept else [100])


def test_a_stay_without_measurements_is_left_out(tmp_path):
    tables = {name.lower(): second(name) for name in ("ADMISSIONS", "PATIENTS", "ICUSTAYS")}
    assert load(tmp_path, **tables).ids.tolist() == [100]


def test_the_oldest_are_ninety(tmp_path):
    assert load(tmp_path, patients=[{"dob": "1850-01-01 00:00:00"}]).statics[0, 0] == 90


def test_what_is_not_known_on_admission(tmp_path):
    series = load(tmp_path, icustays=[{"first_careunit": "X", "last_careunit": "X"}])
    assert np.isnan(series.statics[0]).tolist() == [name.startswith("Unit=") for name in STATICS]


def test_it_is_read_once(tmp_path, monkeypatch):
    load(tmp_path)
    monkeypatch.setattr(mimic, "_read", None)
    assert len(mimic.load(tmp_path, kept=tmp_path / "cache")) == 1


@pytest.mark.parametrize("table", list(DEFAULT))
def test_a_missing_table_is_told_with_where_to_get_it(tmp_path, table):
    write(tmp_path)
    (tmp_path / f"{table}.csv").unlink()
    with pytest.raises(ValueError, match=rf"has no {table}.csv or {table}.csv.gz: .*physionet.org, mimiciii 1.4"):
        mimic.load(tmp_path, kept=tmp_path / "cache")


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("ADMISSIONS", "hospital_expire_flag"),
        ("PATIENTS", "dob"),
        ("ICUSTAYS", "los"),
        ("CHARTEVENTS", "error"),
        ("LABEVENTS", "valuenum"),
        ("OUTPUTEVENTS", "iserror"),
    ],
)
def test_a_missing_column_is_told(tmp_path, table, column):
    write(tmp_path)
    path = tmp_path / f"{table}.csv"
    path.write_text(path.read_text().replace(column, "something"))
    with pytest.raises(ValueError, match=rf"{table}.csv has no column {column}; the tables are described at"):
        mimic.load(tmp_path, kept=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"admissions": [{}, {"hospital_expire_flag": 2}]}, "ADMISSIONS.csv, line 3: hospital_expire_flag is '2'"),
        ({"admissions": [{"hospital_expire_flag": ""}]}, "line 2: hospital_expire_flag is ''; allowed: 0 and 1"),
        ({"admissions": [{"hospital_expire_flag": "NaN"}]}, "hospital_expire_flag is 'NaN'"),
        ({"admissions": [{"hadm_id": 11}]}, "ICUSTAYS.csv, line 2: .*ADMISSIONS.csv has no admission '10'"),
        ({"patients": [{"subject_id": 2}]}, "ICUSTAYS.csv, line 2: .*PATIENTS.csv has no patient '1'"),
        ({"patients": [{"dob": "long ago"}]}, "PATIENTS.csv, line 2: 'long ago' is not a date and time"),
        ({"icustays": [{"los": "long"}]}, "ICUSTAYS.csv, line 2: 'long' is not a number"),
        ({"chartevents": [{}, {"charttime": ""}]}, "CHARTEVENTS.csv, line 3: '' is not a date and time"),
        ({"chartevents": [{"valuenum": "high"}]}, "CHARTEVENTS.csv, line 2: 'high' is not a number"),
        ({"labevents": [{"valuenum": "nan"}]}, "LABEVENTS.csv, line 2: 'nan' is not a number"),
    ],
)
def test_entries_that_cannot_be_read(tmp_path, tables, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, **tables)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no column itemid"),
        (b"hadm_id,itemid,charttime,valuenum,error\n10,211\n", "line 2: 2 columns; expected 5"),
        (b"hadm_id,itemid,charttime,valuenum,error\n10,\xb0\n", "is not UTF-8 text"),
        (b'hadm_id,itemid,charttime,valuenum,error\n10,"' + b"x" * 200_000, "not a table of comma-separated values"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, data, message):
    write(tmp_path)
    (tmp_path / "CHARTEVENTS.csv").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        mimic.load(tmp_path, kept=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_table_cut_short(tmp_path):
    write(tmp_path, packed=True)
    path = tmp_path / "CHARTEVENTS.csv.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"CHARTEVENTS.csv.gz is damaged or cut short"):
        mimic.load(tmp_path, kept=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_patients_are_split():
    samples = [Sample(id=n, group=n // 2, times=[0], values=[[1.0]], label=n % 2) for n in range(200)]
    series = assemble(samples, channels=("x",), classes=("survived", "died"))
    split = mimic.split(series)
    assert [len(part) for part in (split.train, split.val, split.test)] == [140, 30, 30]
    assert mimic.split(series).test.ids.tolist() == split.test.ids.tolist()
    assert mimic.split(series, seed=1).test.ids.tolist() != split.test.ids.tolist()


@real
def test_the_real_demo(tmp_path):
    series = mimic.load(REAL, kept=tmp_path / "cache")
    assert (len(series), int(series.labels.sum()), len(set(series.groups.tolist()))) == (57, 17, 47)
    assert len(series.times) == 4707
    assert series.times.min() >= 0
    assert series.times.max() <= 48
    age = series.statics[:, STATICS.index("Age")]
    assert age.min() >= 18
    assert age.max() == 90
    assert not np.isnan(series.statics).any()
    counts = dict(zip(CHANNELS, (~np.isnan(series.values)).sum(0).tolist(), strict=True))
    assert min(counts.values()) >= 50
    assert (counts["heart rate"], counts["temperature"], counts["urine"]) == (3195, 961, 2005)
    typical = dict(zip(CHANNELS, np.nanmedian(series.values, 0).tolist(), strict=True))
    assert typical["temperature"] == pytest.approx(37, abs=0.5)
    assert typical["inspired oxygen"] == pytest.approx(0.5, abs=0.1)
    assert typical["pH"] == pytest.approx(7.4, abs=0.05)


@real
def test_items_are_what_the_dictionaries_say():
    """Every item is in the dictionary of its table, and its label has a word of its channel."""
    words = {
        "systolic pressure": "systolic",
        "diastolic pressure": "diastolic",
        "mean pressure": "mean",
        "respiratory rate": "resp",
        "oxygen saturation": "o2",
        "inspired oxygen": "o2",
        "eye opening": "eye",
        "verbal response": "verbal",
        "motor response": "motor",
        "pH": "ph",
        "weight": "weight|wt",
        "white blood cells": "white blood cells|wbc",
        "platelets": "platelet",
        "haematocrit": "hematocrit",
    }
    for name, items in (("D_ITEMS", mimic._CHARTED), ("D_LABITEMS", mimic._MEASURED), ("D_ITEMS", mimic._PASSED)):
        with gzip.open(REAL / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
            label = {int(row["itemid"]): row["label"].lower() for row in csv.DictReader(file)}
        for channel, numbers in items.items():
            for number in numbers:
                if channel == "urine" and number > 220000:
                    assert not {"drain", "irrigant"} & set(label[number].split())
                else:
                    assert re.search(words.get(channel, channel), label[number])
                if channel == "temperature":
                    assert (" f" in label[number]) == (str(number) in mimic._FAHRENHEIT)
