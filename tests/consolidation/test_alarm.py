"""The drift alarm: silent while surprises are as rare as expected, quick when they are not."""

import random

import pytest

from torchcram.consolidation import DriftAlarm


def surprises(rate: float, count: int, seed: int) -> list[bool]:
    draw = random.Random(seed)
    return [draw.random() < rate for _ in range(count)]


def test_it_is_silent_while_nothing_changes():
    alarm = DriftAlarm(expected=0.02)
    assert not alarm.observe(surprises(0.02, 200_000, seed=0))
    assert alarm.rang_at == []
    assert alarm.checks == 200_000


@pytest.mark.parametrize(("rate", "within"), [(1.0, 7), (0.5, 40), (0.1, 400)])
@pytest.mark.parametrize("seed", range(5))
def test_it_rings_soon_after_a_change(rate, within, seed):
    alarm = DriftAlarm(expected=0.02)
    alarm.observe(surprises(0.01, 5000, seed))
    assert alarm.observe(surprises(rate, within, seed + 100))
    assert alarm.rang_at[0] <= 5000 + within


def test_false_alarms_are_as_rare_as_stated():
    """`every` checks between them on average, at least: few ring in n checks if n is far below that."""
    rang = sum(DriftAlarm(expected=0.05, every=10_000).observe(surprises(0.05, 1000, seed)) for seed in range(300))
    assert rang <= 0.1 * 300 + 15  # n / every, and three standard deviations


def test_it_can_ring_at_all_when_false_alarms_are_cheap():
    alarm = DriftAlarm(expected=0.05, every=20)
    alarm.observe(surprises(0.05, 2000, seed=1))
    assert 2000 / len(alarm.rang_at) >= 20


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.2])
def test_it_learns_what_is_usual(rate):
    """Silent at that rate, and not much less alert than it has to be."""
    alarm = DriftAlarm.calibrated(surprises(rate, 2000, seed=5))
    assert rate < alarm.expected < 1.7 * rate + 0.02
    assert not alarm.observe(surprises(rate, 200_000, seed=6))
    assert alarm.observe(surprises(0.9, 60, seed=7))


@pytest.mark.parametrize(
    ("usual", "why"),
    [
        ([], "0 checks are too few"),
        ([False] * 10, "10 checks are too few"),
        ([True, False] * 500, "500 of 1000 checks"),
    ],
)
def test_too_little_or_too_much_is_not_called_usual(usual, why):
    with pytest.raises(ValueError, match=why):
        DriftAlarm.calibrated(usual)


def test_parts_add_up():
    whole, parts = DriftAlarm(), DriftAlarm()
    seen = surprises(0.015, 500, seed=3)
    whole.observe(seen)
    for begin in range(0, 500, 7):
        parts.observe(seen[begin : begin + 7])
    assert parts == whole


@pytest.mark.parametrize("change", [{"expected": 0.0}, {"expected": 0.5}, {"every": 0.5}])
def test_impossible_settings_are_refused(change):
    with pytest.raises(ValueError, match="is not possible; allowed: "):
        DriftAlarm(**change)
