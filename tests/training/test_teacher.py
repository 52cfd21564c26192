"""The model at release: kept, found again, and what quality is measured against."""

from pathlib import Path

import pytest
import torch

from tests.training.test_loop import trainer
from torchcram.memory import RoutingPolicy
from torchcram.training.teacher import keep, kept


def test_the_teacher_is_the_model_at_release(tmp_path: Path) -> None:
    """On the sequences of the checks it has the losses that the controller keeps; later steps do not change it."""
    run = trainer(**{"consolidation.check_every": 10})
    run.consolidator.gate.observe = lambda dense, off: ["value"]
    reports = list(run.run(tmp_path))
    assert run.consolidator.released_at == 10
    assert reports[-1].step == 30
    again = trainer(**{"consolidation.check_every": 10})
    assert again.restore(tmp_path)
    found = kept(again, tmp_path, again.evaluate(seed=0, rows=8).losses, seed=0, rows=8)
    assert found is not None
    assert found.teacher is not None
    assert found.teacher["value"] == pytest.approx(run.consolidator.controller.at_release["value"], abs=1e-6)
    assert found.dense != found.teacher
    assert found.routed == again.evaluate(RoutingPolicy()).losses
    gaps = {head: found.routed[head] - found.dense[head] for head in found.routed}
    gaps["value"] = max(gaps["value"], found.routed["value"] - found.teacher["value"])
    assert found.excess == max(gaps.values())


def test_without_a_release_nothing_is_promised(tmp_path: Path) -> None:
    run = trainer(steps=2)
    list(run.run(tmp_path))
    assert kept(run, tmp_path, run.evaluate(seed=0, rows=4).losses, seed=0, rows=4) is None
    run.consolidator.released_at = 0
    paper = trainer(**{"consolidation.schedule": "paper", "consolidation.signal": "paper"})
    assert paper.consolidator.released_at == 0
    assert kept(paper, tmp_path, paper.evaluate(seed=0, rows=4).losses, seed=0, rows=4) is None


def test_a_damaged_teacher_is_told_of(tmp_path: Path) -> None:
    said: list[str] = []
    run = trainer(**{"consolidation.check_every": 10}, steps=10)
    run.say = said.append
    run.consolidator.gate.observe = lambda dense, off: ["value"]
    list(run.run(tmp_path))
    (file,) = (tmp_path / "teacher").rglob("model.safetensors")
    file.write_bytes(file.read_bytes()[:-4])
    found = kept(run, tmp_path, run.evaluate(seed=0, rows=4).losses, seed=0, rows=4)
    assert found is not None
    assert found.teacher is None
    assert "damaged" in said[0]
    assert "compared with dense reading now" in said[-1]


def test_a_second_release_has_a_teacher_of_its_own(tmp_path: Path) -> None:
    """After going back, at another learning rate, at the same step."""
    run = trainer(**{"consolidation.check_every": 10}, steps=10)
    run.consolidator.gate.observe = lambda dense, off: ["value"]
    list(run.run(tmp_path))
    with torch.no_grad():
        run.model.norm.weight *= 2
    keep(run, tmp_path)
    found = kept(run, tmp_path, run.evaluate(seed=0, rows=8).losses, seed=0, rows=8)
    assert found is not None
    assert found.teacher is not None
    assert found.teacher["value"] == run.evaluate(RoutingPolicy(reads="dense", keep_all=True)).losses["value"]
