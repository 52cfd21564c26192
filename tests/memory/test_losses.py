"""The losses of a layer, on numbers small enough to work out by hand."""

import math

import pytest
import torch
from torch import Tensor

from torchcram.config import RouterConfig
from torchcram.memory import QualityEstimator
from torchcram.memory.episodic import Listed, Reading, Written
from torchcram.memory.losses import (
    Counts,
    best_quality,
    consolidation_losses,
    priority_loss,
    routing_losses,
    worth_telling,
)
from torchcram.ops import Events, Rows

NONE = torch.zeros(1, 0, dtype=torch.int64)
NOTHING = Listed(
    NONE, NONE.bool(), *torch.zeros(2, 1, 0, 1, 1), torch.zeros(1, 0), Events(NONE, NONE, NONE.double()), NONE
)


def reading(at: list[int], valid: list[bool], value: list[list[float]]) -> Reading:
    """What one sequence read."""
    return Reading(
        Rows(torch.tensor([at]), torch.tensor([valid])),
        NOTHING,
        torch.tensor([value], requires_grad=True),
        torch.zeros(1, 0),
        torch.zeros(1),
    )


def estimator() -> QualityEstimator:
    """Reads with a mean of (1, 2) and a variance of 3: their mean square is 8."""
    quality = QualityEstimator(2, 2, RouterConfig())
    quality.reads.mean.copy_(torch.tensor([1.0, 2.0]))
    quality.reads.mean_square.fill_(8.0)
    return quality


def counts(found: Reading | None = None, events: Written | None = None, mask: Tensor | None = None) -> Counts:
    return Counts.of(torch.ones(1, 1, dtype=torch.bool) if mask is None else mask, found, events)


def taught(recalled: Tensor, found: Reading, exact: Tensor, estimate: Tensor | None) -> dict[str, Tensor]:
    given = recalled, found.value, found.rows.valid, exact, estimate
    return consolidation_losses(*given, estimator().unit, counts(found).reads)


def of_priorities(events: Written, mass: list[float]) -> Tensor:
    """Of the new events."""
    priority = events.priority[:, -len(mass) :]
    return priority_loss(priority, torch.tensor([mass]), worth_telling(events), counts(events=events).events)


def cross_entropy(logit: float, target: float) -> float:
    p = 1 / (1 + math.exp(-logit))
    return -target * math.log(p) - (1 - target) * math.log(1 - p)


def test_losses_are_means_over_the_reads_computed():
    """Two reads; the third row is padding."""
    recalled = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [9.0, 9.0]]], requires_grad=True)
    found = reading([1, 3, 0], [True, True, False], [[0.0, 0.0], [0.0, 5.0], [7.0, 7.0]])
    exact = torch.tensor([[0.25, 0.75, 0.5]])
    estimate = torch.tensor([[0.4, -0.2, 3.0]], requires_grad=True)
    losses = taught(recalled, found, exact, estimate)
    assert losses["consolidation"].item() == pytest.approx((1 + 9) / 2 / 8)
    expected = (cross_entropy(0.4, 0.25) + cross_entropy(-0.2, 0.75)) / 2
    assert losses["quality"].item() == pytest.approx(expected, rel=1e-5)
    assert "quality" not in taught(recalled, found, exact, None)

    (losses["consolidation"] + losses["quality"]).backward()
    assert found.value.grad is None, "reads are taught from, never taught"
    assert recalled.grad[0].ne(0).any(-1).tolist() == [True, True, False]
    assert estimate.grad[0].ne(0).tolist() == [True, True, False]


def test_no_reads_cost_nothing():
    recalled, estimate = torch.ones(1, 0, 2, requires_grad=True), torch.ones(1, 0, requires_grad=True)
    nothing = Reading(
        Rows(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0, dtype=torch.bool)),
        NOTHING,
        torch.zeros(1, 0, 2),
        torch.zeros(1, 3),
        torch.zeros(1),
    )
    losses = taught(recalled, nothing, torch.zeros(1, 0), estimate)
    assert [x.item() for x in losses.values()] == [0.0, 0.0]
    sum(losses.values()).backward()
    assert recalled.grad is not None, "of what is empty there are gradients, too"
    assert estimate.grad is not None


def written(priority: list[float], admitted: list[bool], known: list[bool] | None = None) -> tuple[Written, Tensor]:
    weights = torch.tensor([priority], requires_grad=True)
    when = torch.zeros(1, len(priority), dtype=torch.int64)
    as_ever = torch.tensor([known or [False] * len(priority)])
    events = Written(weights, as_ever, when, Events(when, when, when), torch.tensor([admitted]))
    return events, weights


def test_priorities_predict_the_attention_received():
    """One held event, then three new ones: one with much attention (cut at 1), one with little, one kept out."""
    events, priority = written([5.0, 0.3, -0.7, 2.0], [True, True, False])
    loss = of_priorities(events, [3.5, 0.25, 0.0])
    assert loss.item() == pytest.approx((cross_entropy(0.3, 1.0) + cross_entropy(-0.7, 0.25)) / 2, rel=1e-5)
    loss.backward()
    assert priority.grad[0].ne(0).tolist() == [False, True, True, False]
    assert priority.grad[0, 1] < 0, "more attention than σ(w) raises w"


def test_what_says_nothing_new_teaches_priorities_nothing():
    events, priority = written([0.3, -0.7], [True, True], known=[True, False])
    loss = of_priorities(events, [0.0, 0.0])
    assert loss.item() == pytest.approx(cross_entropy(-0.7, 0.0), rel=1e-5)
    loss.backward()
    assert priority.grad[0].ne(0).tolist() == [False, True]


def test_no_writes_cost_nothing():
    events, _ = written([1.0, 2.0], [False, False])
    assert of_priorities(events, [1.0, 1.0]).item() == 0


def test_routing_terms_average_over_real_tokens():
    pi = torch.tensor([[[0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.0, 1.0, 0.0]]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    losses = routing_losses(pi, torch.tensor([[0.5, 0.9, 1.0]]), mask, counts(mask=mask).tokens)
    assert losses["reads"].item() == pytest.approx((0.5 + 0.1) / 2)
    assert losses["recall"].item() == pytest.approx(-(0.3 * 0.5 + 0.8 * 0.9) / 2)
    (losses["reads"] + losses["recall"]).backward()
    assert (pi.grad[0, 2] == 0).all()
    nothing = torch.zeros_like(mask)
    padded = routing_losses(pi, torch.ones(1, 3), nothing, counts(mask=nothing).tokens)
    assert [x.item() for x in padded.values()] == [0.0, 0.0]


def test_the_best_quality_is_exact_where_a_read_is_known():
    found = reading([2, 0], [True, False], [[0.0, 0.0], [0.0, 0.0]])
    best = best_quality(torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[0.0, 0.7]]), found.rows)
    torch.testing.assert_close(best, torch.tensor([[0.1, 0.2, 0.0]]))
