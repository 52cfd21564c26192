"""The command line: quick help, no needless imports, commands that do what they say."""

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import pytest
import torch
from safetensors import SafetensorError
from typer.testing import CliRunner

from tests.report.runs import STORY, write
from torchcram import Cram, __version__, results
from torchcram.bench import cpu, steps
from torchcram.cli.main import app
from torchcram.cli.reproduce import ELSEWHERE
from torchcram.consolidation.config import Schedule
from torchcram.paper.claims import CLAIMS
from torchcram.paper.experiments import EXPERIMENTS, Experiment
from torchcram.tasks import NAMES

HELP_CPU_SECONDS = 0.5


def run(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.mark.parametrize(
    "words", [["--help"], ["bench", "--help"], ["bench", "cpu", "--help"], ["report", "--help"], ["--version"]]
)
def test_help_does_not_import_torch(words):
    probe = (
        "import sys\nfrom torchcram.cli.main import app\n"
        f"try:\n    app({words!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'scipy', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)


def test_help_takes_little_cpu_time():
    def children() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    subprocess.run([sys.executable, "-m", "torchcram", "--help"], check=True, capture_output=True)
    before = children()
    subprocess.run([sys.executable, "-m", "torchcram", "--help"], check=True, capture_output=True)
    assert children() - before < HELP_CPU_SECONDS


def test_version():
    assert run("--version").output == f"torchcram {__version__}\n"


def test_unknown_command_fails():
    assert run("attend").exit_code != 0


def test_demo_trains_evaluates_and_reports(tmp_path):
    out = tmp_path / "demo"
    small = [f"--set={s}" for s in ("steps=4", "batch=2", "evaluate_rows=2", "evaluate_every=2", "task.length=64")]
    first = run("demo", "--out", str(out), *small).output
    assert "never released" in first
    assert "accuracy" in first
    row = json.loads((out / "result.json").read_text())["rows"][0]
    assert (row["steps"], row["length"], row["reads"]) == (4, 64, 1.0)
    assert "<svg" in (out / "report.html").read_text()
    again = run("demo", "--out", str(out)).output
    assert "is complete: all 4 steps are done" in again
    assert run("demo", "--out", str(out), "--set", "seed=1").exit_code == 1


def test_export_writes_a_model_that_can_be_loaded(tmp_path):
    run("train", "srcd", "--out", str(tmp_path / "run"), *SMALL, "--set", "steps=1")
    done = run("export", str(tmp_path / "run"), "--out", str(tmp_path / "model"))
    assert "from_pretrained" in done.output
    assert Cram.from_pretrained(tmp_path / "model").config.episodic.trained_length is not None


def test_staleness_tells_of_each_run(tmp_path):
    out = str(tmp_path / "run")
    run("train", "srcd", "--out", out, *SMALL, "--set", "steps=1")
    few = ("--rows", "2", "--positions", "100")
    told = run("staleness", out, *few).output
    assert "override 50%" in told
    assert "alarm:" in told
    rows = json.loads(run("staleness", out, out, *few, "--json", "-").output)["rows"]
    assert len(rows) == 14
    assert rows[0]["what"] == "no override"
    assert (rows[0]["seed"], rows[0]["trained_overridden"], rows[0]["signal"]) == (0, 0.0, "quality")


def test_evaluate_refuses_a_task_of_other_keys(tmp_path):
    run("train", "srcd", "--out", str(tmp_path / "run"), *SMALL, "--set", "steps=1")
    done = run("evaluate", str(tmp_path / "run"), "--set", "task.values=9")
    assert done.exit_code == 1
    assert "made for other keys or values" in done.stderr


def test_bench_cpu_writes_a_result_file(tmp_path, monkeypatch):
    rows = [{"what": "a thing", "length": 4, "ours_ms": 1.0, "baseline": "another", "baseline_ms": 3.0, "ratio": 3.0}]
    monkeypatch.setattr(cpu, "run", lambda: iter(rows))
    path = tmp_path / "bench.json"
    assert "ratio 3" in run("bench", "cpu", "--json", str(path)).output
    data = json.loads(path.read_text())
    assert data["rows"] == rows
    assert data["name"] == "bench-cpu"


def test_commands_know_a_baseline_from_cram(tmp_path):
    out, model = str(tmp_path / "run"), str(tmp_path / "model")
    run("train", "srcd", "--model", "mamba", "--out", out, *SMALL, "--set", "steps=1")
    assert "never released" not in run("evaluate", out, "--rows", "2").output
    assert "models that choose their reads" in run("evaluate", out, "--worth").stderr
    assert "torchcram.models.load" in run("export", out, "--out", model).output
    assert "is a model folder (an export)" in run("evaluate", model).stderr
    assert "is a model folder (an export)" in run("report", model, "--out", str(tmp_path / "page.html")).stderr
    told = run("report", out, "--out", str(tmp_path / "page.html"))
    assert "looks back at 0 % of the positions" in told.output.replace("\N{NO-BREAK SPACE}", " ").replace("\u202f", " ")
    assert "still reads" not in (tmp_path / "page.html").read_text()
    stale = run("staleness", out, "--rows", "2", "--positions", "500", "--json", "-")
    assert [row.get("no_alarm") is None for row in json.loads(stale.output)["rows"]][-1] is False


def test_evaluate_can_do_without_reads(tmp_path):
    out = str(tmp_path / "run")
    run("train", "srcd", "--out", out, *SMALL, "--set", "steps=1")
    (row,) = json.loads(run("evaluate", out, "--rows", "2", "--reads", "off", "--json", "-").output)["rows"]
    assert (row["routing"], row["reads"]) == ("off", 0)
    assert "with --kept" in run("evaluate", out, "--reads", "off", "--kept").stderr
    assert "reads = 'no' is not possible" in run("evaluate", out, "--reads", "no").stderr
    other = str(tmp_path / "other")
    run("train", "srcd", "--model", "mamba", "--out", other, *SMALL, "--set", "steps=1")
    assert "a model that has no other way" in run("evaluate", other, "--reads", "off").stderr


def test_bench_steps_compares_runs(tmp_path, monkeypatch):
    runs = [str(tmp_path / name) for name in ("with", "without")]
    for out, rank in zip(runs, (64, 0), strict=True):
        run("train", "srcd", "--out", out, *SMALL, "--set", "steps=1", "--set", f"model.contradiction.rank={rank}")
    refused = run("bench", "steps", *runs)
    assert refused.exit_code == 1
    assert "not come far enough" in refused.stderr

    def timed(trainers, state_length):
        return [{"step_ms": 1.0 + i, "state_length": state_length} for i in range(len(trainers))]

    monkeypatch.setattr(steps, "run", timed)
    path = tmp_path / "bench.json"
    assert "step_ms 2" in run("bench", "steps", *runs, "--state-length", "9", "--json", str(path)).output
    data = json.loads(path.read_text())
    assert [(row["what"], row["step_ms"], row["seed"]) for row in data["rows"]] == [("with", 1, 0), ("without", 2, 0)]
    assert (data["name"], data["seeds"]) == ("bench-steps", [0])
    assert [row["state_length"] for row in data["rows"]] == [9, 9]


SMALL = ["--set", "steps=20", "--set", "evaluate_every=10", "--set", "evaluate_rows=8", "--set", "batch=4"]
SMALL += ["--set", "task.length=64", "--set", "task.novel_keys=16", "--set", "save_every=5"]


def test_train_then_evaluate(tmp_path):
    out = str(tmp_path / "run")
    trained = run("train", "srcd", "--out", out, *SMALL)
    assert trained.exit_code == 0
    assert "acquire     step     20/20" in trained.output
    assert "never released" in trained.output
    found = run("evaluate", out, "--rows", "8", "--json", "-")
    (row,) = json.loads(found.output)["rows"]
    assert row["steps"] == 20
    assert row["reads"] == 1
    assert row["released_at"] is None
    assert row["length"] == 64
    (longer,) = json.loads(run("evaluate", out, "--rows", "2", "--set", "task.length=128", "--json", "-").output)[
        "rows"
    ]
    assert longer["length"] == 128
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_run_for_which_no_read_is_needed_can_be_evaluated(tmp_path):
    out = str(tmp_path / "run")
    run("train", "srcd", "--out", out, *SMALL, "--set", "task.recurring=1")
    shown = run("evaluate", out, "--rows", "8")
    assert shown.exit_code == 0
    assert "100.00% of the positions; none is needed" in shown.output


def test_evaluate_tells_whether_quality_is_kept_and_what_reads_are_worth(tmp_path, monkeypatch):
    out = str(tmp_path / "run")
    assert run("train", "srcd", "--out", out, *SMALL).exit_code == 0
    (row,) = json.loads(run("evaluate", out, "--rows", "8", "--kept", "--json", "-").output)["rows"]
    assert "excess" not in row, "nothing was promised"
    out = str(tmp_path / "released")
    monkeypatch.setattr("torchcram.consolidation.gate.CompetenceGate.observe", lambda *_: ["value"])
    run("train", "srcd", "--out", out, *SMALL, "--set", "consolidation.check_every=5")
    (row,) = json.loads(run("evaluate", out, "--rows", "8", "--kept", "--worth", "--json", "-").output)["rows"]
    assert row["released_at"] == 5
    assert row["against"] == "dense now and at release"
    assert row["tolerance"] == 0.01
    assert {"nats_per_read", "nats_per_skip"} <= set(row)
    said = run("evaluate", out, "--rows", "8", "--kept", "--worth").output
    verdict = "within" if row["excess"] <= 0.01 else "more than"
    how = f"{abs(row['excess']):.4f} nats a scored position {'worse' if row['excess'] > 0 else 'better'}"
    assert f"{how} than dense now and at release, {verdict} the 0.01" in said
    assert "nats gained by a read" in said


def test_train_stops_on_a_signal_and_resumes(tmp_path):
    out = str(tmp_path / "run")
    words = [sys.executable, "-m", "torchcram", "train", "srcd", "--out", out, *SMALL, "--set", "steps=100000"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    for _ in range(2):  # what is about to happen, then the first evaluation
        process.stdout.readline()
    second = run("train", "srcd", "--out", out, "--resume")
    assert second.exit_code == 1
    assert "is being written to by another process" in second.stderr
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "go on with --resume" in rest
    steps = int(rest.split("stopped at step ")[1].split(";")[0])
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"steps": 100000', f'"steps": {steps + 3}'))
    resumed = run("train", "srcd", "--out", out, "--resume")
    assert f"step {steps + 3:>6}/{steps + 3}" in resumed.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "chess"], "task = 'chess' is not possible"),
        (["train", "srcd", "--preset", "huge"], "preset = 'huge' is not possible"),
        (["train", "srcd", "--set", "optimizer.rat=1"], "optimizer has fields: rate"),
        (["train", "srcd", "--set", "steps"], "--set 'steps' is not possible; allowed: a.b=c"),
        (["train", "srcd", "--resume"], "it has no config.json"),
        (["train", "srcd", "--device", "gpu"], "device = 'gpu' is not possible; allowed: 'cpu' or 'cuda'"),
        (["train", "srcd", "--model", "oracle"], "model = 'oracle' is not possible"),
        (["train", "mqar", "--set", "task=64"], "its settings are task.…, such as --set task.length=64"),
        (["train", "srcd", "--set", "schedule=paper"], "--set schedule=… is not possible; use --schedule"),
        (["train", "srcd", "--set", "start.run=none"], "none is not a run folder"),
        (["train", "srcd", "--set", "start.run=none", "--set", 'start.frozen=["soul"]'], "layers have no 'soul'"),
        (["train", "mqar", "--model", "entropy"], "give the task a smaller vocabulary (task.vocabulary)"),
        (["train", "text", "--set", "task.train=nope.txt"], "task.train = 'nope.txt': there is no such file"),
        (["train", "srcd", "--set", "preset=small"], "--set preset=… is not possible; use --preset"),
        (["train", "srcd", "--set", "name=mamba"], "--set name=… is not possible; use --model"),
        (["train", "srcd", "--schedule", "none"], "schedule = 'none' is not possible"),
    ],
    ids=" ".join,
)
def test_mistakes_are_told(words, message, tmp_path):
    done = run(*words, "--out", str(tmp_path / "run"))
    assert done.exit_code == 1
    assert message in done.stderr
    assert not (tmp_path / "run").exists(), "nothing stands in the way of the next try"


