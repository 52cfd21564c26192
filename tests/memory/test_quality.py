"""Consolidation quality: when a recall can stand in for a read."""

import pytest
import torch
from torch import Tensor

from torchcram.config import RouterConfig
from torchcram.memory import QualityEstimator

WIDTH = 5


def estimator(**config) -> QualityEstimator:
    torch.manual_seed(0)
    return QualityEstimator(WIDTH, 8, RouterConfig(**config))


def reads(seed: int, batch: int = 3, count: int = 6) -> Tensor:
    return torch.randn(batch, count, WIDTH, generator=torch.Generator().manual_seed(seed))


def test_quality_is_one_for_equal_vectors_and_below_for_others():
    read = reads(1)
    recalled = read.clone()
    recalled[0, 2, 4] += 0.01
    q = estimator().exact(recalled, read)
    assert q[0, 2] < 1
    q[0, 2] = 1
    assert (q == 1).all()


def test_quality_falls_with_the_distance_in_units_of_the_variance():
    quality = estimator(scale=2.0)
    quality.reads.mean_square.fill_(4.0)
    read, recalled = torch.zeros(1, WIDTH), torch.full((1, WIDTH), 2.0)
    torch.testing.assert_close(quality.exact(recalled, read), torch.tensor([-20 / 8]).exp())


def test_no_gradient_flows_through_the_exact_quality():
    recalled, read = reads(1).requires_grad_(), reads(2).requires_grad_()
    assert not estimator().exact(recalled, read).requires_grad


@pytest.mark.parametrize("positions", [1, 100])
def test_the_estimate_learns_but_does_not_shape_what_it_sees(positions):
    quality, up = estimator(), torch.nn.Linear(3, WIDTH, bias=False)
    u, thought = (torch.randn(1, positions, size, requires_grad=True) for size in (WIDTH, 3))

    def logit() -> torch.Tensor:
        return quality.logit(u, thought, up)

    first = logit()
    first.sum().backward()
    assert u.grad is None
    assert thought.grad is None
    assert up.weight.grad is None
    assert all((p.grad != 0).any() for p in quality.parameters())
    up.weight.data += 1
    assert (logit() != first).any(), "the recall is part of what it sees"


def test_the_estimate_of_many_positions_is_that_of_each():
    quality, up = estimator(), torch.nn.Linear(3, WIDTH, bias=False)
    u, thought = torch.randn(1, 100, WIDTH), torch.randn(1, 100, 3)
    one_by_one = [quality.logit(u[:, i : i + 1], thought[:, i : i + 1], up) for i in range(100)]
    torch.testing.assert_close(quality.logit(u, thought, up), torch.cat(one_by_one, dim=1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_module_of_another_precision_works_too(dtype):
    quality, read = estimator().to(dtype), reads(3)
    assert quality.exact(read.to(dtype), read.to(dtype) + 1).dtype == dtype
