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


def part(tmp_path, name, rows, **about):
    path = tmp_path / name
    results.write(path, name=name, rows=rows, seeds=sorted({row["seed"] for row in rows}))
    return {**results.read(path), **about}


def test_parts_are_collected(tmp_path):
    swept = {"set model": "mod", "set seed": "1", "set model.capacity": "0.05", "set optimizer.rate": "5e-4"}
    row = {"model": "mod", "seed": 1}
    one = part(tmp_path, "one", [row | swept], commit="a", command="first --json x.json --seed 1")
    other = part(tmp_path, "other", [{"model": "cram", "seed": 0, "rate": 1e-3}], commit="b", command="second")
    found = results.collect("both", "Steps: 3.", [("curve", one), ("final", other)])
    assert (found["name"], found["setting"]) == ("both", "Steps: 3.")
    assert (found["commit"], found["command"], found["seeds"]) == ("a, b", "first --seed 1\nsecond", [0, 1])
    assert found["rows"] == [
        row | {"rate": 5e-4, "what": "curve", "setting": "capacity=0.05", "commit": "a"},
        {"model": "cram", "seed": 0, "rate": 1e-3, "what": "final", "setting": "", "commit": "b"},
    ]


def test_other_routing_is_a_setting_and_a_command_is_said_once(tmp_path):
    rows = [{"model": "cram", "seed": 0, "routing": routing} for routing in ("routed", "off")]
    data = part(tmp_path, "one", rows, command="torchcram evaluate")
    found = results.collect("both", "", [("final", data), ("rate", data)])
    assert [row["setting"] for row in found["rows"]] == 2 * ["", "reads off"]
    assert found["command"] == "torchcram evaluate"


def test_more_is_added_to_what_was_collected(tmp_path):
    swept = [{"model": "mod", "seed": 1, "set model.capacity": "0.05"}]
    first = part(tmp_path, "one", swept, commit="a", command="first --json x.json")
    before = results.collect("both", "Steps: 3.", [("curve", first)])
    again = part(tmp_path, "other", [{"model": "mod", "seed": 0}], commit="b", command="second")
    found = results.collect("both", "Steps: 3.", [("final", again), ("final", first)], before)
    assert [row["what"] for row in found["rows"]] == ["curve", "final", "final"]
    assert [row["setting"] for row in found["rows"]] == ["capacity=0.05", "", "capacity=0.05"]
    assert [row["commit"] for row in found["rows"]] == ["a", "b", "a"]
    assert (found["commit"], found["command"], found["seeds"]) == ("a, b", "first\nsecond", [0, 1])


def test_results_of_two_machines_are_not_one(tmp_path):
    parts = [("final", part(tmp_path, name, [], machine=name)) for name in ("one", "other")]
    with pytest.raises(ValueError, match="several machines: one, other"):
        results.collect("both", "", parts)


def test_parts_of_a_benchmark_become_one_file(tmp_path):
    paths = [tmp_path / f"{number}.json" for number in range(2)]
    for number, path in enumerate(paths):
        results.write(path, name="part", rows=[{"what": "train", "length": number}], seeds=[number], machine="m")
    joined = results.join("bench-train", [results.read(path) for path in paths])
    assert [row["length"] for row in joined["rows"]] == [0, 1]
    assert (joined["name"], joined["seeds"], joined["machine"]) == ("bench-train", [0, 1], "m")
    with pytest.raises(ValueError, match="given twice"):
        results.join("x", [results.read(paths[0])] * 2)
    results.write(tmp_path / "elsewhere.json", name="bench-train", rows=[], machine="n")
    with pytest.raises(ValueError, match="several machines"):
        results.join("x", [results.read(paths[0]), results.read(tmp_path / "elsewhere.json")])
