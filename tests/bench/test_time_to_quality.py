"""When a run had solved its task."""

import json

import pytest
from typer.testing import CliRunner

from torchcram.bench import quality
from torchcram.cli.main import app


def entries(*accuracies, reads=None):
    reads = reads or [1.0] * len(accuracies)
    return [
        {"step": 10 * k, "seconds": 2.0 * k, "accuracy_novel": value, "reads": share, "released_at": None}
        for k, (value, share) in enumerate(zip(accuracies, reads, strict=True), start=1)
    ]


def test_what_is_lost_again_does_not_count():
    assert quality.solved(entries(0.1, 0.995, 0.5, 0.99, 1.0), 0.99, "accuracy_novel")["step"] == 40
    assert quality.solved(entries(0.1, 0.995, 0.5), 0.99, "accuracy_novel") is None


def test_seconds_until_it_is_solved_and_until_few_read():
    row = quality.row(entries(0.2, 1.0, 1.0, 1.0, reads=[1.0, 1.0, 0.016, 0.015]), 0.99, "accuracy_novel")
    assert (row["solved_at"], row["seconds_to_solved"]) == (20, 4.0)
    assert (row["few_reads_at"], row["seconds_to_few_reads"]) == (30, 6.0)
    row = quality.row(entries(0.2, 0.3), 0.99, "accuracy_novel")
    assert row["seconds_to_solved"] is None
    assert row["seconds_to_few_reads"] is None


def test_seconds_by_what_steps_take_alone():
    row = {"model": "cram", "length": 32, "solved_at": 20, "few_reads_at": 30, "steps": 40, "released_at": 25}
    times = [
        {"model": "transformer", "length": 32, "step_ms": 7.0},
        {"model": "cram", "length": 64, "step_ms": 9.0},
        {"model": "cram", "length": 32, "step_ms": 1.0, "dense_step_ms": 2.0},
    ]
    found = quality.alone(row, times)
    assert found["alone_seconds_to_solved"] == pytest.approx(0.040)
    assert found["alone_seconds_to_few_reads"] == pytest.approx(0.055)
    assert found["alone_seconds"] == pytest.approx(0.065)
    dense = quality.alone({**row, "model": "transformer", "released_at": None, "few_reads_at": None}, times)
    assert dense["alone_seconds_to_solved"] == pytest.approx(0.140)
    assert dense["alone_seconds_to_few_reads"] is None
    with pytest.raises(ValueError, match="no mamba"):
        quality.alone({**row, "model": "mamba"}, times)


def test_a_measure_that_a_task_has_not_is_refused():
    with pytest.raises(ValueError, match="accuracy_overridden"):
        quality.solved(entries(0.2), 0.99, "accuracy_overridden")


def test_command(tmp_path):
    words = ["--preset", "tiny", "--set", "task.length=32", "--set", "batch=2", "--set", "evaluate_every=1"]
    run = tmp_path / "run"
    trained = CliRunner().invoke(app, ["train", "srcd", "--out", str(run), "--set", "steps=2", *words])
    assert trained.exit_code == 0, trained.output
    file = tmp_path / "q.json"
    found = CliRunner().invoke(app, ["bench", "quality", str(run), "--accuracy", "0", "--json", str(file)])
    assert found.exit_code == 0, found.output
    (row,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert (row["model"], row["solved_at"], row["length"]) == ("cram", 1, 32)
    assert row["seconds_to_solved"] > 0
