"""The consolidator: phases, prices, and use in a loop of one's own."""

import json

import pytest
import torch

from torchcram import Cram, CramConfig
from torchcram.consolidation import ConsolidationConfig, Consolidator, Phase
from torchcram.memory import RoutingPolicy

LOSSES = {
    "reads": torch.tensor(0.5),
    "recall": torch.tensor(-0.2),
    "consolidation": torch.tensor(3.0),
    "quality": torch.tensor(0.7),
    "uncertainty": torch.tensor(1.0),
    "priority": torch.tensor(0.4),
}


def competent(policy: RoutingPolicy) -> dict[str, float]:
    return {"value": 1.2 if policy.reads == "off" else 0.01}


def hopeless(policy: RoutingPolicy) -> dict[str, float]:
    return {"value": 0.83}


def consolidator(**settings) -> Consolidator:
    return Consolidator(ConsolidationConfig(**{"check_every": 5, "patience": 2, "ramp": 10} | settings))


def released(**settings) -> Consolidator:
    c = consolidator(**settings)
    while c.released_at is None:
        c.step(competent)
    return c


def test_acquire_reads_densely_and_costs_nothing():
    c = consolidator(skip=0.1)
    assert c.phase is Phase.ACQUIRE
    assert c.policy(7) == RoutingPolicy(reads="dense", skip=0.1, keep_all=True, scored=7)
    assert c.price == 0
    own = 0.5 * 3.0 + 1.0 * 0.7 + 0.1 * 1.0 + 0.1 * 0.4
    assert c.loss(LOSSES, positions=100, scored=5).item() == pytest.approx(own)


def test_a_model_that_never_learns_to_read_is_never_released():
    c = consolidator()
    for _ in range(500):
        c.step(hopeless)
    assert c.released_at is None
    assert c.phase is Phase.ACQUIRE


def test_a_release_that_was_set_waits_for_nothing():
    c = consolidator(release=0)
    assert c.phase is Phase.CONSOLIDATE
    assert c.policy().reads == "routed"
    c = consolidator(release=7)
    for _ in range(7):
        assert c.phase is Phase.ACQUIRE
        c.step(hopeless)
    assert c.released_at == 7
    c = consolidator(release=100)
    for _ in range(50):
        c.step(competent)
    assert c.released_at is None  # nor does it come sooner
    again = consolidator(release=7)
    again.load_state_dict(json.loads(json.dumps(c.state_dict())))
    assert again.steps == 50


def test_the_temperature_falls_with_the_price_or_as_it_is_told_to():
    for cooling, over in ((None, 10), (40, 40)):
        c = released(cooling=cooling, temperature=0.5)
        assert c.policy().temperature == 1
        for _ in range(over // 2):
            c.step(competent)
        assert c.policy().temperature == pytest.approx(0.75)
        for _ in range(over):
            c.step(competent)
        assert c.policy().temperature == 0.5
        assert c.progress == 1
    paper = Consolidator(ConsolidationConfig(schedule="paper", signal="paper", cooling=100))
    paper.steps = 50
    assert paper.policy().temperature == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cooling": 0}, "consolidation.cooling = 0 is not possible"),
        ({"release": -1}, "consolidation.release = -1 is not possible"),
        ({"release": 5, "schedule": "plain"}, "consolidation.release = 5 is not possible; allowed: None but with"),
    ],
)
def test_times_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ConsolidationConfig(**settings)


def test_release_then_a_rising_price():
    c = released(price=0.2)
    assert c.released_at == 15
    assert c.phase is Phase.CONSOLIDATE
    assert c.policy().reads == "routed"
    assert c.price == 0
    prices = []
    for _ in range(12):
        c.step(competent)
        prices.append(c.price)
    assert prices[4] == pytest.approx(0.1)
    assert prices[-1] == pytest.approx(0.2)


def test_a_price_is_nats_per_read():
    """1 % of positions scored, one read for two positions: 50 reads a scored position."""
    c = released(price=0.2, reward=0.5)
    for _ in range(10):
        c.step(competent)
    own = 0.5 * 3.0 + 1.0 * 0.7 + 0.1 * 1.0 + 0.1 * 0.4
    added = c.loss(LOSSES, positions=1000, scored=10).item() - own
    assert added == pytest.approx(0.2 * 100 * (0.5 - 0.5 * 0.2), rel=1e-5)


def test_a_broken_tolerance_lowers_the_price():
    c = released(price=0.2, tolerance=0.01)

    def worse_when_routed(policy):
        return {"value": 0.5 if policy.reads == "routed" else 0.01}

    for _ in range(40):
        c.step(worse_when_routed)
    assert c.price < 0.01


def test_checks_are_only_made_when_due():
    calls = []
    c = consolidator()
    for _ in range(20):
        c.step(lambda policy: calls.append(policy.reads) or competent(policy))
    assert len(calls) == 2 * 4


