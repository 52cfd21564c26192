"""Maps of several inputs: the same as of one that holds them all."""

import torch
from torch import nn

from torchcram.memory.joint import joint


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
