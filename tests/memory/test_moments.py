"""Running means: of rows that come a few at a time."""

import pytest
import torch
from torch import Tensor

from torchcram.memory.moments import RunningMoments

WIDTH = 5


def reads(seed: int, batch: int = 3, count: int = 6) -> Tensor:
    return torch.randn(batch, count, WIDTH, generator=torch.Generator().manual_seed(seed))


def all_of(read: Tensor) -> Tensor:
    return torch.ones(read.shape[:2], dtype=torch.bool)


def test_the_first_observation_sets_the_centred_variance():
    moments, read = RunningMoments(WIDTH), reads(3) + 2
    moments.observe(read, all_of(read))
    flat = read.flatten(0, 1)
    torch.testing.assert_close(moments.variance, flat.var(0, correction=0).sum())
    torch.testing.assert_close(moments.mean, flat.mean(0))
    torch.testing.assert_close(moments.mean_square, flat.square().sum(1).mean())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_module_of_another_precision_works_too(dtype):
    moments, plain, read = RunningMoments(WIDTH).to(dtype), RunningMoments(WIDTH), reads(3)
    moments.observe(read.to(dtype), all_of(read))
    plain.observe(read, all_of(read))
    torch.testing.assert_close(moments.variance.float(), plain.variance, rtol=0.02, atol=0)


def test_a_direction_that_all_reads_share_changes_no_variance():
    plain, moved = RunningMoments(WIDTH), RunningMoments(WIDTH)
    constant = 10 * torch.randn(WIDTH)
    for seed in range(5):
        read = reads(seed)
        plain.observe(read, all_of(read))
        moved.observe(read + constant, all_of(read))
    torch.testing.assert_close(moved.variance, plain.variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(moved.mean, plain.mean + constant)


def test_rows_without_weight_do_not_count():
    moments, other, read = RunningMoments(WIDTH), RunningMoments(WIDTH), reads(4)
    weight = all_of(read)
    weight[:, 3:] = False
    moments.observe(read, weight)
    other.observe(read[:, :3], all_of(read[:, :3]))
    torch.testing.assert_close(moments.variance, other.variance)


@pytest.mark.parametrize("count", [0, 4])
def test_no_reads_change_nothing(count):
    moments, read = RunningMoments(WIDTH), reads(5)
    moments.observe(read, all_of(read))
    before = {name: x.clone() for name, x in moments.named_buffers()}
    moments.observe(read[:, :count] + 1, torch.zeros(3, count, dtype=torch.bool))
    assert all(torch.equal(x, before[name]) for name, x in moments.named_buffers())


def test_early_observations_are_averaged_and_later_ones_follow_the_momentum():
    moments = RunningMoments(WIDTH)
    squares = []
    for number in range(120):
        read = reads(number) + 1
        squares.append(read.square().sum(-1).mean())
        before = moments.mean_square.clone()
        moments.observe(read, all_of(read))
        if number < 100:
            torch.testing.assert_close(moments.mean_square, torch.stack(squares).mean())
    torch.testing.assert_close(moments.mean_square, before + 0.01 * (squares[-1] - before))


def test_single_reads_have_a_variance_together():
    """Each call computes one read: no spread in any of them, but among them."""
    moments = RunningMoments(WIDTH)
    singles = torch.randn(400, 1, 1, WIDTH, generator=torch.Generator().manual_seed(0)) + 2
    for read in singles:
        moments.observe(read, all_of(read))
    assert moments.variance.item() == pytest.approx(WIDTH, rel=0.25)
