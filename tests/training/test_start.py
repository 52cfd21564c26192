"""Beginning with another run's layers: they are its own, what is frozen stays so, and other layers are refused."""

import shutil

import pytest
import torch

from torchcram.training import start
from torchcram.training.config import StartConfig
from torchcram.training.loop import Trainer
from torchcram.training.recipes import configure
from torchcram.training.run import RunFolder

SMALL = {"model.block.width": 32, "batch": 2, "evaluate_rows": 2, "model.episodic.convolution": 2}


def run(task="copying", **changes):
    settings = {"length": 32, **({"items": 4} if task == "copying" else {"novel_keys": 16, "patterns": 3})}
    return configure(task, "tiny", settings=settings, changes={**SMALL, "steps": 3, **changes})


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run on SRCD."""
    folder = RunFolder(tmp_path_factory.mktemp("source"))
    folder.begin(run("srcd"))
    trainer = Trainer(folder.config)
    list(trainer.run(folder.checkpoints))
    return folder.path, {name: x.clone() for name, x in trainer.model.state_dict().items()}


def test_layers_are_taken_over_and_what_is_frozen_stays(source, tmp_path):
    path, layers = source
    config = run(**{"start.run": str(path), "start.frozen": ["semantic", "router"], "optimizer.rate": 0.1})
    trainer = Trainer(config)
    head = {name: x.clone() for name, x in trainer.model.state_dict().items() if not name.startswith("blocks.")}
    list(trainer.run(tmp_path / "checkpoints"))
    moved = {
        name
        for name, x in trainer.model.named_parameters()
        if name.startswith("blocks.") and not torch.equal(x, layers[name])
    }
    kept = {name for name in layers if name.startswith("blocks.") and {"semantic", "router"} & set(name.split("."))}
    assert kept
    assert not moved & kept
    assert any("episodic" in name for name in moved)
    assert any(not torch.equal(x, head[name]) for name, x in trainer.model.state_dict().items() if name in head)
    again = Trainer(config)  # on from a checkpoint, the other run is not needed
    assert again.restore(tmp_path / "checkpoints")
    assert not again.model.get_parameter("blocks.0.semantic.up.weight").requires_grad
    assert again.model.get_parameter("blocks.0.semantic.up.weight").equal(layers["blocks.0.semantic.up.weight"])
    assert list(again.run()) == []


def test_layers_alone_are_enough_to_begin_with(source, tmp_path):
    path, layers = source
    shutil.copytree(path, tmp_path / "less")
    before = sum(file.stat().st_size for file in (tmp_path / "less").rglob("*.safetensors"))
    kept = start.only_layers(tmp_path / "less")
    assert sum(file.stat().st_size for file in (tmp_path / "less").rglob("*.safetensors")) < before / 2
    assert start.only_layers(tmp_path / "less") == kept  # once more changes nothing
    trainer = Trainer(run())
    start.load_layers(trainer.model, tmp_path / "less", trainer.world)
    assert all(torch.equal(x, layers[n]) for n, x in trainer.model.state_dict().items() if n.startswith("blocks."))
    with pytest.raises(ValueError, match="has no checkpoint"):
        start.only_layers(tmp_path / "none")


def test_all_layers_can_be_frozen(source):
    path, layers = source
    trainer = Trainer(run(**{"start.run": str(path), "start.frozen": ["layers"], "optimizer.rate": 0.1}))
    list(trainer.run())
    assert all(torch.equal(x, layers[n]) for n, x in trainer.model.named_parameters() if n.startswith("blocks."))


def test_other_layers_are_refused(source, tmp_path):
    path, _ = source
    other = Trainer(run(**{"start.run": str(path), "model.semantic.rank": 8}))
    with pytest.raises(ValueError, match=r"start\.run: the layers of .* are others: blocks\.0\..* same preset"):
        list(other.run())
    with pytest.raises(ValueError, match="is not a run folder"):
        list(Trainer(run(**{"start.run": str(tmp_path)})).run())
    RunFolder(tmp_path).begin(run())
    with pytest.raises(ValueError, match="has no checkpoint"):
        list(Trainer(run(**{"start.run": str(tmp_path)})).run())


def test_what_cannot_be_frozen_is_told(source):
    with pytest.raises(ValueError, match=r"start\.frozen: the layers have no 'hippocampus'; parts: layers, .*semantic"):
        Trainer(run(**{"start.run": str(source[0]), "start.frozen": ["hippocampus"]}))
    with pytest.raises(ValueError, match=r"nothing without start\.run"):
        StartConfig(frozen=("semantic",))
    for wrong in ("semantic", [1]):
        with pytest.raises(ValueError, match=r"start\.frozen"):
            run(**{"start.run": "x", "start.frozen": wrong})
    with pytest.raises(ValueError, match=r"start\.run = 3 is not possible"):
        StartConfig(run=3)


def test_a_baseline_has_parts_of_its_own():
    trainer = Trainer(configure("copying", "tiny", name="seqboat", settings={"length": 32, "items": 4}))
    start.freeze(trainer.model, ["configure"])
    still = {name for name, x in trainer.model.named_parameters() if not x.requires_grad}
    assert still == {f"blocks.{n}.mixer.configure.{x}" for n in range(2) for x in ("weight", "bias")}
