"""Data sets that were read once: the same again, at once, and never half of one."""

import os

import numpy as np
import pytest

from torchcram import files
from torchcram.timeseries import cache
from torchcram.timeseries.series import Sample, assemble


def small(shift=0.0):
    samples = [
        Sample(id="A", group="a", times=[0, 1], values=[[1 + shift], [np.nan]], label=np.asarray([0, -1])),
        Sample(id="Bé", group="b", times=[0], values=[[3]], label=np.asarray([1])),
    ]
    return assemble(samples, channels=["x"], classes=["no", "ja"])


class Maker:
    """Counts how often it was asked."""

    def __init__(self):
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return small(self.asked)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text("some data")
    return path


@pytest.fixture
def place(tmp_path):
    return tmp_path / "deep" / "cache"


def test_what_comes_back_is_what_was_made(source, place):
    found = cache.kept("small", [source], None, small, place)
    expected = small()
    for name in ("ids", "groups", "offsets", "times", "values", "statics", "labels"):
        array = getattr(found, name)
        np.testing.assert_array_equal(array, getattr(expected, name))
        assert array.dtype == getattr(expected, name).dtype
        assert isinstance(array, np.memmap)
    assert (found.channels, found.static_names, found.classes) == (("x",), (), ("no", "ja"))
    with pytest.raises(ValueError, match="read-only"):
        found.values[0, 0] = 9


def test_it_is_made_once(source, place):
    maker = Maker()
    for _ in range(3):
        assert cache.kept("small", [source], {"sets": "a"}, maker, place).values[0, 0] == 2
    assert maker.asked == 1
    assert [path.name.rsplit("-", 1)[0] for path in place.iterdir()] == ["small"]


def test_other_files_or_settings_make_another(source, place):
    maker = Maker()

    def asked(settings=None, name="small", sources=(source,)):
        cache.kept(name, sources, settings, maker, place)
        return maker.asked

    assert asked() == 1
    assert asked(settings="abc") == 2
    assert asked(name="other") == 3
    os.utime(source, (1, 1))
    assert asked() == 3  # a file is known by its content
    source.write_text("SOME data")
    assert asked() == 4
    assert asked() == 4
    renamed = source.rename(source.with_name("renamed.txt"))
    assert asked(sources=(renamed,)) == 5


def test_folders_and_large_files_are_known_by_size_and_time(source, place, monkeypatch):
    maker = Maker()
    folder = source.parent / "folder"
    folder.mkdir()
    (folder / "1.txt").write_text("x")
    os.utime(folder / "1.txt", (1, 1))
    monkeypatch.setattr(cache, "_LARGE", 8)  # the source has 9 bytes
    for path, expected in ((folder, 1), (source, 3)):
        file = folder / "1.txt" if path is folder else source
        cache.kept("small", [path], None, maker, place)
        cache.kept("small", [path], None, maker, place)
        assert maker.asked == expected
        os.utime(file, (2, 2))
        cache.kept("small", [path], None, maker, place)
        assert maker.asked == expected + 1
    (folder / "2.txt").write_text("y")
    cache.kept("small", [folder], None, maker, place)
    assert maker.asked == 5


def test_nothing_is_left_when_reading_fails(source, place):
    def fail():
        raise ValueError("line 7 is wrong")

    with pytest.raises(ValueError, match="line 7 is wrong"):
        cache.kept("small", [source], None, fail, place)
    assert not place.exists()


def test_nothing_is_left_when_writing_fails(source, place, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="no space left"):
        cache.kept("small", [source], None, small, place)
    assert list(place.iterdir()) == []


def test_of_two_that_make_the_same_either_may_be_first(source, place):
    def late():
        cache.kept("small", [source], None, small, place)  # another process, while this one was reading
        return small(5)

    assert cache.kept("small", [source], None, late, place).values[0, 0] == 1
    assert len(list(place.iterdir())) == 1


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "no words", "other words"])
def test_damage_is_told_with_what_to_do(source, place, damage):
    cache.kept("small", [source], None, small, place)
    (kept,) = place.iterdir()
    match damage:
        case "gone":
            (kept / "values.npy").unlink()
        case "empty":
            (kept / "values.npy").write_bytes(b"")
        case "cut":
            (kept / "times.npy").write_bytes((kept / "times.npy").read_bytes()[:-4])
        case "no words":
            (kept / "names.json").write_text("{")
        case "other words":
            (kept / "names.json").write_text("{}")
    with pytest.raises(ValueError, match=rf"{kept.name} is damaged .*; delete it, and it is made anew"):
        cache.kept("small", [source], None, small, place)


def test_arrays_that_need_pickle_are_never_read(source, place):
    cache.kept("small", [source], None, small, place)
    (kept,) = place.iterdir()
    np.save(kept / "ids.npy", np.asarray([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="is damaged"):
        cache.kept("small", [source], None, small, place)


def test_where_it_is_kept(source, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCRAM_CACHE", str(tmp_path / "named"))
    cache.kept("small", [source], None, small)
    assert len(list((tmp_path / "named").iterdir())) == 1
    monkeypatch.delenv("TORCHCRAM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert files.cache() == tmp_path / "xdg" / "torchcram"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.cache() == tmp_path / ".cache" / "torchcram"
