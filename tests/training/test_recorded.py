"""Recorded steps train as plain ones do."""

import math

import pytest
import torch

from torchcram import CramConfig
from torchcram.consolidation import ConsolidationConfig, Consolidator, Dials
from torchcram.models import baseline
from torchcram.ops import Lengths, compact
from torchcram.tasks import Srcd
from torchcram.training import optimizer, recorded
from torchcram.training.config import OptimizerConfig, RunConfig
from torchcram.training.loop import Trainer
from torchcram.training.recipes import configure

SETTINGS = {"length": 64, "novel_keys": 16, "values": 4, "patterns": 8}


def trainer(graphs, rank=8, kind="cram", **changes):
    task = Srcd.variant("srcd", **SETTINGS)
    model = CramConfig.preset("tiny", inputs=task.inputs, outputs=task.outputs)
    model = model.override({"layers": 2, "episodic.slots": 16, "contradiction.rank": rank})
    control = ConsolidationConfig(lessons=2, ramp=4)
    if kind != "cram":
        model, control = baseline(kind, model), ConsolidationConfig(schedule="plain")
    config = RunConfig(
        task="srcd", settings=SETTINGS, model=model, name=kind, steps=40, batch=4, graphs=graphs, consolidation=control
    )
    return Trainer(config.override(changes), "cuda" if torch.cuda.is_available() else "cpu")


def steps(run, count):
    found = []
    for _ in range(count):
        found.append(run.train_step())
        run.step += 1
        run.consolidator.steps += 1
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"rank": 0, "bf16": True}, {"kind": "transformer"}, {"kind": "mod"}])
def test_replayed_steps_give_the_losses_of_plain_ones(changes):
    losses, runs = [], []
    for graphs in (False, True):
        run = trainer(graphs, **changes)
        found = steps(run, 6)
        if changes.get("kind", "cram") == "cram":
            run.consolidator.release()
        found += steps(run, 14)
        losses.append(found)
        runs.append(run)
    assert losses[1] == pytest.approx(losses[0], rel=0.02 if changes.get("bf16") else 1e-3)
    assert runs[1].stepper.recorder._recordings
    assert runs[1]._executed() == pytest.approx(runs[0]._executed(), rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["cram", "transformer", "mamba", "jamba", "seqboat", "entropy"])
@pytest.mark.parametrize("task", ["mqar", "text"])
def test_steps_of_every_task_and_model_are_recorded(task, kind, tmp_path):
    settings = {"length": 64, "pairs": 4, "vocabulary": 64} if task == "mqar" else {"length": 64}
    if task == "text":
        (tmp_path / "text").write_text("so it goes, and so it went. " * 40, encoding="utf-8")
        settings |= {"train": str(tmp_path / "text"), "held_out": str(tmp_path / "text")}
    config = configure(task, "small", settings=settings, changes={"batch": 4, "steps": 20}, name=kind)
    told = []
    run = Trainer(config, "cuda", told.append)
    losses = steps(run, 8)
    assert all(map(math.isfinite, losses))
    assert told == []
    assert run.stepper.recorder._recordings