def test_settling():
    c = released()
    c.settle()
    assert c.phase is Phase.SETTLE


def test_the_paper_charges_from_the_first_step():
    c = consolidator(schedule="paper", signal="paper")
    assert c.policy() == RoutingPolicy(temperature=1.0)
    cost = 0.1 * 0.5 - 0.05 * 0.2
    own = 0.5 * 3.0 + 1.0 * 0.7 + 0.1 * 1.0 + 0.1 * 0.4
    assert c.loss(LOSSES, positions=100, scored=5).item() == pytest.approx(own + cost)
    summed = consolidator(schedule="paper", signal="paper", paper_sum=True)
    assert summed.loss(LOSSES, positions=100, scored=5).item() == pytest.approx(own + 100 * cost)
    for _ in range(3000):
        c.step(hopeless)
    assert c.policy().temperature == pytest.approx(0.1)


def test_state_goes_through_json():
    c = released()
    for _ in range(7):
        c.step(competent)
    other = consolidator()
    other.load_state_dict(json.loads(json.dumps(c.state_dict())))
    assert other.state_dict() == c.state_dict()
    for _ in range(10):
        assert other.step(competent) == c.step(competent)
        assert other.price == c.price
        assert other.policy() == c.policy()


@pytest.mark.parametrize("name", ["tolerance", "price", "ramp", "audit", "skip", "temperature", "patience"])
def test_impossible_settings_are_named(name):
    with pytest.raises(ValueError, match=rf"consolidation.{name} = -1 is not possible"):
        ConsolidationConfig(**{name: -1})


def test_in_a_loop_of_ones_own():
    torch.manual_seed(0)
    model = Cram(CramConfig.preset("tiny", inputs="tokens", vocabulary=8, outputs="tokens"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    c = consolidator(check_every=2, patience=1)
    for _ in range(6):
        tokens = torch.randint(0, 8, (2, 12))
        out = model(tokens[:, :-1], policy=c.policy(), keep_state=False)
        task = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss = task + c.loss(out.losses, positions=22, scored=22)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        c.step(competent)
    assert c.phase is Phase.CONSOLIDATE
    assert c.price > 0
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("mixed", [{"schedule": "paper"}, {"signal": "paper"}], ids=str)
def test_the_papers_schedule_and_signal_go_together(mixed):
    with pytest.raises(
        ValueError, match=r"consolidation.signal = .* allowed: 'paper' with schedule='paper', and only then"
    ):
        ConsolidationConfig(**mixed)


def test_utility_tries_reads_and_asks_a_price_of_the_rule_itself():
    c = consolidator(signal="utility", trial=0.2)
    assert c.policy(7) == RoutingPolicy(reads="dense", skip=0.1, trial=0.2, keep_all=True, scored=7)
    with pytest.raises(ValueError, match="needs policy"):
        c.policy()
    c = released(signal="utility", trial=0.2, price=0.3, reward=0.5)
    while c.progress < 1:
        c.step(competent)
    while not c.policy(3).lesson:
        c.step(competent)
    policy = c.policy(3)
    assert policy.trial == 0.2
    assert policy.scored == 3
    assert policy.price == c.price > 0
    own = c.loss({**LOSSES, "reads": torch.tensor(0.0), "recall": torch.tensor(0.0)}, positions=100, scored=5)
    paid = c.loss(LOSSES, positions=100, scored=5) - own
    assert paid.item() == pytest.approx(c.price * 100 / 5 * 0.5 * LOSSES["recall"].item(), rel=1e-4)
    assert released(trial=0.2).policy().trial == 0


def test_once_the_price_has_risen_lessons_are_rare():
    c = released(signal="utility", trial=0.2, lessons=5, ramp=10)
    lessons = []
    for _ in range(40):
        policy = c.policy(7)
        assert policy.trial == (0.2 if policy.lesson else 0)
        lessons.append((c.steps, policy.lesson))
        c.step(competent)
    risen = c.released_at + 10
    assert all(lesson for step, lesson in lessons if step < risen)
    assert [step for step, lesson in lessons if lesson and step >= risen] == [
        step for step, _ in lessons if step >= risen and step % 5 == 0
    ]


def test_a_main_head_that_is_not_there_is_told():
    c = Consolidator(ConsolidationConfig(check_every=1), main="nope")
    with pytest.raises(ValueError, match="main = 'nope' is not a head; heads: "):
        c.step(competent)


def test_a_loop_can_release_for_reasons_of_its_own():
    consolidator = Consolidator(ConsolidationConfig(ramp=10))
    consolidator.steps = 7
    consolidator.release({"label": 0.3})
    assert (consolidator.released_at, consolidator.phase) == (7, Phase.CONSOLIDATE)
    assert consolidator.controller.at_release == {"label": 0.3}
    consolidator.steps = 9
    consolidator.release()  # once is enough
    assert consolidator.released_at == 7
    assert consolidator.progress == pytest.approx(0.2)
