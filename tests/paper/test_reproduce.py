"""All experiments by one command: runs first, all of them together, and rows where there is time for them."""

import json
import shutil
from dataclasses import replace

from typer.testing import CliRunner

from tests.paper.trying import TRY
from torchcram import results
from torchcram.cli.main import app
from torchcram.paper.experiments import Experiment
from torchcram.paper.runs import Wanted, train


def run(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_reproduce_trains_first_and_makes_rows_elsewhere_later(tmp_path, monkeypatch):
    """Of several experiments all runs together, each once; rows need nothing but what is kept beside runs."""
    looked = []

    def look(setup, trained):
        looked.append({name: [each.seed for each in runs] for name, runs in trained.items()})

    def rows(setup):
        for each in train(setup, wanted(setup.size))["cram"]:
            yield {"what": "run", "claim": "srcd/reads", "reads": each.row["reads"], "scale": setup.scale}

    def wanted(size):
        return [Wanted(name="cram", changes={"steps": "1"}, seeds=2)]

    one = Experiment(about="", wanted=wanted, look=look, train=rows)
    later = replace(one, staged=lambda setup: [wanted(setup.size), [Wanted(name="third", seeds=3)]])
    monkeypatch.setattr("torchcram.cli.reproduce.EXPERIMENTS", {"one": one, "later": later})
    monkeypatch.setattr("torchcram.cli.reproduce.SIZES", {"ci": replace(TRY, steps=1)})
    words = ("--out", str(tmp_path), "--workers", "1")
    done = run("reproduce", "all", "--train-only", *words)
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["1/2", "2/2", "1/3", "2/3", "3/3"]
    assert looked == [{"cram": [0, 1]}, {"cram": [0, 1], "third": [0, 1, 2]}]
    assert not list(tmp_path.glob("paper-*.json"))
    for folder in tmp_path.glob("runs/*/*/checkpoints"):
        shutil.rmtree(folder)
    for file in tmp_path.glob("runs/*/*/row.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "a GPU far away", "commit": "before"}))
    assert run("reproduce", "one", *words, "--device", "cpu").exit_code == 0
    made = results.read(tmp_path / "paper-one.json")
    assert (made["machine"], len(made["rows"])) == ("a GPU far away", 2)
    assert made["commit"] == f"before, {results.commit()}"
    assert run("reproduce", "one", "--workers", "0").exit_code == 1


def test_several_experiments_are_run_in_the_order_of_their_names(tmp_path, monkeypatch):
    def wanted(seeds):
        return lambda size: [Wanted(name="cram", changes={"steps": str(seeds)}, seeds=seeds)]

    def calculated(_):
        yield {"what": "a row", "claim": "theory/opt"}

    every = {f"of{n}": Experiment(about="", wanted=wanted(n), calculate=calculated) for n in (1, 2, 3)}
    monkeypatch.setattr("torchcram.cli.reproduce.EXPERIMENTS", every)
    monkeypatch.setattr("torchcram.cli.reproduce.SIZES", {"ci": replace(TRY, steps=1)})
    words = ("--out", str(tmp_path), "--workers", "1")
    done = run("reproduce", "of3", "of1", "--train-only", *words)
    assert done.exit_code == 0, done.output
    trained = [line.rpartition("/")[2] for line in done.stderr.splitlines()]
    assert trained == [*(f"steps=3-seed={seed}" for seed in range(3)), "steps=1-seed=0"]
    assert run("reproduce", "of3", "of1", *words).exit_code == 0
    assert sorted(file.name for file in tmp_path.glob("paper-*.json")) == ["paper-of1.json", "paper-of3.json"]
