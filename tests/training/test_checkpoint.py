"""Checkpoints: whole or not there, damage noticed, resumed runs equal to runs that never stopped."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from safetensors import SafetensorError

from tests.training.test_loop import trainer
from torchcram.training import checkpoint, state
from torchcram.training.checkpoint import Checkpoint, newest, save, verified
from torchcram.training.decisions import load_decisions


def trained(size: int = 4) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer after a step that one parameter had no part in."""
    model = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.Linear(size, size))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, size)).sum().backward()
    model[0].bias.grad = None
    optimizer.step()
    return model, optimizer


def some(step: int, size: int = 4) -> Checkpoint:
    return Checkpoint(step=step, tensors=state.tensors(*trained(size)), extra={"note": step})


def refuse(text: str) -> None:
    raise AssertionError(text)


def test_round_trip(tmp_path):
    (model, optimizer), (other, other_optimizer) = trained(), trained()
    found = verified(save(tmp_path, Checkpoint(step=7, tensors=state.tensors(model, optimizer), extra={"note": 7})))
    assert (found.step, found.extra) == (7, {"note": 7})
    state.restore(other, other_optimizer, found)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    mine, theirs = optimizer.state_dict(), other_optimizer.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys() == {0, 2, 3}
    for index, entry in mine["state"].items():
        assert all(torch.equal(theirs["state"][index][key], value) for key, value in entry.items())


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    found = verified(save(tmp_path, some(1)))
    with pytest.raises(ValueError, match=r"another model: 0.bias is \(4,\), expected \(5,\)"):
        state.restore(*trained(5), found)
    deeper = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    with pytest.raises(ValueError, match=r"another model: 2.bias is not there, expected \(4,\)"):
        state.restore(deeper, torch.optim.AdamW(deeper.parameters()), found)


def test_the_last_ones_are_kept(tmp_path):
    for step in (1, 2, 3, 10, 200):
        save(tmp_path, some(step), keep=2)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000010", "step-00000200"]
    assert newest(tmp_path, refuse).step == 200


def test_some_are_always_kept(tmp_path):
    for step in (0, 1, 2, 3, 10):
        save(tmp_path, some(step), keep=1, always=(0, 2))
    assert checkpoint.steps(tmp_path) == [0, 2, 10]


def test_no_checkpoint_is_none(tmp_path):
    assert newest(tmp_path, refuse) is None


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut short", "bit flipped", "gone"])
def test_a_damaged_file_is_noticed_and_the_one_before_used(name, damage, tmp_path):
    save(tmp_path, some(1))
    path = save(tmp_path, some(2)) / name
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut short":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    said = []
    assert newest(tmp_path, said.append).step == 1
    assert len(said) == 1
    assert "step-00000002 is" in said[0]
    assert "the checkpoint before is used instead" in said[0]


def test_a_newer_format_is_refused(tmp_path):
    manifest = save(tmp_path, some(1)) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format_version": 4}))
    with pytest.raises(ValueError, match="has format version 4, this torchcram reads 3"):
        verified(manifest.parent)


def test_no_flipped_bit_of_a_manifest_goes_unseen(tmp_path):
    path = save(tmp_path, some(1)) / "manifest.json"
    data = path.read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 2
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="step-00000001"):
            verified(path.parent)


def test_the_same_step_again_leaves_a_whole_checkpoint_alone_and_replaces_a_damaged_one(tmp_path):
    path = save(tmp_path, some(1)) / "model.safetensors"
    before = path.stat()
    save(tmp_path, some(1))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    path.write_bytes(b"")
    save(tmp_path, some(1))
    assert newest(tmp_path, refuse).step == 1


@pytest.mark.parametrize("where", ["save_file", "_checksum"])
def test_a_full_disk_leaves_the_checkpoints_before(where, tmp_path, monkeypatch):
    save(tmp_path, some(1))

    def full(*_):
        raise (SafetensorError if where == "save_file" else OSError)("No space left on device")

    monkeypatch.setattr(checkpoint, where, full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, some(2))
    monkeypatch.undo()
    assert newest(tmp_path, refuse).step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


