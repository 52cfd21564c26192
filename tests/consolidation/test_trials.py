"""Consolidation by trials: what they tell is what the losses would be, and it releases and holds the price back."""

import json
import math

import pytest
import torch
from torch import Tensor

from torchcram.config import BlockConfig, EpisodicConfig, RouterConfig, SemanticConfig, WorkingConfig
from torchcram.consolidation import ConsolidationConfig, Phase, TrialConsolidator
from torchcram.memory import Block, RoutingPolicy, Timeline

BATCH, LENGTH, WIDTH = 16, 40, 8
SCORED = 13.0


def consolidator(**settings) -> TrialConsolidator:
    usual = {"signal": "utility", "lessons": 1, "check_every": 2, "patience": 2, "ramp": 2}
    return TrialConsolidator(ConsolidationConfig(**usual | settings))


class Layer:
    """One layer, and a loss linear in what comes out of it: so that of several reads is the sum of theirs."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.block = Block(
            block=BlockConfig(width=WIDTH, expansion=0),
            working=WorkingConfig(),
            episodic=EpisodicConfig(heads=2),
            semantic=SemanticConfig(rank=0),
            router=RouterConfig(rule="worth"),
        )
        self.x = torch.randn(BATCH, LENGTH, WIDTH)
        # What reads find lowers the loss.
        out = self.block(self.x, Timeline.build(torch.ones(BATCH, LENGTH)), policy=RoutingPolicy(reads="dense"))
        self.slope = -10 * out.reading.value.detach()

    def __call__(self, policy: RoutingPolicy) -> tuple[object, Tensor]:
        clock = Timeline.build(torch.ones(BATCH, LENGTH))
        out = self.block(self.x, clock, policy=policy, keep_state=False)
        return out, (out.x * self.slope).sum() / SCORED

    def loss(self, policy: RoutingPolicy) -> float:
        self.block.eval()
        with torch.no_grad():
            value = self(policy)[1].item()
        self.block.train()
        return value

    def train(self, watching: TrialConsolidator, steps: int) -> None:
        """Steps that change nothing."""
        for _ in range(steps):
            watching.count()
            policy = watching.policy(SCORED)
            out, loss = self(policy)
            watching.watch(out, policy, first=True)
            loss.backward()


def test_what_reads_gain_is_what_the_loss_would_lose_without():
    layer, watching = Layer(), consolidator(check_every=10**6)
    layer.train(watching, 60)
    gain = layer.loss(RoutingPolicy(reads="off")) - layer.loss(RoutingPolicy(reads="dense"))
    assert gain > 1
    assert -watching.losses(RoutingPolicy(reads="dense"))["loss"] == pytest.approx(gain, rel=0.05)
    assert watching.losses(RoutingPolicy(reads="off"))["loss"] == 0


def test_what_is_lost_is_what_the_loss_would_gain_by_reads():
    layer, watching = Layer(), consolidator(check_every=10**6, price=5.0, audit=0.2, ramp=1)
    layer.block.router.worth.out.weight.data.mul_(10)  # many reads are thought not to be worth it
    watching.released_at, watching.controller.at_release = 0, {"loss": -5.0}
    layer.train(watching, 150)
    dense = layer.loss(RoutingPolicy(reads="dense"))
    lost = layer.loss(RoutingPolicy()) - dense
    assert 0.2 < lost / (layer.loss(RoutingPolicy(reads="off")) - dense) < 0.8
    assert watching.losses(RoutingPolicy(reads="dense")) == {"loss": -5.0}
    assert watching.losses(RoutingPolicy())["loss"] == pytest.approx(lost - 5.0, rel=0.1)


def test_release_when_reads_gain_and_have_finished_gaining_more():
    layer, watching = Layer(), consolidator()
    assert watching.phase is Phase.ACQUIRE
    layer.train(watching, 40)
    assert watching.phase is Phase.CONSOLIDATE
    assert watching.released_at > 4
    idle = consolidator()
    layer.slope = torch.zeros_like(layer.slope)
    layer.train(idle, 40)
    assert idle.released_at is None


def test_the_price_backs_off_while_too_much_is_lost():
    layer, watching = Layer(), consolidator(price=1e9, tolerance=1e-3)
    layer.train(watching, 80)
    assert watching.controller.excess > 1
    assert watching.controller.pressure < 0.01


def test_what_reads_gained_before_is_not_taken_for_lost():
    layer, watching = Layer(), consolidator(price=0.0)
    layer.train(watching, 40)
    assert watching.released_at < 30
    assert watching.controller.excesses == [0.0] * 3


def test_what_was_lost_is_kept_in_mind_for_a_while():
    layer, watching = Layer(), consolidator(check_every=1, price=0.0)
    released = {"released_at": 0, "told": [2.0, 1.0]}
    watching.load_state_dict(watching.state_dict() | released)
    watching.controller.at_release = {"loss": -5.0}
    layer.train(watching, 3)
    excesses = watching.controller.excesses
    assert excesses[0] == pytest.approx(2.0)
    assert excesses[0] > excesses[1] > excesses[2] > 0.1


def test_layers_add_up():
    one, two = consolidator(check_every=10**6), consolidator(check_every=10**6)
    layer = Layer()
    for watching, times in ((one, 1), (two, 2)):
        torch.manual_seed(5)
        watching.count()
        policy = watching.policy(SCORED)
        out, loss = layer(policy)
        for number in range(times):
            watching.watch(out, policy, first=number == 0)
        loss.backward()
    dense = RoutingPolicy(reads="dense")
    assert two.losses(dense)["loss"] == pytest.approx(2 * one.losses(dense)["loss"])


def test_a_pass_that_is_not_finite_says_nothing():
    layer, watching = Layer(), consolidator(check_every=10**6)
    layer.train(watching, 3)
    before = watching.state_dict()
    layer.slope = torch.full_like(layer.slope, math.nan)
    layer.train(watching, 1)
    assert watching.state_dict() == {**before, "steps": 4}


def test_the_state_is_plain_data_and_comes_back():
    layer, watching = Layer(), consolidator(check_every=7)
    layer.train(watching, 17)
    data = json.loads(json.dumps(watching.state_dict()))
    again = consolidator(check_every=7)
    again.load_state_dict(data)
    assert again.state_dict() == watching.state_dict()
    for c in (watching, again):
        torch.manual_seed(3)
        layer.train(c, 30)
    assert again.state_dict() == watching.state_dict()
    assert again.released_at is not None


@pytest.mark.parametrize(
    "settings", [{"signal": "quality"}, {"schedule": "plain"}, {"trial": 0.0}, {"audit": 0}], ids=str
)
def test_without_trials_it_could_not_decide(settings):
    (name,) = settings
    with pytest.raises(
        ValueError, match=rf"consolidation.{name} = .* is not possible; allowed: .* where trials decide"
    ):
        consolidator(**settings)
