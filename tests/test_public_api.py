"""The names people import: there, all of them, and quick to get at."""

import inspect
import subprocess
import sys

import pytest
import torch

import torchcram

NAMES = [
    "__version__",
    "Block",
    "BlockConfig",
    "BlockState",
    "ContradictionConfig",
    "Cost",
    "Cram",
    "CramClassifier",
    "CramConfig",
    "CramLabeller",
    "CramOutput",
    "CramState",
    "EpisodicConfig",
    "Generation",
    "InputConfig",
    "Ledger",
    "OutputConfig",
    "PRESETS",
    "RouterConfig",
    "RoutingPolicy",
    "SemanticConfig",
    "Timeline",
    "TokenField",
    "WorkingConfig",
    "measure",
]


def test_names_are_frozen():
    """Adding one is a decision; taking one away breaks someone's code."""
    assert torchcram.__all__ == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name):
    assert getattr(torchcram, name) is not None
    assert name in dir(torchcram)
    if inspect.isclass(getattr(torchcram, name)) or inspect.isfunction(getattr(torchcram, name)):
        assert inspect.getdoc(getattr(torchcram, name))


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="module 'torchcram' has no attribute 'Crab'"):
        _ = torchcram.Crab
    with pytest.raises(ImportError):
        from torchcram import Crab  # noqa: F401


def modules_after(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in run.stdout.split()}


@pytest.mark.parametrize("statement", ["import torchcram", "from torchcram import CramConfig, PRESETS; dir(torchcram)"])
def test_import_needs_no_torch(statement):
    loaded = modules_after(f"import torchcram; {statement}")
    assert "torchcram" in loaded
    assert not loaded & {"torch", "numpy", "safetensors", "typer", "rich", "scipy"}


def test_a_model_needs_torch_only_when_asked_for():
    assert "torch" in modules_after("from torchcram import Cram")


def test_usage_in_five_lines():
    from torchcram import Cram, CramConfig

    tokens, dt = torch.randint(256, (2, 12)), torch.rand(2, 12)
    following, later = torch.randint(256, (2, 3)), torch.rand(2, 3)

    model = Cram(CramConfig.preset("small", inputs="tokens", vocabulary=256, outputs="tokens"))
    out = model(tokens, dt=dt)
    assert out.logits.shape == (2, 12, 256)
    assert out.routing.shape == (2, 12, 4)
    out = model(following, dt=later, state=out.state)
    assert out.logits.shape == (2, 3, 256)
    assert out.state.position.tolist() == [15, 15]
    assert str(out.ledger()).startswith("6 positions: reads_training ")
    assert str(model.eval()(tokens, dt=dt).ledger()).startswith("24 positions: reads ")
