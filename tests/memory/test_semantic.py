"""Semantic memory: a map of low rank that starts at nothing and can learn."""

import torch
from torch import nn

from torchcram.config import SemanticConfig
from torchcram.memory import SemanticMemory


def trained(width: int = 7, rank: int = 3) -> SemanticMemory:
    torch.manual_seed(0)
    memory = SemanticMemory(width, SemanticConfig(rank=rank)).double()
    nn.init.normal_(memory.up.weight)
    return memory


def test_it_recalls_nothing_before_it_has_learned():
    memory = SemanticMemory(6, SemanticConfig(rank=2))
    assert (memory(torch.randn(3, 4, 6)) == 0).all()


def test_it_can_leave_that_start():
    torch.manual_seed(0)
    memory = SemanticMemory(6, SemanticConfig(rank=4))
    (memory(torch.randn(20, 6)) - 1).square().sum().backward()
    assert (memory.up.weight.grad != 0).any()


def test_the_map():
    memory = trained()
    u = torch.randn(2, 5, 7, dtype=torch.float64)
    expected = torch.relu(u @ memory.down.weight.T) @ memory.up.weight.T
    torch.testing.assert_close(memory(u), expected)
    assert (expected != u @ memory.down.weight.T @ memory.up.weight.T).any()


def test_recalls_span_no_more_than_the_rank():
    recalled = trained(width=7, rank=3)(torch.randn(50, 7, dtype=torch.float64))
    assert torch.linalg.matrix_rank(recalled) == 3
