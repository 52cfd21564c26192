"""How a layer is compiled: once for learning, once for everything else."""

import torch
from torch import nn

from torchcram.memory.compiling import compile_layer


def test_learning_is_compiled_apart(monkeypatch):
    """With settings of its own, whatever order calls come in."""
    ran: list[bool] = []

    def pretend(call, options=None):
        return lambda *given: ran.append(options is not None) or call(*given)

    monkeypatch.setattr(torch, "compile", pretend)
    layer, x = nn.Linear(3, 3), torch.ones(2, 3)
    expected = layer(x)
    compile_layer(layer)
    for learning in (True, False, False, True):
        assert torch.equal(layer.train(learning)(x), expected)
    assert ran == [True, False, False, True]
