"""The competence gate: reads must help, clearly, and have finished helping more."""

import pytest

from torchcram.consolidation import CompetenceGate


def run(checks: list[tuple[float, float]], *, benefit: float = 0.05, patience: int = 3) -> int | None:
    """The first check at which a model with these (dense, off) losses is released."""
    gate = CompetenceGate(benefit=benefit, patience=patience)
    for number, (dense, off) in enumerate(checks):
        if gate.observe({"value": dense}, {"value": off}):
            return number
    return None


def test_release_after_reads_have_finished_helping_more():
    learning = [(2.7, 2.7), (1.2, 1.25), (0.9, 1.2), (0.3, 1.2), (0.05, 1.2), (0.01, 1.2)]
    settled = [(0.005, 1.2), (0.004, 1.2), (0.005, 1.2), (0.004, 1.2)]
    released = run(learning + settled)
    assert released is not None
    assert released >= len(learning), "not while the dense loss still falls"


def test_a_plateau_without_benefit_is_not_competence():
    assert run([(0.83, 0.83)] * 50) is None
    assert run([(0.83, 0.86)] * 50) is None


def test_ups_and_downs_are_not_a_benefit():
    """A head that needs no reads, with a noisy loss: sometimes much worse without them, never clearly."""
    noisy = [(0.6, 0.7), (1.1, 1.5), (0.7, 0.9), (1.4, 1.6), (0.8, 0.9), (0.6, 1.0)]
    assert run(noisy * 5) is None


def test_one_check_without_benefit_starts_the_wait_again():
    steady, broken = [(0.01, 1.0)] * 4, [(0.01, 0.01)]
    assert run(steady) == 3
    assert run(steady[:3] + broken + steady) == 7


def test_heads_that_are_helped_are_named():
    gate = CompetenceGate(benefit=0.05, patience=1)
    for _ in range(2):
        helped = gate.observe({"value": 0.01, "dynamics": 0.5}, {"value": 1.2, "dynamics": 0.5})
    assert helped == ["value"]


@pytest.mark.parametrize("patience", [1, 4])
def test_patience_is_counted_in_checks(patience):
    assert run([(0.01, 1.0)] * 10, patience=patience) == patience


def test_the_head_that_reads_are_for_must_be_helped():
    gate = CompetenceGate(benefit=0.05, patience=1, main="value")
    for _ in range(9):
        assert gate.observe({"value": 1.2, "dynamics": 0.6}, {"value": 1.2, "dynamics": 0.9}) == []
    for _ in range(2):
        helped = gate.observe({"value": 0.1, "dynamics": 0.6}, {"value": 1.2, "dynamics": 0.9})
    assert helped == ["value", "dynamics"]


def test_a_model_that_needs_no_reads_is_released():
    """Everything is learned by heart: without reads there is nothing left that they could bring."""
    gate = CompetenceGate(benefit=0.05, patience=2, main="value", floor=0.0, tolerance=0.01)
    dense = {"value": 0.001, "dynamics": 0.5}
    assert gate.observe(dense, {"value": 0.02, "dynamics": 0.5}) == []
    for _ in range(2):
        assert gate.observe(dense, {"value": 0.009, "dynamics": 0.5}) == [], "one check was further from the floor"
    assert gate.observe(dense, {"value": 0.009, "dynamics": 0.5}) == ["value"]
    unknown = CompetenceGate(benefit=0.05, patience=2, main="value", tolerance=0.01)
    assert [unknown.observe(dense, {"value": -3.0, "dynamics": 0.5}) for _ in range(5)] == [[]] * 5


def test_heads_that_reads_still_help_are_waited_for_and_held():
    gate = CompetenceGate(benefit=0.05, patience=1, main="value", floor=0.0, tolerance=0.01)
    for dynamics in (0.55, 0.5):
        assert gate.observe({"value": 0.0, "dynamics": dynamics}, {"value": 0.005, "dynamics": 0.9}) == []
    ready = gate.observe({"value": 0.0, "dynamics": 0.5}, {"value": 0.005, "dynamics": 0.9})
    assert ready == ["value", "dynamics"]


def test_a_head_alone_needs_no_name():
    gate = CompetenceGate(benefit=0.05, patience=1, floor=0.0, tolerance=0.01)
    assert [gate.observe({"label": 0.004}, {"label": 0.005}) for _ in range(2)] == [[], ["label"]]
