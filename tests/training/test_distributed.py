"""Two processes do what one does with the whole batch, and can go on from each other's checkpoints."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from tests.cli.test_cli import SMALL
from tests.training.scenarios import RELEASE, STEPS, losses, resumed, small
from torchcram.cli.main import app
from torchcram.memory import RoutingPolicy
from torchcram.training.decisions import load_decisions

BOTH = pytest.mark.parametrize("how", ["ddp", "fsdp"])


def torchrun(*words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """One process with the whole batch: its losses, its trainer at the end, and the folder of its checkpoint."""
    folder = tmp_path_factory.mktemp("processes")
    trainer = small()
    found = losses(trainer, 3)
    trainer.save(folder / "one")
    return found + losses(trainer, STEPS), trainer, folder


@pytest.fixture(scope="module")
def two(one):
    """What each of two processes found in all scenarios."""
    folder = one[2]
    started = torchrun("-m", "tests.training.scenarios", str(folder))
    _, errors = started.communicate(timeout=180)
    assert started.returncode == 0, errors
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in (0, 1)]


@BOTH
def test_losses_are_those_of_one_process(how, one, two):
    """With all tokens reading, and with routed ones at a price: the noise, the means and the gradients agree."""
    assert 0 < RELEASE < STEPS
    assert two[0][f"{how} losses"] == pytest.approx(one[0], rel=1e-5)
    assert two[1][f"{how} losses"] == two[0][f"{how} losses"]


@BOTH
def test_weights_are_those_of_one_process(how, one, two):
    for name, expected in one[1].model.named_parameters():
        torch.testing.assert_close(
            torch.tensor(two[0][f"{how} weights"][name]), expected.detach(), rtol=1e-4, atol=1e-5
        )
    assert two[0][f"{how} sharded"] == (how == "fsdp")


@BOTH
def test_evaluation_is_that_of_one_process_and_alike_in_all(how, one, two):
    """Alike to the bit, since releases and prices are decided on it in each process."""
    assert two[0][f"{how} evaluation"] == two[1][f"{how} evaluation"]
    expected = one[1].evaluate(RoutingPolicy())
    assert two[0][f"{how} evaluation"] == pytest.approx(expected.row() | expected.losses, rel=1e-5)
    assert two[0][f"{how} counts"] == [expected.ledger.positions, *expected.ledger.pair_counts]


@BOTH
def test_decisions_are_those_of_the_whole_batch(how, one, two):
    trainer, folder = one[1:]
    trainer.decisions.save(folder / "one" / "decisions")
    expected = load_decisions(folder / "one" / "decisions")
    for name, values in two[0][f"{how} decisions"].items():
        assert values == expected[name][:6].tolist(), name


@BOTH
def test_a_step_spoiled_in_one_process_is_left_out_in_all(how, two):
    assert all(found[f"{how} spoiled"] and found[f"{how} untouched"] for found in two)


@BOTH
def test_two_processes_go_on_from_one(how, one, two):
    assert two[0][f"one to {how}"]["step"] == 3
    assert two[0][f"one to {how}"]["losses"] == pytest.approx(one[0][3:], rel=1e-5)


@BOTH
def test_one_process_goes_on_from_two(how, one, two):
    folder = one[2] / how
    assert [len(list(path.glob("shard-*.safetensors"))) for path in sorted(folder.glob("step-*"))] == [2, 2]
    found = resumed(folder)
    assert found["step"] == 6
    assert found["losses"] == pytest.approx(one[0][6:], rel=1e-5)


@pytest.mark.parametrize("change", ["ddp to fsdp", "fsdp to ddp"])
def test_sharded_and_whole_models_go_on_from_each_other(change, one, two):
    assert two[0][change]["step"] == 6
    assert two[0][change]["losses"] == pytest.approx(one[0][6:], rel=1e-5)


def test_a_damaged_shard_sends_all_processes_to_the_checkpoint_before(one, two):
    assert [found["damaged"]["step"] for found in two] == [3, 3]
    assert two[0]["damaged"]["losses"] == pytest.approx(one[0][3:], rel=1e-5)
    (said,) = two[0]["said"]
    assert "step-00000006 is damaged: shard-00002" in said
    assert two[1]["said"] == []


def test_all_processes_go_back_together(two):
    """Five steps without a finite loss, then from step 0 again at half the learning rate."""
    assert [found["went back"] for found in two] == [[7, 5, 0.5]] * 2


def test_a_full_disk_in_one_process_stops_all_and_leaves_the_checkpoints_before(two):
    before = ["step-00000003", "step-00000006"]
    assert two[0]["full disk"] == [["OSError", *before], ["OSError", *before]]
    assert two[1]["full disk"] == [["PeerError", *before], ["OSError", *before]]


def test_a_signal_to_one_process_stops_all_at_the_same_step(two):
    assert [found["stopped at"] for found in two] == [2, 2]


def test_train_with_torchrun_then_stop_evaluate_and_resume_alone(tmp_path):
    out = str(tmp_path / "run")
    words = ["train", "srcd", "--out", out, "--parallel", "fsdp", *SMALL, "--set", "steps=100000"]
    started = torchrun("-m", "torchcram", *words)
    assert "steps 1 to 100000" in started.stdout.readline()
    assert "acquire     step     10/100000" in started.stdout.readline()
    started.send_signal(signal.SIGTERM)
    rest, errors = started.communicate(timeout=60)
    assert rest.count("stopped at step") == 1, errors
    steps = int(rest.split("stopped at step ")[1].split(";")[0])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(10, steps + 1, 10))

    found = CliRunner().invoke(app, ["evaluate", out, "--rows", "8", "--json", "-"], catch_exceptions=False)
    assert json.loads(found.output)["rows"][0]["steps"] == steps
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"steps": 100000', f'"steps": {steps + 3}'))
    alone = CliRunner().invoke(app, ["train", "srcd", "--out", out, "--resume"], catch_exceptions=False)
    assert f"step {steps + 3:>6}/{steps + 3}" in alone.output


def test_what_cannot_be_shared_is_told_once_and_stops_all(tmp_path):
    started = torchrun("-m", "torchcram", "train", "srcd", "--out", str(tmp_path / "run"), "--set", "batch=5")
    _, errors = started.communicate(timeout=60)
    assert started.returncode != 0
    message = "torchcram: batch = 5 is not possible; allowed: a multiple of the number of processes, which is 2"
    assert errors.count(message) == 1
    assert not (tmp_path / "run" / "config.json").exists()
