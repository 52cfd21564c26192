"""Nothing a model does at a position depends on what comes later."""

import copy

import pytest
import torch

from tests.models.feeding import assert_close
from torchcram import InputConfig, RoutingPolicy, TokenField

LENGTH = 60
INPUTS = InputConfig(tokens=(TokenField(name="tokens", vocabulary=16),), channels=2)
CASES = {
    "plain": {},
    "convolution": {"episodic.convolution": 3, "episodic.slots": 4},
    "exact quality": {"router.quality": "exact"},
    "pointwise": {"working.carry": "none", "episodic.layers": [1], "episodic.slots": None},
}


@pytest.fixture(params=CASES)
def model(request, lively):
    return lively(CASES[request.param], seed=4, vocabulary=None, inputs=INPUTS, size=16)


@pytest.fixture
def sequence(events):
    tokens, dt = events(2, LENGTH, seed=41)
    channels = torch.randn(2, LENGTH, 2, generator=torch.Generator().manual_seed(42))
    return {"tokens": tokens, "channels": channels, "dt": dt}


def perturbed(sequence, what, t):
    """The same sequence with one input changed at position t."""
    other = {name: value.clone() for name, value in sequence.items()}
    if what == "tokens":
        other["tokens"][:, t] = (other["tokens"][:, t] + 7) % 16
    else:
        other[what][:, t] += 3.0
    return other


def run(model, sequence, policy=None):
    inputs = {name: sequence[name] for name in ("tokens", "channels")}
    return model(inputs, dt=sequence["dt"], policy=policy)


@pytest.mark.parametrize("what", ["tokens", "channels", "dt"])
@torch.no_grad()
def test_change_at_a_position_leaves_the_past_alone(what, model, sequence):
    before = run(model, sequence)
    for t in (0, 1, 17, 40, LENGTH - 1):
        after = run(model, perturbed(sequence, what, t))
        assert torch.equal(after.routing[:, :t], before.routing[:, :t])
        assert_close(after.logits[:, :t], before.logits[:, :t], atol=2e-6)
        assert ((after.logits[:, t] - before.logits[:, t]).abs().amax(-1) > 1e-3).all()


@pytest.mark.parametrize("what", ["tokens", "channels", "dt"])
@torch.no_grad()
def test_the_same_holds_in_training(what, model, sequence):
    """With audits and sampled actions, the noise being the same."""

    def train_run(inputs):
        # A call in training moves running statistics, so each gets a model of its own.
        policy = RoutingPolicy(audit=0.2, generator=torch.Generator().manual_seed(43))
        return run(copy.deepcopy(model).train(), inputs, policy)

    before = train_run(sequence)
    assert before.ledger().audits > 0 or model.config.router.quality == "exact"
    for t in (1, 17, 40):
        after = train_run(perturbed(sequence, what, t))
        assert torch.equal(after.routing[:, :t], before.routing[:, :t])
        assert_close(after.logits[:, :t], before.logits[:, :t], atol=2e-6)
        assert (after.logits[:, t:] - before.logits[:, t:]).abs().max() > 1e-3


@torch.no_grad()
def test_dense_reads_are_causal(model, sequence):
    dense = RoutingPolicy(reads="dense")
    before = run(model, sequence, dense)
    after = run(model, perturbed(sequence, "tokens", 30), dense)
    assert_close(after.logits[:, :30], before.logits[:, :30], atol=2e-6)
    assert (after.logits[:, 31:] - before.logits[:, 31:]).abs().max() > 1e-3


def test_gradients_reach_the_past_only(model, sequence):
    channels = sequence["channels"].requires_grad_()
    run(model, sequence).logits[:, 25].square().sum().backward()
    assert (channels.grad[:, 26:] == 0).all()
    assert (channels.grad[:, 25] != 0).all()
    if model.config.working.carry == "scan":
        assert (channels.grad[:, :25] != 0).any()
