"""The loop at the smallest size: it learns, evaluates without leaving a trace, and repeats itself exactly."""

from pathlib import Path

import pytest
import torch

from torchcram import CramConfig
from torchcram.memory import RoutingPolicy
from torchcram.ops import Lengths
from torchcram.tasks import Srcd
from torchcram.training import checkpoint
from torchcram.training.config import RunConfig
from torchcram.training.decisions import load_decisions
from torchcram.training.loop import Trainer
from torchcram.training.recorded import Outcome

SETTINGS = {"length": 64, "novel_keys": 16, "values": 4, "patterns": 8}


def trainer(**changes) -> Trainer:
    task = Srcd.variant("srcd", **SETTINGS)
    model = CramConfig.preset("tiny", inputs=task.inputs, outputs=task.outputs)
    config = RunConfig(task="srcd", settings=SETTINGS, model=model, preset="tiny", steps=30, batch=4, evaluate_rows=8)
    return Trainer(config.override({"optimizer.rate": 3e-3, "optimizer.warm_up": 5, "evaluate_every": 10} | changes))


def test_losses_fall():
    reports = list(trainer().run())
    assert [r.step for r in reports] == [10, 20, 30]
    assert reports[-1].evaluation.losses["dynamics"] < 0.9 * reports[0].evaluation.losses["dynamics"]
    assert reports[-1].phase == "acquire"
    assert reports[-1].evaluation.ledger.reads == 1


def test_a_run_repeats_itself_exactly():
    one, other = (list(trainer().run())[-1] for _ in range(2))
    assert one.loss == other.loss
    assert one.evaluation.losses == other.evaluation.losses
    assert list(trainer(seed=1).run())[-1].loss != one.loss


