"""Stages on the way from dense attention to few reads."""

import json

import pytest
from typer.testing import CliRunner

from torchcram.bench import scaling
from torchcram.bench.whole import Size
from torchcram.cli.main import app

SIZE = Size(preset="tiny", slots=8, reads=0.2, tokens=64, vocabulary=32, bf16=False, compile=False)


def test_every_stage_is_timed_at_every_length():
    timed = list(scaling.run(SIZE, [16, 32], [8], "cpu", repeats=1))
    names = [stage.name for stage in scaling.stages(SIZE, [8])]
    assert [row["stage"] for row in timed] == 4 * names
    assert {(row["what"], row["length"]) for row in timed} == {(w, n) for w in ("train", "prefill") for n in (16, 32)}
    assert all(row["ours_ms"] > 0 and row["baseline_ms"] > 0 for row in timed)


def test_compiled_code_is_also_timed_without():
    compiled = scaling.stages(Size(), [512, 4096])
    assert [stage.compile for stage in compiled] == 6 * [True] + [False]
    assert compiled[-1].slots == 512


def test_only_what_is_asked_for_is_timed():
    rows = list(scaling.run(SIZE, [16], [8], "cpu", whats=["prefill"], repeats=1))
    assert {row["what"] for row in rows} == {"prefill"}
    with pytest.raises(ValueError, match="train, prefill"):
        next(scaling.run(SIZE, [16], [8], "cpu", whats=["decode"]))


def test_stages_can_be_timed_by_themselves():
    rows = list(scaling.run(SIZE, [16], [8], "cpu", whats=["prefill"], names=["few read everything"], repeats=1))
    assert [(row["stage"], row["slots"]) for row in rows] == [("few read everything", "all")]
    with pytest.raises(ValueError, match="all read everything, few read everything"):
        next(scaling.run(SIZE, [16], [8], "cpu", names=["some read"]))


def test_an_unbounded_store_costs_what_is_read():
    rows = list(scaling.stores(2048, (1.0, 0.05), "cpu", heads=2, head=16, steps=40))
    assert [row["reads"] for row in rows] == [1.0, pytest.approx(0.05, abs=0.06)]
    assert rows[1]["ours_ms"] < rows[0]["ours_ms"]


def test_command(tmp_path):
    words = ["--lengths", "16", "--buffers", "8", "--preset", "tiny", "--tokens", "32", "--device", "cpu"]
    found = CliRunner().invoke(app, ["bench", "scaling", *words, "--json", str(tmp_path / "s.json")])
    assert found.exit_code == 0, found.output
    data = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert data["name"] == "bench-scaling"
    assert {"train", "prefill", "reads from an unbounded store"} <= {row["what"] for row in data["rows"]}
