"""Random numbers by counting: uniform, independent, the same for any way of asking."""

import pytest
import torch

from torchcram.draws import Draws
from torchcram.ops.hashed.fast import mix

ROWS, COLUMNS = 64, 512


def draws(seed: int = 0, step: int = 0, rows: range = range(ROWS)) -> Draws:
    return Draws(seed=seed, step=step, rows=torch.arange(rows.start, rows.stop))


def test_mix_is_a_bijection_that_spreads_bits():
    numbers = torch.arange(1 << 16)
    assert mix(numbers).unique().numel() == 1 << 16
    flipped = mix(numbers) ^ mix(numbers ^ 1)
    bits = torch.stack([(flipped >> b) & 1 for b in range(32)]).double().mean(1)
    assert ((bits - 0.5).abs() < 0.02).all(), bits


def test_rows_are_sliceable():
    whole = draws().integers(3, COLUMNS)
    assert torch.equal(draws(rows=range(20, 30)).integers(3, COLUMNS), whole[20:30])
    assert torch.equal(draws().integers(3, 100), whole[:, :100])


def test_uniform_has_the_moments_of_a_uniform():
    u = draws().uniform(0, COLUMNS)
    n = u.numel()
    assert u.min() > 0
    assert u.max() < 1
    assert abs(float(u.mean()) - 0.5) < 5 * (1 / 12 / n) ** 0.5
    counts = torch.histc(u.float(), 64, 0, 1)
    chi = float(((counts - n / 64) ** 2 / (n / 64)).sum())
    assert 63 - 5 * (2 * 63) ** 0.5 < chi < 63 + 5 * (2 * 63) ** 0.5


def test_normal_has_the_moments_of_a_normal():
    x = draws().normal(0, COLUMNS)
    assert abs(float(x.mean())) < 5 / x.numel() ** 0.5
    assert float(x.var()) == pytest.approx(1, abs=5 * (2 / x.numel()) ** 0.5)
    assert float((x**4).mean()) == pytest.approx(3, abs=0.15)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: draws().uniform(0, COLUMNS), lambda: draws().uniform(1, COLUMNS)),
        (lambda: draws(seed=0).uniform(0, COLUMNS), lambda: draws(seed=1).uniform(0, COLUMNS)),
        (lambda: draws(seed=7).uniform(0, COLUMNS), lambda: draws(seed=7 + (1 << 40)).uniform(0, COLUMNS)),
        (lambda: draws(step=0).uniform(0, COLUMNS), lambda: draws(step=1).uniform(0, COLUMNS)),
        (lambda: draws().uniform(0, COLUMNS)[:-1], lambda: draws().uniform(0, COLUMNS)[1:]),
        (lambda: draws().uniform(0, COLUMNS)[:, :-1], lambda: draws().uniform(0, COLUMNS)[:, 1:]),
        (lambda: draws(step=1).uniform(0, COLUMNS)[:-1], lambda: draws(step=0).uniform(0, COLUMNS)[1:]),
    ],
    ids=["stream", "seed", "far seed", "step", "row", "column", "row and step"],
)
def test_what_differs_is_uncorrelated(one, other):
    a, b = one().flatten(), other().flatten()
    correlation = float(torch.corrcoef(torch.stack([a, b]))[0, 1])
    assert abs(correlation) < 5 / a.numel() ** 0.5
    assert not (a == b).any() or float((a == b).double().mean()) < 1e-6


def test_order_is_a_permutation_and_each_is_as_likely():
    orders = draws(rows=range(6000)).order(0, 3)
    assert torch.equal(orders.sort(1).values, torch.arange(3).expand(6000, 3))
    code = orders[:, 0] * 3 + orders[:, 1]
    counts = code.bincount(minlength=9)
    assert (counts[counts > 0] - 1000).abs().max() < 5 * (1000 * 5 / 6) ** 0.5
    assert (counts > 0).sum() == 6


def test_a_step_may_be_a_tensor():
    rows = torch.arange(5)
    for step in (0, 7, (1 << 40) + 3):
        plain, held = (Draws(seed=(1 << 35) + 1, step=each, rows=rows) for each in (step, torch.tensor(step)))
        assert torch.equal(plain.integers(3, 11), held.integers(3, 11))
