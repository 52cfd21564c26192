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


def all_of(read: Tensor) -> Tensor:
    return torch.ones(read.shape[:2], dtype=torch.bool)


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
    quality.mean_square.fill_(4.0)
    read, recalled = torch.zeros(1, WIDTH), torch.full((1, WIDTH), 2.0)
    torch.testing.assert_close(quality.exact(recalled, read), torch.tensor([-20 / 8]).exp())


def test_no_gradient_flows_through_the_exact_quality():
    recalled, read = reads(1).requires_grad_(), reads(2).requires_grad_()
    assert not estimator().exact(recalled, read).requires_grad


def test_the_estimate_learns_but_does_not_shape_what_it_sees():
    quality = estimator()
    u, recalled = reads(1).requires_grad_(), reads(2).requires_grad_()
    quality.logit(u, recalled).sum().backward()
    assert u.grad is None
    assert recalled.grad is None
    assert all((p.grad != 0).any() for p in quality.parameters())
    moved = quality.logit(u, recalled + 1)
    assert (moved != quality.logit(u, recalled)).any(), "the recall is part of what it sees"


def test_the_first_observation_sets_the_centred_variance():
    quality, read = estimator(), reads(3) + 2
    quality.observe(read, all_of(read))
    flat = read.flatten(0, 1)
    torch.testing.assert_close(quality.variance, flat.var(0, correction=0).sum())
    torch.testing.assert_close(quality.mean, flat.mean(0))
    torch.testing.assert_close(quality.mean_square, flat.square().sum(1).mean())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_module_of_another_precision_works_too(dtype):
    quality, plain, read = estimator().to(dtype), estimator(), reads(3)
    quality.observe(read.to(dtype), all_of(read))
    plain.observe(read, all_of(read))
    torch.testing.assert_close(quality.variance.float(), plain.variance, rtol=0.02, atol=0)
    assert quality.exact(read.to(dtype), read.to(dtype) + 1).dtype == dtype


def test_a_direction_that_all_reads_share_changes_no_variance():
    plain, moved = estimator(), estimator()
    constant = 10 * torch.randn(WIDTH)
    for seed in range(5):
        read = reads(seed)
        plain.observe(read, all_of(read))
        moved.observe(read + constant, all_of(read))
    torch.testing.assert_close(moved.variance, plain.variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(moved.mean, plain.mean + constant)


def test_rows_without_weight_do_not_count():
    quality, other, read = estimator(), estimator(), reads(4)
    weight = all_of(read)
    weight[:, 3:] = False
    quality.observe(read, weight)
    other.observe(read[:, :3], all_of(read[:, :3]))
    torch.testing.assert_close(quality.variance, other.variance)


@pytest.mark.parametrize("count", [0, 4])
def test_no_reads_change_nothing(count):
    quality, read = estimator(), reads(5)
    quality.observe(read, all_of(read))
    before = {name: x.clone() for name, x in quality.named_buffers()}
    quality.observe(read[:, :count] + 1, torch.zeros(3, count, dtype=torch.bool))
    assert all(torch.equal(x, before[name]) for name, x in quality.named_buffers())


def test_early_observations_are_averaged_and_later_ones_follow_the_momentum():
    quality = estimator()
    squares = []
    for number in range(120):
        read = reads(number) + 1
        squares.append(read.square().sum(-1).mean())
        before = quality.mean_square.clone()
        quality.observe(read, all_of(read))
        if number < 100:
            torch.testing.assert_close(quality.mean_square, torch.stack(squares).mean())
    torch.testing.assert_close(quality.mean_square, before + 0.01 * (squares[-1] - before))


def test_single_reads_have_a_variance_together():
    """Each call computes one read: no spread in any of them, but among them."""
    quality = estimator()
    singles = torch.randn(400, 1, 1, WIDTH, generator=torch.Generator().manual_seed(0)) + 2
    for read in singles:
        quality.observe(read, all_of(read))
    assert quality.variance.item() == pytest.approx(WIDTH, rel=0.25)
