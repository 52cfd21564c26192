"""Maps of several inputs: the same as of one that holds them all."""

import pytest
import torch
from torch import nn

from torchcram.memory.joint import Map, column_beside, joint, side_by_side


def test_parts_need_not_be_joined():
    torch.manual_seed(0)
    for bias in (False, True):
        map = nn.Linear(9, 4, bias=bias).double()
        parts = [torch.randn(2, 3, size, dtype=torch.float64, requires_grad=True) for size in (4, 1, 4)]
        found, expected = joint(map, *parts), map(torch.cat(parts, dim=-1))
        torch.testing.assert_close(found, expected)
        inputs = [*parts, *map.parameters()]
        torch.testing.assert_close(
            torch.autograd.grad(found.square().sum(), inputs), torch.autograd.grad(expected.square().sum(), inputs)
        )


@pytest.mark.parametrize("positions", [2, 40])
def test_several_maps_of_one_input_are_each_what_they_are(positions):
    torch.manual_seed(0)
    maps = [nn.Linear(9, size, bias=bias).double() for size, bias in ((4, True), (1, False), (3, True))]
    x = torch.randn(2, positions, 9, dtype=torch.float64, requires_grad=True)
    inputs = [x, *(p for each in maps for p in each.parameters())]
    found = torch.cat(side_by_side(x, *(Map(each.weight, each.bias) for each in maps)), dim=-1)
    expected = torch.cat([each(x) for each in maps], dim=-1)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), inputs), torch.autograd.grad(expected.square().sum(), inputs)
    )


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("positions", [2, 40])
def test_a_column_learns_beside_maps_that_do_not(positions, others):
    torch.manual_seed(0)
    x = torch.randn(2, positions, 9, dtype=torch.float64, requires_grad=True)
    column, other = (torch.randn(size, 9, dtype=torch.float64, requires_grad=True) for size in (1, 4))
    found, known = column_beside(x, column, *[Map(other)][:others])
    expected = x @ column.t()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), [x, column]),
        torch.autograd.grad(expected.square().sum(), [x, column]),
    )
    assert len(known) == others
    for each in known:
        torch.testing.assert_close(each, x @ other.t())
        assert not each.requires_grad
