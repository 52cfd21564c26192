"""Sweeps: every combination once, side by side, and on from where it was."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from torchcram.cli.main import app
from torchcram.cli.sweep import _told
from torchcram.cli.worker import _tidy
from torchcram.training.run import RunFolder
from torchcram.training.sweep import Worker, jobs

SMALL = ["--set", "task.length=64", "--set", "task.novel_keys=16", "--set", "batch=2", "--set", "evaluate_rows=4"]


def sweep(out: Path, *words: str):
    return CliRunner().invoke(app, ["sweep", "srcd", "--out", str(out), "--rows", "4", *SMALL, *words])


def test_every_combination_has_a_folder_of_its_own(tmp_path):
    found = jobs("srcd", tmp_path, {"optimizer.rate": ["1e-3", "3e-3"], "seed": ["0", "1"], "model": ["mamba"]})
    names = [f"rate={rate}-seed={seed}-model=mamba" for rate in ("1e-3", "3e-3") for seed in "01"]
    assert [job.folder.name for job in found] == names
    train, evaluate = found[1].commands("cpu", 7)
    assert train[:4] == ["train", "srcd", "--out", str(found[1].folder)]
    assert train[6:] == ["--model", "mamba", "--set", "optimizer.rate=1e-3", "--set", "seed=1"]
    assert evaluate[:2] == ["evaluate", str(found[1].folder)]


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({}, "nothing to vary"),
        ({"seed": []}, "values that differ, at least one"),
        ({"seed": ["1", "1"]}, "values that differ, at least one"),
        ({"optimizer.rate": ["1"], "other.rate": ["2"]}, None),
    ],
    ids=str,
)
def test_what_cannot_be_varied_is_told(vary, message, tmp_path):
    if message is None:
        assert len(jobs("srcd", tmp_path, vary)) == 1
        return
    with pytest.raises(ValueError, match=message):
        jobs("srcd", tmp_path, vary)


def test_runs_are_made_once_and_told_in_one_table(tmp_path):
    file = tmp_path / "table.json"
    words = ["--vary", "model=transformer,mamba", "--vary", "seed=3", "--set", "steps=2", "--json", str(file)]
    done = sweep(tmp_path / "runs", *words)
    assert done.exit_code == 0, done.output
    data = json.loads(file.read_text())
    assert [(row["model"], row["seed"], row["steps"]) for row in data["rows"]] == [
        ("transformer", 3, 2),
        ("mamba", 3, 2),
    ]
    assert [row["set model"] for row in data["rows"]] == ["transformer", "mamba"]
    runs = [str(tmp_path / "runs" / f"model={name}-seed=3") for name in ("transformer", "mamba")]
    again = CliRunner().invoke(app, ["evaluate", runs[1], "--rows", "4", "--json", "-"])
    assert json.loads(again.output)["rows"][0]["set model"] == "mamba"
    RunFolder(runs[0]).tell_apart({"seed": "3"})
    steps = CliRunner().invoke(app, ["bench", "steps", *runs, "--json", "-"])
    assert [row.get("set model") for row in json.loads(steps.output)["rows"]] == [None, "mamba"]
    RunFolder(runs[0]).tell_apart(RunFolder(runs[1]).varied | {"model": "transformer"})
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.json")}
    assert sweep(tmp_path / "runs", *words).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.json")} == kept


def row(accuracy, reads, **more):
    return {"accuracy": accuracy, "reads": reads, "accuracy_recurring": None, "accuracy_novel": accuracy, **more}


def test_the_table_fits_and_tells_of_seeds(tmp_path):
    every = jobs("mqar", tmp_path, {"model": ["transformer", "cram"], "optimizer.rate": ["2e-3"], "seed": list("012")})
    counts = {"pairs": 1.0, "steps": 12_000, "parameters": 2_714_271, "seconds": 12_345.6}
    accuracies = (0.9996, 0.9995, 0.9694, 1.0, 0.99)
    rows = {job.folder.name: row(x, 1 - x, **counts) for job, x in zip(every, accuracies, strict=False)}
    lines = list(_told(every, rows, 80))
    assert lines == [
        "model        rate  seed  accuracy  reads    novel    pairs    secs  params",
        "transformer  2e-3  0       99.96%  0.04%   99.96%  100.00%  12,346   2.71M",
        "transformer  2e-3  1       99.95%  0.05%   99.95%  100.00%  12,346   2.71M",
        "transformer  2e-3  2       96.94%  3.06%   96.94%  100.00%  12,346   2.71M",
        "cram         2e-3  0      100.00%  0.00%  100.00%  100.00%  12,346   2.71M",
        "cram         2e-3  1       99.00%  1.00%   99.00%  100.00%  12,346   2.71M",
        "cram         2e-3  2            –      –        –        –       –       –",
        "no room for steps: --json FILE has all",
        "",
        "median of the seeds, and the worst:",
        "model        rate  seeds  accuracy   worst  reads   most",
        "transformer  2e-3      3    99.95%  96.94%  0.05%  3.06%",
        "cram         2e-3      2    99.50%  99.00%  0.50%  1.00%",
    ]
    assert "steps" in next(_told(every, rows, 100))
    assert "recur" not in next(_told(every, rows, 100)), "it is empty"
    one = jobs("mqar", tmp_path, {"seed": ["0"]})
    assert list(_told(one, {"seed=0": row(0.5, 1.0)}, 80)) == [
        "seed  accuracy    reads   novel",
        "0       50.00%  100.00%  50.00%",
    ]


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path):
    (tmp_path / "runs" / "rate=2.5e-4").mkdir(parents=True)
    (tmp_path / "runs" / "rate=2.5e-4" / "config.json").write_text("broken")
    done = sweep(tmp_path / "runs", "--vary", "optimizer.rate=2.5e-4,1e-3", "--set", "steps=1")
    assert done.exit_code == 1
    assert "rate=2.5e-4: failed: torchcram: " in done.output
    assert "1 of 2 runs are not done" in done.output
    assert {file.name for file in (tmp_path / "runs").glob("*.log")} == {"rate=2.5e-4.log", "rate=1e-3.log"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vary", "steps=1,0"], "steps=0: steps = 0 is not possible"),
        (["--vary", "model=cram,mambo"], "model=mambo: model = 'mambo' is not possible"),
        (["--vary", "seed=0", "--set", "model.depth=3"], "seed=0: "),
        (["--vary", "seed=0", "--vary", "seed=1"], "--vary seed is given twice"),
        (["--vary", "model=cram,mamba", "--model", "mamba"], "model cannot both be varied and be given"),
        (["--vary", "steps=1,2", "--set", "steps=3"], "steps cannot both be varied and be given"),
    ],
)
def test_what_cannot_be_trained_is_told_before_anything_is(words, message, tmp_path):
    done = sweep(tmp_path / "runs", *words)
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "runs").exists()


def test_other_held_out_sequences_are_evaluated_anew_and_settings_have_no_order(tmp_path):
    words = ["--vary", "seed=0", "--set", "steps=1", "--json", "-"]
    assert json.loads(sweep(tmp_path / "runs", *words).stdout)["rows"][0]["rows"] == 4
    again = sweep(tmp_path / "runs", "--rows", "8", *words)
    assert json.loads(again.stdout)["rows"][0]["rows"] == 8
    turned = ["sweep", "srcd", "--out", str(tmp_path / "runs"), "--rows", "8", "--set", "steps=1", *SMALL]
    assert CliRunner().invoke(app, [*turned, "--vary", "seed=0"]).exit_code == 0


def test_a_sweep_that_was_stopped_goes_on_where_it_was(tmp_path):
    words = ["sweep", "srcd", "--out", "runs", "--rows", "4", *SMALL, "--vary", "seed=0,1", "--set", "steps=3000"]
    words += ["--set", "save_every=5", "--set", "evaluate_every=5", "--workers", "1"]
    process = subprocess.Popen([sys.executable, "-m", "torchcram", *words], cwd=tmp_path, stderr=subprocess.PIPE)
    first = tmp_path / "runs" / "seed=0"
    begin = time.monotonic()
    while not (first / "metrics.jsonl").exists() and time.monotonic() - begin < 100:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    assert "stopping all runs, with checkpoints" in process.communicate(timeout=60)[1].decode()
    assert process.returncode == 1
    assert "stopped at step" in (tmp_path / "runs" / "seed=0.log").read_text()
    assert not (tmp_path / "runs" / "seed=1").exists()
    (job,) = [job for job in jobs("srcd", tmp_path / "runs", {"seed": ["0", "1"]}) if job.begun]
    assert next(job.commands("cpu", 4))[-1] == "--resume"


def test_a_sweep_ends_in_time_and_goes_on_with_the_same_command(tmp_path):
    words = ["--vary", "seed=0,1", "--set", "steps=100000", "--workers", "1"]
    done = sweep(tmp_path / "runs", *words, "--minutes", "0.25")
    assert done.exit_code == 1
    assert "2 of 2 runs are not done; the same command goes on with them" in done.output
    assert (tmp_path / "runs" / "seed=0.log").exists()
    assert not (tmp_path / "runs" / "seed=1").exists()


def test_a_folder_holds_one_sweep(tmp_path):
    out = tmp_path / "runs"
    assert sweep(out, "--vary", "seed=0", "--set", "steps=1").exit_code == 0
    assert sweep(out, "--vary", "seed=0,1", "--set", "steps=1").exit_code == 0
    other = sweep(out, "--vary", "seed=0", "--set", "steps=2")
    assert other.exit_code == 1
    assert "choose another folder" in other.stderr


def test_runs_that_share_a_process_come_out_as_alone(tmp_path):
    """Nothing of a run is left behind for the next."""
    words = ["--set", "steps=12", "--set", "evaluate_every=4", "--set", "consolidation.check_every=2"]
    assert sweep(tmp_path / "runs", *words, "--vary", "seed=0,1", "--workers", "1").exit_code == 0
    alone = ["train", "srcd", "--out", str(tmp_path / "alone"), *SMALL, *words, "--set", "seed=1"]
    assert CliRunner().invoke(app, alone).exit_code == 0

    def told(folder: Path):
        timed = ("seconds", "step_seconds")
        return [{name: x for name, x in entry.items() if name not in timed} for entry in RunFolder(folder).metrics()]

    assert told(tmp_path / "runs" / "seed=1") == told(tmp_path / "alone")
    row = json.loads((tmp_path / "runs" / "seed=1" / "row.json").read_text())
    assert row["command"].startswith("torchcram evaluate ")


def test_a_run_is_compiled_for_its_own_sizes_after_another():
    """Or code for one length, met by a second, would become code for any."""
    symbolic = []

    def backend(graph, inputs):
        symbolic.append(any(isinstance(each, torch.SymInt) for each in inputs))
        return graph.forward

    run = torch.compile(lambda x: x + 1, backend=backend)
    for length in (3, 5):
        run(torch.zeros(length))
        _tidy()
    assert symbolic == [False, False]


def test_a_process_that_does_not_even_begin_fails_its_run_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    done = sweep(tmp_path / "runs", "--vary", "seed=0,1", "--workers", "1")
    assert done.exit_code == 1
    assert "seed=0: failed: without a word" in done.output.replace("\n", "")
    assert "2 of 2 runs are not done" in done.output


def test_a_worker_that_dies_is_replaced(tmp_path):
    """A command that takes its process with it fails, and the next one has another process."""
    worker = Worker(dict(os.environ))
    assert worker.call(["--help"], tmp_path / "log") == 0
    assert "torchcram" in (tmp_path / "log").read_text()
    worker.stop()
    assert worker.call(["--help"], tmp_path / "log") != 0
    worker.close()