@pytest.mark.parametrize("command", [["train"], ["sweep", "--vary", "seed=0"]], ids=["train", "sweep"])
def test_a_file_where_a_run_should_go_is_told(command, tmp_path):
    (tmp_path / "notes.md").write_text("mine")
    done = run(*command, "srcd", "--out", str(tmp_path / "notes.md"))
    assert done.exit_code == 1
    assert "notes.md is a file; runs are kept in folders, so give another name: --out FOLDER" in done.stderr
    assert (tmp_path / "notes.md").read_text() == "mine"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "words", [["train", "srcd", "--out", "run"], ["evaluate", "run"], ["bench", "data"], ["bench", "steps", "run"]]
)
def test_a_gpu_that_is_not_there_is_told(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*words, "--device", "cuda")
    assert done.exit_code == 1
    assert "no GPU here that torch can use" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["novel"], "the run has task = 'srcd', not 'novel'"),
        (["srcd", "--preset", "medium"], "the run has preset = 'tiny', not 'medium'"),
        (["srcd", "--schedule", "paper"], "the run has schedule = 'adaptive', not 'paper'"),
        (["srcd", "--bf16"], "a resumed run keeps its settings; bf16=true is for new ones"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_resumed_run_keeps_its_settings(words, message, tmp_path):
    out = str(tmp_path / "run")
    run("train", "srcd", "--out", out, *SMALL, "--set", "steps=2")
    done = run("train", *words, "--out", out, "--resume")
    assert done.exit_code == 1
    assert message in done.stderr


def test_a_run_stopped_before_its_first_checkpoint_starts_again(tmp_path):
    out = tmp_path / "run"
    run("train", "srcd", "--out", str(out), *SMALL, "--set", "steps=2")
    shutil.rmtree(out / "checkpoints")
    done = run("train", "srcd", "--out", str(out), "--resume")
    assert "has no checkpoint yet: starting from the first step" in done.output
    assert (out / "checkpoints" / "step-00000002").is_dir()


def test_after_training_signals_do_what_they_did(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    run("train", "srcd", "--out", str(tmp_path / "run"), *SMALL, "--set", "steps=1")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("torchcram.training.checkpoint.save_file", full)
    done = run("train", "srcd", "--out", str(tmp_path / "run"), *SMALL, "--set", "steps=1")
    assert done.exit_code == 1
    assert "could not be written: No space left on device" in done.stderr


def test_evaluate_needs_a_run(tmp_path):
    done = run("evaluate", str(tmp_path))
    assert done.exit_code == 1
    assert "is not a run folder" in done.stderr


def test_report_writes_a_page_and_a_picture(tmp_path):
    one, other = write(tmp_path / "one"), write(tmp_path / "other", STORY[:2])
    page, picture = tmp_path / "out" / "page.html", tmp_path / "picture.svg"
    done = run("report", str(one), str(other), "--out", str(page), "--picture", str(picture))
    assert done.exit_code == 0
    assert "one: Attention fell from 100 % to 1.72 % of the positions" in done.output
    assert "other: The model is still learning to read" in done.output
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert picture.read_text(encoding="utf-8").startswith("<svg ")


def test_report_needs_runs(tmp_path):
    done = run("report", str(tmp_path), "--out", str(tmp_path / "page.html"))
    assert done.exit_code == 1
    assert "is not a run folder: it has no config.json" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_collect_puts_result_files_together(tmp_path):
    for name, seed in (("a", 0), ("b", 1), ("c", 2)):
        results.write(tmp_path / f"{name}.json", name=name, rows=[{"model": name, "seed": seed}], seeds=[seed])
    parts = [f"final={tmp_path / 'a.json'}", f"rate={tmp_path / 'b.json'}"]
    out = tmp_path / "both.json"
    found = CliRunner().invoke(app, ["collect", *parts, "--out", str(out), "--setting", "Few steps."])
    assert found.exit_code == 0, found.output
    data = results.read(out)
    assert (data["name"], data["setting"], data["seeds"]) == ("both", "Few steps.", [0, 1])
    assert [(row["what"], row["model"]) for row in data["rows"]] == [("final", "a"), ("rate", "b")]
    found = CliRunner().invoke(app, ["collect", f"cost={tmp_path / 'c.json'}", "--onto", str(out), "--out", str(out)])
    assert found.exit_code == 0, found.output
    data = results.read(out)
    assert data["setting"] == "Few steps."
    assert [row["model"] for row in data["rows"]] == ["a", "b", "c"]
    (tmp_path / "no.json").write_text("# Not JSON")
    for words, message in (
        ([parts[0], "--onto", str(out)], "the same result is given twice: a, seed 0"),
        (
            [f"finale={tmp_path / 'c.json'}", "--onto", str(out)],
            "what = 'finale' is not possible; allowed: final, rate",
        ),
        ([f"final={tmp_path / 'no.json'}", "--setting", "x"], "no.json is not a result file"),
    ):
        found = CliRunner().invoke(app, ["collect", *words, "--out", str(out)])
        assert found.exit_code == 1
        assert message in found.output.replace("\n", " ")
    found = CliRunner().invoke(app, ["collect", parts[0], "--out", str(out)])
    assert found.exit_code != 0
    assert "--setting is needed" in found.output
    found = CliRunner().invoke(app, ["collect", "a.json", "--out", str(out), "--setting", ""])
    assert found.exit_code != 0
    assert "what=FILE" in found.output


def test_help_lists_every_task(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    told = CliRunner().invoke(app, ["train", "--help"]).output
    for name in NAMES:
        assert re.search(rf"[ (]{name}[,.;)]", told), name
    for name in get_args(Schedule):
        assert re.search(rf" {name}( \(default\))?: ", told), name


def test_reproduce_lists_experiments():
    lines = run("reproduce", "--list").output.splitlines()
    assert [line.split()[0] for line in lines] == [*EXPERIMENTS, "all", *ELSEWHERE]
    lines = lines[: -len(ELSEWHERE)]
    counted = [line for line in lines if line.split()[0] not in EXPERIMENTS or not EXPERIMENTS[line.split()[0]].needs]
    assert len(counted) == len(lines) - 1
    assert all(re.search(r"\(runs: ci \d+, cpu \d+, gpu \d+\)$", line) for line in counted)


@pytest.fixture
def calculated(monkeypatch):
    """An experiment that trains nothing."""
    kept = {"theory": replace(EXPERIMENTS["theory"], train=lambda _: iter(()))}
    monkeypatch.setattr("torchcram.cli.reproduce.EXPERIMENTS", {**EXPERIMENTS, **kept})


@pytest.mark.usefixtures("calculated")
def test_reproduce_writes_rows_that_name_claims(tmp_path):
    done = run("reproduce", "theory", "--scale", "ci", "--out", str(tmp_path), "--json", str(tmp_path / "x" / "t.json"))
    assert "static router that guesses" in done.output
    assert done.stderr.endswith(f"written: {tmp_path / 'paper-theory.json'}\n")
    data = results.read(tmp_path / "paper-theory.json")
    assert data == results.read(tmp_path / "x" / "t.json")
    assert data["name"] == "paper-theory"
    assert {row["claim"] for row in data["rows"]} <= set(CLAIMS)


def test_reproduce_runs_all_that_are_not_there_and_tells_of_those_that_fail(tmp_path, monkeypatch):
    def fails(setup):
        raise ValueError("no power")

    def one(_):
        yield {"what": "a row", "claim": "theory/opt"}

    experiments = {"good": Experiment(about="", calculate=one), "bad": Experiment(about="", train=fails)}
    monkeypatch.setattr("torchcram.cli.reproduce.EXPERIMENTS", experiments)
    done = run("reproduce", "all", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert re.match(r"good: 1 rows, \d+ s\n", done.stdout)
    assert "bad: no power" in done.stderr
    assert "not done: bad; the same command goes on with them" in done.stderr
    kept = (tmp_path / "paper-good.json").stat().st_mtime_ns
    experiments["bad"] = Experiment(about="", calculate=one)
    again = run("reproduce", "all", "--out", str(tmp_path))
    assert again.exit_code == 0
    assert "good: is there already" in again.stdout
    assert (tmp_path / "paper-good.json").stat().st_mtime_ns == kept
    other = run("reproduce", "all", "--scale", "cpu", "--out", str(tmp_path))
    assert "already" not in other.stdout


@pytest.mark.usefixtures("calculated")
def test_reproduce_prints_nothing_but_json_if_asked(tmp_path):
    done = run("reproduce", "theory", "--out", str(tmp_path), "--json", "-")
    assert json.loads(done.stdout)["rows"] == results.read(tmp_path / "paper-theory.json")["rows"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gravity"], f"experiment = 'gravity' is not possible; allowed: {', '.join(EXPERIMENTS)}, all"),
        (["all", "--json", "x.json"], "--json = 'x.json' is not possible; allowed: nothing with several"),
        (["theory", "gravity"], "experiment = 'gravity' is not possible"),
        (["redundancy"], "redundancy has a command of its own: torchcram probe"),
        (["theory", "--data", "text"], "--data 'text' is not possible; allowed: name=PATH"),
        (
            ["transfer", "--data", "physionet=."],
            "--data = 'physionet' is not possible; allowed: p12, wearable, activity",
        ),
        (["theory", "--data", "text=nowhere.txt"], "--data text: there is no nowhere.txt"),
        (["theory", "--scale", "huge"], "scale = 'huge' is not possible; allowed: 'ci' or 'cpu' or 'gpu'"),
        ([], "--list says which there are"),
    ],
)
def test_reproduce_refuses_what_it_does_not_know(words, said, tmp_path):
    done = run("reproduce", *words, "--out", str(tmp_path))
    assert done.exit_code != 0
    assert said in done.output.replace("│", "").replace("\n", " ")
    assert not list(tmp_path.iterdir())