@pytest.mark.gpu
def test_a_replay_without_room_for_its_lists_changes_nothing_and_is_done_again(monkeypatch):
    found = []
    for graphs in (False, True):
        run = trainer(graphs)
        run.consolidator.release()
        steps(run, 2)
        # Plainly first: a kernel of lists so short is loaded when it is first needed, which cannot be recorded.
        for lists in run.stepper.lengths._kinds.values():
            for each in lists.values():
                each.room = 1
        if graphs:
            monkeypatch.setattr(recorded, "_PLAIN", 0)
        (loss,) = steps(run, 1)
        found.append((loss, [p.detach().clone() for p in run.model.parameters()], list(run.model.buffers())))
    assert run.stepper.recorder._recordings, "it was recorded, with no room to speak of"
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-4)
    for kept in (1, 2):
        for ours, theirs in zip(found[1][kept], found[0][kept], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_a_replay_whose_loss_is_not_finite_changes_nothing():
    run = trainer(True)
    steps(run, 8)
    assert run.stepper.recorder._recordings
    parameter = next(run.model.parameters())
    with torch.no_grad():
        parameter[0] = math.nan
    before = [p.detach().clone() for p in run.model.parameters()]
    moments = [{k: v.clone() for k, v in run.optimizer.state[p].items()} for p in run.model.parameters()]
    assert math.isnan(run.train_step())
    for p, kept, state in zip(run.model.parameters(), before, moments, strict=True):
        torch.testing.assert_close(p.detach(), kept, rtol=0, atol=0, equal_nan=True)
        for name, value in state.items():
            assert torch.equal(run.optimizer.state[p][name], value)


@pytest.mark.gpu
def test_a_restored_run_records_anew(tmp_path):
    whole, parted = trainer(True), trainer(True)
    expected = steps(whole, 12)
    found = steps(parted, 7)
    parted.save(tmp_path)
    other = trainer(True)
    assert other.restore(tmp_path)
    other.restore(tmp_path)
    found += steps(other, 5)
    assert found == pytest.approx(expected, rel=1e-3)
    assert other.stepper.recorder._recordings


def test_without_a_gpu_nothing_is_recorded():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert trainer(True).stepper.recorder is None


def test_dials_on_a_device_do_what_numbers_do():
    for signal in ("quality", "utility"):
        control = Consolidator(ConsolidationConfig(signal=signal))
        control.release()
        control.steps = 100
        held = Dials(*(torch.tensor(value) for value in control.dials))
        plain, policy = control.policy(4.0), control.policy(4.0, held)
        assert float(policy.temperature) == plain.temperature == 0.75
        assert (policy.price is None) == (plain.price is None) == (signal == "quality")
        losses = {"reads": torch.tensor(0.5), "recall": torch.tensor(-0.25), "quality": torch.tensor(2.0)}
        told = (control.loss(losses, positions=8, scored=4, dials=dials) for dials in (None, held))
        assert next(told) == pytest.approx(float(next(told)))


def test_a_call_knows_on_the_device_that_a_list_had_no_room():
    lengths = Lengths()
    few, many = torch.zeros(2, 256, dtype=torch.bool), torch.ones(2, 256, dtype=torch.bool)
    few[:, 3] = True
    assert lengths.rooms("kind") is None
    for chosen, over in ((few, False), (few, False), (many, True)):
        with lengths.kept("kind"):
            compact(chosen)
        assert bool(lengths.last.overflows) is over
    before = lengths.rooms("kind")
    assert not lengths.fit(lengths.last.needed.tolist(), lengths.last)
    assert lengths.rooms("kind") != before == (16,)
    with lengths.kept("other"):
        pass
    assert lengths.last.overflows is None
    assert lengths.rooms("other") == ()


def test_a_rate_may_be_a_tensor():
    layer = torch.nn.Linear(2, 2)
    made = optimizer.build(layer, OptimizerConfig(semantic=0.1))
    optimizer.set_rate(made, 0.5)
    assert [group["lr"] for group in made.param_groups] == [0.5, 0.5, 0.05]
    held = made.param_groups[0]["lr"] = torch.tensor(1.0)
    optimizer.set_rate(made, 0.25)
    assert made.param_groups[0]["lr"] is held
    assert held == 0.25


def test_a_copy_of_examples_has_memory_of_its_own():
    examples = Srcd.variant("srcd", **SETTINGS).batch(seed=0, step=0, rows=range(2), device=torch.device("cpu"))
    copy = examples.copy()
    assert len(copy.tensors()) == len(examples.tensors()) >= 5
    for ours, theirs in zip(copy.tensors(), examples.tensors(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.data_ptr() != theirs.data_ptr()
