"""What comes out: heads of every kind, one or several, and what `CramOutput` says about a call."""

import pytest
import torch

from tests.models.feeding import LOSSES, assert_close, feed
from torchcram import Cram, OutputConfig

HEADS = [
    OutputConfig(name="next", kind="tokens", size=16),
    OutputConfig(name="tag", kind="labels", size=5),
    OutputConfig(name="level", kind="regression", size=2),
    OutputConfig(name="kind", kind="classification", size=3),
    OutputConfig(name="other_kind", kind="classification", size=4),
]


@pytest.fixture
def model(lively):
    return lively(seed=4, outputs=HEADS)


@torch.no_grad()
def test_several_heads_at_once(model, events):
    tokens, dt = events(2, 30, seed=91)
    out = model(tokens, dt=dt)
    assert out.logits is out.predictions
    shapes = {name: tuple(value.shape) for name, value in out.logits.items()}
    assert shapes == {"next": (2, 30, 16), "tag": (2, 30, 5), "level": (2, 30, 2), "kind": (2, 3), "other_kind": (2, 4)}


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind + " " + head.name)
@torch.no_grad()
def test_one_head_gives_a_tensor(head, lively, events):
    tokens, dt = events(2, 30, seed=91)
    out = lively(outputs=head)(tokens, dt=dt)
    assert out.logits.shape == ((2, head.size) if head.kind == "classification" else (2, 30, head.size))
    assert out.predictions[head.name] is out.logits


@torch.no_grad()
def test_classification_sees_the_mean_over_the_sequence(lively, events):
    """Heads are linear: with the same weights, the mean of a head's outputs a position is its output a sequence."""
    heads = [OutputConfig(name=kind, kind=kind, size=3) for kind in ("labels", "classification")]
    model = lively(seed=4, outputs=heads)
    weight, bias, other_weight, other_bias = model.heads.parameters()
    other_weight.copy_(weight)
    other_bias.copy_(bias)
    tokens, dt = events(2, 30, seed=92)
    out = model(tokens, dt=dt)
    assert_close(out.logits["classification"], out.logits["labels"].mean(1))


@torch.no_grad()
def test_classification_goes_on_across_chunks(model, events):
    tokens, dt = events(2, 30, seed=93)
    for sizes in ([1] * 30, [4, 20, 6]):
        outs = feed(model, tokens, sizes, dt=dt)
        seen = 0
        for size, out in zip(sizes, outs, strict=True):
            seen += size
            assert_close(out.logits["kind"], model(tokens[:, :seen], dt=dt[:, :seen]).logits["kind"])


@torch.no_grad()
def test_the_shape_of_a_classification_does_not_depend_on_where_sequences_start(model, events):
    tokens, dt = events(2, 30, seed=94)
    marked = model(tokens, dt=dt, start=torch.zeros(2, 30, dtype=torch.bool))
    assert torch.equal(marked.logits["kind"], model(tokens, dt=dt).logits["kind"].unsqueeze(1))


@pytest.mark.parametrize("name", ["keys", "values", "type"])
def test_heads_may_have_any_name(name, tiny):
    model = Cram(tiny(outputs=OutputConfig(name=name, kind="labels", size=3)))
    assert model(torch.zeros(1, 4, dtype=torch.int64)).predictions[name].shape == (1, 4, 3)


@torch.no_grad()
def test_routing_names_the_actions(model, events):
    tokens, dt = events(2, 30, seed=95)
    out = model(tokens, dt=dt)
    assert out.routing.dtype == torch.int8
    assert out.routing.shape == (2, 30, 3)
    assert set(out.routing.flatten().tolist()) == {0, 1, 2}


def test_losses_are_there_in_training_only(model, events):
    tokens, dt = events(2, 30, seed=96)
    assert model(tokens, dt=dt).losses == {}
    out = model.train()(tokens, dt=dt)
    assert set(out.losses) == LOSSES
    for name, value in out.losses.items():
        assert value.shape == (), name
        assert value.isfinite(), name
        layers = [layer.losses[name] for layer in out.layers if name in layer.losses]
        assert len(layers) == (1 if name == "contradiction" else 3), name
        torch.testing.assert_close(value, torch.stack(layers).sum(), msg=name)


def test_losses_without_buffers(lively, events):
    tokens, dt = events(2, 30, seed=96)
    out = lively({"episodic.layers": []}).train()(tokens, dt=dt)
    assert set(out.losses) == {"uncertainty"}
    assert not (out.routing == 1).any()
