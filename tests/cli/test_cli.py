"""The command line: quick help, no needless imports, commands that do what they say."""

import json
import resource
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from torchcram import __version__
from torchcram.bench import cpu
from torchcram.cli.main import app

HELP_CPU_SECONDS = 0.5


def run(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.mark.parametrize("words", [["--help"], ["bench", "--help"], ["bench", "cpu", "--help"], ["--version"]])
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


def test_demo_shows_equal_results_for_every_way_of_feeding():
    output = run("demo").output
    for label in ("whole", "chunks of 100", "one at a time"):
        row = next(line for line in output.splitlines() if label in line)
        difference, reads = (row.split("│")[i].strip() for i in (2, 3))
        assert float(difference) < 1e-5
        assert reads.endswith("%")


def test_bench_cpu_writes_a_result_file(tmp_path, monkeypatch):
    rows = [{"what": "a thing", "length": 4, "ours_ms": 1.0, "baseline": "another", "baseline_ms": 3.0, "ratio": 3.0}]
    monkeypatch.setattr(cpu, "run", lambda: iter(rows))
    path = tmp_path / "bench.json"
    assert "ratio 3" in run("bench", "cpu", "--json", str(path)).output
    data = json.loads(path.read_text())
    assert data["rows"] == rows
    assert data["name"] == "bench-cpu"