def test_after_release_only_routed_and_audited_tokens_are_read():
    run = trainer(**{"consolidation.audit": 0.1})
    run.consolidator.released_at = 0
    run.train_step()
    examples = run.task.batch(seed=0, step=99, rows=range(4))
    run.model.train()
    out = run.model(examples.inputs, dt=examples.dt, policy=run.consolidator.policy(), keep_state=False)
    for layer in out.layers:
        assert int(layer.reading.rows.valid.sum()) == int((layer.reads | layer.audits).sum())
        assert layer.audits.any()
        assert not layer.reads.all()


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("signal", ["quality", "utility"])
def test_lists_of_kept_lengths_change_nothing_and_too_short_ones_are_made_anew(release, signal, monkeypatch):
    rule = {"model.router.rule": "worth"} if signal == "utility" else {}
    changes = {"model.contradiction.rank": 16, "consolidation.signal": signal, "consolidation.ramp": 2, **rule}
    plain, kept = trainer(**changes), trainer(**changes)
    kept.stepper.lengths = Lengths()
    repeated = []
    fit = kept.stepper.lengths.fit
    monkeypatch.setattr(kept.stepper.lengths, "fit", lambda needed: repeated.append(fit(needed)) or repeated[-1])
    losses = []
    for run in (plain, kept):
        if release:
            run.consolidator.released_at = 0
        for _ in range(4):
            losses.append(run.train_step())
            run.step += 1
            run.consolidator.steps += 1
            for lists in kept.stepper.lengths._kinds.values():
                for each in lists.values():
                    each.room = max(1, each.room // 3)  # so that the next step of the kind has too little
    assert losses[4:] == pytest.approx(losses[:4], rel=1e-4)
    for (name, mine), theirs in zip(kept.model.named_buffers(), plain.model.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=name)
    assert repeated.count(True) == 4
    assert repeated.count(False) >= 2
    assert kept._executed() == pytest.approx(plain._executed())


def test_evaluation_leaves_mode_and_random_numbers_alone():
    run = trainer()
    run.model.train()
    before = torch.get_rng_state()
    first = run.evaluate(RoutingPolicy(reads="off"))
    assert run.model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert run.evaluate(RoutingPolicy(reads="off")) == first


def test_evaluation_splits_by_kind_and_layer():
    found = trainer().evaluate(RoutingPolicy(reads="dense"))
    assert set(found.kind_reads) == {"dynamics", "store", "recurring", "novel"}
    assert all(shares == [1.0, 1.0, 1.0] for shares in found.kind_reads.values())
    assert all(len(q) == 2 and 0 <= min(q) <= max(q) <= 1 for q in found.quality.values())
    row = found.row()
    assert row["reads"] == 1
    assert row["opt"] == pytest.approx(found.metrics["opt"])
    assert {"accuracy", "accuracy_recurring", "accuracy_novel", "dynamics_mse", "pairs", "writes"} <= set(row)


def test_evaluation_in_parts_is_the_same():
    from torchcram.training.evaluate import evaluate

    run = trainer()
    whole = evaluate(run.model, run.task, seed=0, rows=8, chunk=8)
    parts = evaluate(run.model, run.task, seed=0, rows=8, chunk=3)
    assert parts.ledger == whole.ledger
    for head, value in whole.losses.items():
        assert parts.losses[head] == pytest.approx(value, rel=1e-5)


def test_the_papers_cosine_settles_from_the_start():
    run = trainer(**{"optimizer.settle": 1.0, "steps": 2})
    list(run.run())
    assert run.consolidator.settling


def test_histograms_of_quality_count_every_position() -> None:
    run = trainer()
    found = run.evaluate()
    positions = 0
    for kind, layers in found.histograms.items():
        totals = {sum(bins) for bins in layers}
        assert len(totals) == 1, "each layer sees the same positions"
        for mean, bins in zip(found.quality[kind], layers, strict=True):
            middle = sum((i + 0.5) / len(bins) * n for i, n in enumerate(bins)) / sum(bins)
            assert abs(middle - mean) <= 0.5 / len(bins)
        positions += totals.pop()
    assert positions == found.ledger.positions


def test_the_sample_is_what_the_model_did() -> None:
    run = trainer()
    found = run.evaluate(RoutingPolicy(reads="dense")).sample
    assert len(found.kind) == run.task.length
    assert found.actions == ["1" * run.task.length] * run.config.model.layers


def test_a_run_keeps_the_decisions_of_every_step(tmp_path: Path) -> None:
    run = trainer()
    list(run.run(tmp_path))
    found = load_decisions(tmp_path / "decisions")
    assert found["step"].tolist() == list(range(run.config.steps))
    assert 0 < int(found["read"].sum()) <= int(found["asked"].sum())


def test_a_run_is_kept_as_it_was_at_steps_that_are_named(tmp_path: Path) -> None:
    list(trainer(save_at=[0, 3, 7], save_every=10, keep=1).run(tmp_path))
    assert checkpoint.steps(tmp_path) == [0, 3, 7, 30]
    with pytest.raises(ValueError, match="save_at = -1 is not possible; allowed: an integer of at least 0"):
        trainer(save_at=[-1])


def test_reads_and_audits_of_training_are_counted() -> None:
    run = trainer(**{"consolidation.skip": 0.25, "consolidation.audit": 0.2})
    acquired = next(iter(run.run())).entry()
    assert acquired["reads_training"] == pytest.approx(0.75, abs=0.05)
    assert acquired["audits"] == 0
    run.consolidator.released_at = run.step
    released = [run.train_step() for _ in range(3)] and run._executed()
    assert 0 < released["audits"] < 0.2
    assert run._executed() == {"reads_training": 0, "audits": 0}, "only what came since"


def test_every_batch_is_made_once_and_before_its_step_is_due(monkeypatch):
    run = trainer()
    made, fetched = [], []
    batch, fetch = run.task.batch, Outcome.fetch
    monkeypatch.setattr(run.task, "batch", lambda **given: made.append(given["step"]) or batch(**given))
    monkeypatch.setattr(Outcome, "fetch", lambda self: fetched.append(list(made)) or fetch(self))
    for _ in range(3):
        run.train_step()
        run.step += 1
    assert fetched == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    run.step = 1  # as after going back
    run.train_step()
    assert made[4:] == [1, 2]
