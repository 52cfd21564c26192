"""The `.ts` format: what is written is what is read, and what is dropped is gone."""

from pathlib import Path

import numpy as np
import pytest

from torchcram.timeseries import uea
from torchcram.timeseries.series import Sample, assemble

REAL = Path(__file__).parents[3] / "shared" / "data" / "uea"
real = pytest.mark.skipif(not REAL.is_dir(), reason="needs the shared data")

HEADER = """# what it is
@problemName Tiny
@timeStamps false
@missing true
@univariate false
@dimensions 2
@equalLength false
@classLabel true calm wild

@data
"""
TRAIN = HEADER + "0.5,0.6,0.7:1,?,3:calm\n\n0.1,0.9:4,-5E-1:wild\n?,1:?,2:calm\n"
TEST = HEADER + "1,2:3,4:wild\n"


def load(folder, train=TRAIN, test=TEST, name="Tiny", nested=True, **settings):
    base = folder / name if nested else folder
    base.mkdir(exist_ok=True)
    for part, text in (("TRAIN", train), ("TEST", test)):
        (base / f"{name}_{part}.ts").write_bytes(text if isinstance(text, bytes) else text.encode())
    return uea.load(folder, name, kept=folder / "cache", **settings)


@pytest.mark.parametrize("nested", [True, False])
def test_what_was_written_is_what_is_read(tmp_path, nested):
    split = load(tmp_path, nested=nested, val=0)
    train, nan = split.train, np.nan
    assert train.ids.tolist() == ["train:0", "train:1", "train:2"]
    assert train.offsets.tolist() == [0, 3, 5, 6]
    assert train.times.tolist() == [0, 1, 2, 0, 1, 1]  # of the last sample, nothing was measured at 0
    expected = [[0.5, 1], [0.6, nan], [0.7, 3], [0.1, 4], [0.9, -0.5], [1, 2]]
    np.testing.assert_allclose(train.values, expected, rtol=1e-6)
    assert train.classes == ("calm", "wild")
    assert train.labels.tolist() == [0, 1, 0]
    assert len(train.channels) == 2
    assert len(split.val) == 0
    assert split.test.ids.tolist() == ["test:0"]
    assert split.test.labels.tolist() == [1]


def test_one_dimension_and_words_in_capitals(tmp_path):
    text = "@ProblemName X\n@TIMESTAMPS False\n@univariate TRUE\n@classlabel True A b\n@DATA\n1,2,3:A\n"
    series = load(tmp_path, text, text).test
    assert series.values[:, 0].tolist() == [1, 2, 3]
    assert series.classes == ("A", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRAIN.replace("@missing true", "@misssing true"), "line 4: '@misssing true' is not part of a .ts header"),
        (TRAIN.replace("@missing true", "missing true"), "line 4: 'missing true' is not part"),
        (TRAIN.replace("@data", ""), "line 11: '0.5,0.6,0.7:1,\\?,3:calm' is not part of a .ts header"),
        (TRAIN.split("@data")[0], "has no @data; it is cut short"),
        (HEADER, "has no samples after @data"),
        (TRAIN.replace("@timeStamps false", "@timeStamps true"), "has time stamps of its own"),
        (TRAIN.replace("@classLabel true calm wild", "@classLabel false"), "tells of no classes"),
        (TRAIN.replace("@classLabel true calm wild", "@targetLabel true"), "tells of no classes"),
        (TRAIN.replace("@classLabel true calm wild", "@classLabel"), "tells of no classes"),
        (TRAIN.replace("@dimensions 2", ""), "@dimensions is not there; expected a number of at least 1"),
        (TRAIN.replace("@dimensions 2", "@dimensions two"), "@dimensions is two; expected"),
        (TRAIN.replace("@dimensions 2", "@dimensions 0"), "@dimensions is 0; expected"),
        (TRAIN.replace("@dimensions 2", "@dimensions 3"), "line 11: 2 dimensions and a label; the header tells of 3"),
        (TRAIN.replace(":wild", ""), "line 13: 1 dimensions and a label; the header tells of 2"),
        (TRAIN.replace(":wild", ":mild"), "line 13: the label is 'mild'; the header tells of calm, wild"),
        (TRAIN.replace(":wild", ":NaN"), "line 13: the label is 'NaN'; the header tells of calm, wild"),
        (TRAIN.replace(":wild", ":?"), "line 13: the label is '\\?'"),
        (TRAIN.replace(":wild", ":"), "line 13: the label is ''"),
        (TRAIN[:-7], "line 14: 1 dimensions and a label; the header tells of 2"),
        (TRAIN.replace("0.9", "x"), "line 13: dimension 0 has something that is not a number"),
        (TRAIN.replace("0.9", ""), "line 13: dimension 0 has something that is not a number"),
        (TRAIN.replace("0.9", "inf"), "line 13: dimension 0 has a value that is not finite"),
        (TRAIN.replace("0.1,0.9", "0.1"), "line 13: dimension 1 has 2 values; expected 1"),
        (TRAIN.replace("?,1:?,2", "?,?:?,?"), "line 14: nothing was measured in this sample"),
        (
            TRAIN.replace("@equalLength false", "@equalLength true\n@seriesLength 3"),
            "line 14: dimension 0 has 2 values; expected 3",
        ),
        (TRAIN.replace("@equalLength false", "@equalLength true\n@seriesLength many"), "@seriesLength is many"),
        (TRAIN.replace("what it is", "\xb0").encode("latin-1"), "is not UTF-8 text"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text)
    assert not (tmp_path / "cache").exists()


