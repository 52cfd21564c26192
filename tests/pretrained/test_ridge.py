"""Regression from sums is regression on samples."""

import pytest
import torch

from torchcram.pretrained.ridge import Linear, Moments, choose


def samples(count=200, inputs=7, targets=3, *, seed=0, shift=5.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, inputs, generator=generator, dtype=torch.float64) + shift
    true = torch.randn(inputs, targets, generator=generator, dtype=torch.float64)
    return x, x @ true + 2 + 0.3 * torch.randn(count, targets, generator=generator, dtype=torch.float64)


def summed(x, y, parts=4):
    moments = Moments(x.shape[1], y.shape[1])
    for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
        moments.add(a, b)
    return moments


def test_it_equals_a_direct_solve():
    x, y = samples()
    found = summed(x, y).solve(0.0)
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    direct = torch.linalg.lstsq(torch.cat([x, ones], dim=1), y).solution
    torch.testing.assert_close(found.weight, direct[:-1], atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(found.bias, direct[-1], atol=1e-8, rtol=1e-8)


def test_the_penalty_is_on_weights_alone_and_in_units_of_the_inputs():
    x, y = samples()
    strength = 0.1
    found = summed(x, y).solve(strength)
    a, b = x - x.mean(0), y - y.mean(0)
    scale = a.square().sum(0).mean()
    rows = torch.cat([a, (strength * scale).sqrt() * torch.eye(7, dtype=torch.float64)])
    direct = torch.linalg.lstsq(rows, torch.cat([b, b.new_zeros(7, 3)])).solution
    torch.testing.assert_close(found.weight, direct, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(found(x).mean(0), y.mean(0))
    again = summed(1000 * x, y).solve(strength)
    torch.testing.assert_close(1000 * again.weight, found.weight, atol=1e-8, rtol=1e-8)


def test_errors_come_from_sums_as_well():
    x, y = samples()
    found = summed(x, y).solve(0.01)
    other, true = samples(seed=1)
    torch.testing.assert_close(summed(other, true).error(found), (found(other) - true).square().mean(0))


def test_the_penalty_is_chosen_by_samples_apart():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 30, generator=generator, dtype=torch.float64)
    y = torch.randn(40, 2, generator=generator, dtype=torch.float64)  # nothing to learn
    found, strength = choose(summed(x[:30], y[:30]), summed(x[30:], y[30:]))
    assert strength == 1.0
    torch.testing.assert_close(found.weight, summed(x, y).solve(1.0).weight)
    x, y = samples(400, shift=0.0)
    assert choose(summed(x[:300], y[:300]), summed(x[300:], y[300:]))[1] <= 1e-3


def test_a_single_sample_is_too_few():
    with pytest.raises(ValueError, match="two samples or more, not 1"):
        summed(*samples(1), parts=1).solve(0.1)


def test_a_constant_input_is_borne():
    x, y = samples()
    x[:, 0] = 1.0
    found = summed(x, y).solve(1e-6)
    assert found.weight.isfinite().all()
    assert isinstance(found, Linear)
