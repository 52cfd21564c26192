"""The recording for the memory explorer: what a stream of positions does is what the whole sequence does."""

import pytest
import torch

from tests.cli.test_cli import run
from torchcram import results, tasks
from torchcram.memory import RoutingPolicy
from torchcram.models import Cram
from torchcram.report import explorer
from torchcram.training.explore import curves, moments, record
from torchcram.training.recipes import configure

SETTINGS = {"length": 48, "novel_keys": 64, "values": 8, "queries": 0.1}
SLOTS = 8


def model_and_task(**changes):
    torch.manual_seed(0)
    config = configure("srcd", "tiny", settings=SETTINGS, changes={"model.episodic.slots": SLOTS, **changes})
    return Cram(config.model).eval(), tasks.make("srcd", **SETTINGS)


def parsed(rows):
    """Of each layer: actions, reads by position, evictions by position."""
    return [explorer._layer(row) for row in rows if row["what"] == "layer"]


@pytest.mark.parametrize("policy", [None, RoutingPolicy(reads="dense")])
def test_positions_do_what_they_do_in_the_whole_sequence(policy):
    model, task = model_and_task()
    examples = task.batch(seed=0, step=0, rows=range(1))
    rows = list(record(model, task, examples, policy))
    with torch.no_grad():
        out = model(examples.inputs, dt=examples.dt, policy=policy)
    for number, layer in enumerate(parsed(rows)):
        assert layer["actions"] == "".join(map(str, out.routing[0, :, number].tolist()))
        assert layer["reads"].keys() == set(out.routing[0, :, number].eq(1).nonzero().squeeze(1).tolist())
        torch.testing.assert_close(torch.tensor(layer["quality"]), out.quality[0, :, number], atol=0.006, rtol=0)
    assert rows[-1]["answers"].split() == [str(x) for x in out.predictions["value"][0].argmax(-1).tolist()]


def test_reads_are_of_what_the_buffer_holds():
    model, task = model_and_task()
    examples = task.batch(seed=0, step=0, rows=range(1))
    for layer in parsed(record(model, task, examples, RoutingPolicy(reads="dense"))):
        held = set()
        for t in range(task.length):
            found = dict(layer["reads"][t])
            assert found.keys() <= held
            assert sum(found.values()) <= 1.05
            assert not held or len(held) == min(t, SLOTS)
            held = (held | {t}) - set(layer["evicted"].get(t, ()))
    assert layer["evicted"]


def test_moments_lie_on_both_sides_of_release():
    steps = list(range(0, 601, 25))
    found = moments(steps, 325)
    assert found[0] == 0
    assert found[-1] == 600
    assert sum(step < 325 for step in found) == 3
    assert sum(step >= 325 for step in found) == 4
    assert moments([0, 5], None) == [0, 5]
    assert moments([7], None) == [7]


def test_evaluations_become_rows():
    entry = {
        "step": 5,
        "phase": "acquire",
        "reads": 1.0,
        "mean_quality": None,
        "histograms": {"a": [[1, 2], [0, 1]], "b": [[3, 0], [0, 0]]},
    }
    (row,) = curves([entry])
    assert row["histogram"] == "4 3"
    assert row["reads"] == 1.0
    assert row["mean_quality"] is None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("explored") / "run"
    words = [f"task.{name}={value}" for name, value in SETTINGS.items()]
    words += ["steps=4", "save_every=2", "evaluate_every=2", "evaluate_rows=4", "batch=2", "keep=9"]
    done = run("train", "srcd", "--out", str(path), *(word for each in words for word in ("--set", each)))
    assert done.exit_code == 0
    return path


def test_the_command_records_a_run(trained, tmp_path):
    file = tmp_path / "explored.json"
    done = run("explore", str(trained), "--out", str(file), "--set", f"model.episodic.slots={SLOTS}")
    assert done.exit_code == 0
    data = results.read(file)
    assert all(not isinstance(value, list | dict) for row in data["rows"] for value in row.values())
    found = explorer.data(data)
    assert [moment["step"] for moment in found["moments"]] == [0, 2, 4]
    assert found["slots"] == SLOTS
    assert len(found["kind"]) == SETTINGS["length"]
    kinds = {row["what"] for row in data["rows"]}
    assert kinds == {"sequence", "layer", "answer", "evaluation", "practice"}
    done = run("explore", str(trained), "--at", "4", "--out", str(file))
    assert [moment["step"] for moment in explorer.data(results.read(file))["moments"]] == [4]


@pytest.mark.parametrize("words", [("--at", "3"), ("--at", "x"), ("--set", "task.length=512"), ("--set", "steps=3")])
def test_what_cannot_be_recorded_is_said(trained, tmp_path, words):
    assert run("explore", str(trained), "--out", str(tmp_path / "x.json"), *words).exit_code == 1
    assert not (tmp_path / "x.json").exists()
