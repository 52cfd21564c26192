"""Files that are whole or not there."""

import multiprocessing

import pytest

from torchcram.files import replacing


def test_the_new_file_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_changes_nothing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _write(path, text):
    for _ in range(200):
        with replacing(path) as temporary:
            temporary.write_text(text * 1000)


def test_two_writers_do_not_spoil_each_others_file(tmp_path):
    path = tmp_path / "a.txt"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, text)) for text in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert path.read_text() in ("a" * 1000, "b" * 1000)