def test_parts_that_do_not_belong_together(tmp_path):
    with pytest.raises(ValueError, match="training and the test samples of Tiny differ"):
        load(tmp_path, TRAIN, TEST.replace("calm wild", "wild calm"))


def test_files_that_are_missing(tmp_path):
    with pytest.raises(ValueError, match=r"no Tiny/Tiny_TRAIN.ts or Tiny_TRAIN.ts: .* timeseriesclassification.com"):
        uea.load(tmp_path, "Tiny", kept=tmp_path / "cache")
    for name in ("../Tiny", "", "a/b"):
        with pytest.raises(ValueError, match="allowed: the name of a data set, such as JapaneseVowels"):
            uea.load(tmp_path, name)
    with pytest.raises(ValueError, match=r"val = 0.6 .*allowed: a finite number of at least 0 and at most 0.5"):
        load(tmp_path, val=0.6)


def test_it_is_read_once(tmp_path, monkeypatch):
    load(tmp_path)
    monkeypatch.setattr(uea, "_read", None)
    assert len(uea.load(tmp_path, "Tiny", kept=tmp_path / "cache").test) == 1


def test_validation_has_its_share_of_every_class(tmp_path):
    text = HEADER + "1:2:calm\n" * 10 + "1:2:wild\n" * 5
    split = load(tmp_path, text, val=0.2)
    assert np.bincount(split.val.labels).tolist() == [2, 1]
    assert np.bincount(split.train.labels).tolist() == [8, 4]
    assert not set(split.val.ids.tolist()) & set(split.train.ids.tolist())
    assert load(tmp_path, text, val=0.2).val.ids.tolist() == split.val.ids.tolist()
    others = [load(tmp_path, text, val=0.2, seed=seed).val.ids.tolist() for seed in (1, 2, 3)]
    assert any(other != split.val.ids.tolist() for other in others)
    single = load(tmp_path, HEADER + "1:2:calm\n" * 4 + "1:2:wild\n", val=0.5)
    assert np.bincount(single.val.labels).tolist() == [2]  # the only sample of a class is to be learned from


def regular(per_step=False):
    samples = [
        Sample(
            id=f"train:{number}",
            times=np.arange(length),
            values=100.0 * number + np.arange(length)[:, None],
            label=np.arange(length) % 3 if per_step else number % 3,
            statics=[number],
        )
        for number, length in enumerate((40, 10, 1, 40))
    ]
    return assemble(samples, channels="x", static_names="s", classes="abc")


@pytest.mark.parametrize("per_step", [False, True])
def test_dropping_takes_whole_time_stamps(per_step):
    series = regular(per_step)
    left = uea.drop(series, 0.3, seed=5)
    assert left.lengths.tolist() == [28, 7, 1, 28]
    assert left.ids.tolist() == series.ids.tolist()
    np.testing.assert_array_equal(left.statics, series.statics)
    for number, (times, values) in enumerate(left):
        assert (np.diff(times) > 0).all()
        assert values[:, 0].tolist() == (100 * number + times).tolist()
    assert left.labels.tolist() == ((left.times % 3).tolist() if per_step else [0, 1, 2, 0])
    assert left.take([0]).times.tolist() != left.take([3]).times.tolist()  # other ones go in another sample


def test_what_is_dropped_depends_on_the_sample_and_the_seed_alone():
    series = regular()
    left = uea.drop(series, 0.5, seed=5)
    alone = uea.drop(series.take([3]), 0.5, seed=5)
    assert alone.times.tolist() == left.take([3]).times.tolist()
    assert uea.drop(series, 0.5, seed=6).times.tolist() != left.times.tolist()


def test_the_least_and_the_most_that_can_be_dropped():
    series = regular()
    assert uea.drop(series, 0).times.tolist() == series.times.tolist()
    assert uea.drop(series, 1).lengths.tolist() == [1, 1, 1, 1]
    assert len(uea.drop(series.take([]), 0.5)) == 0
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"share = .*allowed: a finite number of at least 0 and at most 1"):
            uea.drop(series, share)


@real
def test_japanese_vowels(tmp_path):
    split = uea.load(REAL, "JapaneseVowels", kept=tmp_path / "cache")
    assert [len(part) for part in (split.train, split.val, split.test)] == [216, 54, 370]
    assert np.bincount(split.train.labels).tolist() == [24] * 9
    assert np.bincount(split.test.labels).tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    assert (split.test.lengths.min(), split.test.lengths.max()) == (7, 29)
    assert split.test.values.shape[1] == 12
    assert split.test.values[0, :3] == pytest.approx([1.635533, 0.024848, 0.432087])


@real
def test_basic_motions(tmp_path):
    split = uea.load(REAL / "BasicMotions", "BasicMotions", kept=tmp_path / "cache")
    assert [len(part) for part in (split.train, split.val, split.test)] == [32, 8, 40]
    assert split.test.classes == ("Standing", "Running", "Walking", "Badminton")
    assert np.bincount(split.test.labels).tolist() == [10] * 4
    assert set(split.test.lengths.tolist()) == {100}
    assert split.test.values.shape == (4000, 6)
