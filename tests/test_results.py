"""Result files: complete, whole or not at all, and honest about where they came from."""

import json
import math

import pytest

from torchcram import results


def test_write_and_read(tmp_path):
    path = tmp_path / "deep" / "x.json"
    results.write(path, name="x", rows=[{"accuracy": 0.5, "released_at": None}], seeds=[1, 2])
    data = results.read(path)
    assert set(data) == {"name", "command", "commit", "date", "seeds", "machine", "versions", "rows"}
    assert data["rows"] == [{"accuracy": 0.5, "released_at": None}]
    assert data["seeds"] == [1, 2]
    assert {"python", "torch"} <= set(data["versions"])
    assert list(path.parent.iterdir()) == [path]


def test_dash_prints(capsys):
    results.write("-", name="x", rows=[])
    assert json.loads(capsys.readouterr().out)["name"] == "x"


def test_nan_is_refused_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    results.write(path, name="old", rows=[])
    with pytest.raises(ValueError, match="Out of range float"):
        results.write(path, name="new", rows=[{"accuracy": math.nan}])
    assert results.read(path)["name"] == "old"


def test_commit_can_be_named(monkeypatch):
    monkeypatch.setenv("TORCHCRAM_COMMIT", "abc")
    assert results.commit() == "abc"


def test_command_is_what_was_typed(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/torchcram/__main__.py", "bench", "cpu", "--json", "a file.json"])
    assert results.command() == "torchcram bench cpu --json 'a file.json'"
