"""What all layers of a stack learn at once is what each of them learns alone."""

import pytest
import torch
from tests.conftest import enliven, tiny_config
from torch import Tensor

from torchcram import Cram
from torchcram.draws import Draws
from torchcram.memory import EPISODIC, SEMANTIC, RoutingPolicy
from torchcram.memory.together import learn_together
from torchcram.ops import Lengths

BATCH, LENGTH = 3, 192


def learned(
    monkeypatch, together: bool, audit: float = 0.05
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor], bool]:
    """Losses, gradients and q of what was read, of a model in training; and whether layers learned together."""
    torch.manual_seed(0)
    model = enliven(Cram(tiny_config({"contradiction.rank": 0})), 3).double().train()
    called = []

    def learn(*given):
        called.append(given)
        return learn_together(*given)

    if together:  # as compiled models do
        for block in model.blocks:
            block._compiled_call_impl = block._call_impl
        monkeypatch.setattr("torchcram.models.cram._compiled_learning", lambda: learn)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(16, (BATCH, LENGTH), generator=generator)
    chosen = torch.rand(BATCH, LENGTH, 3, generator=generator) < 0.1
    policy = RoutingPolicy(
        actions=torch.where(chosen, EPISODIC, SEMANTIC),
        audit=audit,
        draws=Draws(seed=0, step=0, rows=torch.arange(BATCH)),
    )
    lengths = Lengths()
    for _ in range(3):  # the first call does not know how long its lists will be
        called.clear()
        with lengths.kept():
            out = model(tokens, policy=policy, keep_state=False)
        fits = lengths.fit(lengths.needed.tolist())
    assert fits
    torch.stack(list(out.losses.values())).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return out.losses, gradients, [layer.exact for layer in out.layers], bool(called)


@pytest.fixture
def _many_positions(monkeypatch):
    """A batch of which foresight learns from some positions only."""
    monkeypatch.setattr("torchcram.memory.foresight._SMALL", 8)
    monkeypatch.setattr("torchcram.memory.foresight._LESSON", 60)


@pytest.mark.usefixtures("_many_positions")
def test_together_is_as_alone(monkeypatch):
    losses, gradients, exact, at_once = learned(monkeypatch, False)
    assert not at_once
    found, mine, known, at_once = learned(monkeypatch, True)
    assert at_once, "lists are short"
    assert found.keys() == losses.keys() == {"uncertainty", "consolidation", "quality", "priority", "reads", "recall"}
    for name, loss in losses.items():
        torch.testing.assert_close(found[name], loss, msg=lambda text, name=name: f"{name}: {text}")
    assert mine.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-6, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")
    for one, other in zip(known, exact, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("_many_positions")
def test_long_lists_are_left_to_each_layer(monkeypatch):
    *_, at_once = learned(monkeypatch, True, audit=0.5)
    assert not at_once


def test_few_positions_are_left_to_each_layer(monkeypatch):
    """All of a small batch is foreseen, which has gradients of its own."""
    *_, at_once = learned(monkeypatch, True)
    assert not at_once