WRITER = """
import os, sys
from pathlib import Path
from tests.training.test_checkpoint import some, save
folder = Path(sys.argv[1])
save(folder, some(1, size=600))
print("ready", flush=True)
if os.fork() == 0:
    step = 2
    while True:
        save(folder, some(step, size=600))
        step += 1
os.wait()
"""


def kill_while_saving(folder, delay):
    """Start a process that saves for ever, and kill it, without warning, somewhere in the middle."""
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(folder)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert writer.stdout.readline() == b"ready\n"
    time.sleep(delay)
    os.killpg(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()


@pytest.mark.parametrize("attempt", range(5))
def test_kill_at_any_moment_leaves_a_whole_checkpoint(attempt, tmp_path):
    kill_while_saving(tmp_path, delay=0.05 + 0.037 * attempt)
    found = newest(tmp_path, refuse)
    assert found.step >= 1
    save(tmp_path, some(found.step + 1))
    assert newest(tmp_path, refuse).step == found.step + 1


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(50))
def test_kill_at_fifty_moments(attempt, tmp_path):
    kill_while_saving(tmp_path, delay=0.01 + 0.0113 * attempt)
    assert newest(tmp_path, refuse).step >= 1


@pytest.mark.parametrize("stop", [5, 17])
def test_a_resumed_run_is_the_run_that_never_stopped(stop, tmp_path):
    """Stopped while acquiring, and after release with a router that samples."""
    changes = {"save_every": 100, "consolidation.audit": 0.1, "consolidation.check_every": 100}

    def start():
        run = trainer(**changes)
        step = run.train_step

        def release():
            if run.step == 12:
                run.consolidator.released_at = 12
            return step()

        run.train_step = release
        return run

    first = start()
    whole = list(first.run(tmp_path / "whole"))[-1]
    stopped = start()
    list(stopped.run(tmp_path / "parts", stop=lambda: stopped.step >= stop))
    assert stopped.step == stop
    assert stopped.consolidator.released_at == (None if stop < 12 else 12)
    resumed = start()
    torch.manual_seed(999)
    assert resumed.restore(tmp_path / "parts")
    last = list(resumed.run(tmp_path / "parts"))[-1]
    assert last.loss == whole.loss
    assert last.evaluation == whole.evaluation
    for one, other in zip(first.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    kept = [load_decisions(tmp_path / name / "decisions") for name in ("whole", "parts")]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


def test_bad_steps_are_left_out_then_gone_back_from(tmp_path):
    said = []
    run = trainer(save_every=4)
    run.say = said.append
    batch = run.task.batch
    bad = {10, 11, 12, 13, 14, 15, 16, 17}

    def sometimes_bad(*, step, **rest):
        examples = batch(step=step, **rest)
        if step in bad and run.rate_scale == 1.0 and rest["seed"] == 0:
            examples.inputs["channels"].fill_(torch.nan)
        return examples

    run.task.batch = sometimes_bad
    reports = list(run.run(tmp_path))
    assert reports[-1].step == 30
    assert run.rate_scale == 0.5
    assert run.skipped == 5
    assert all(p.isfinite().all() for p in run.model.parameters())
    assert any("the loss is nan; the step is left out" in text for text in said)
    assert any("back to step 8" in text for text in said)


@pytest.mark.parametrize("saved", [False, True])
def test_training_that_never_recovers_says_so(saved, tmp_path):
    run = trainer()
    batch = run.task.batch

    def bad(*, seed, **rest):
        examples = batch(seed=seed, **rest)
        if seed == 0:
            examples.inputs["channels"].fill_(torch.nan)
        return examples

    run.task.batch = bad
    message = "whatever the learning rate" if saved else "no checkpoint to go back to"
    with pytest.raises(FloatingPointError, match=message):
        list(run.run(tmp_path if saved else None))
