"""Weights that are made narrow all at once: what autocast makes of them, and the same gradients."""

import pytest
import torch
from torch import nn

from torchcram.memory import Norm, narrowly

WIDTH = 8


class Part(nn.Module):
    """A bit of everything: a norm, maps with and without bias, a matrix of its own, and numbers that stay wide."""

    NARROW, WIDE = ("own",), ("scaled",)

    def __init__(self):
        super().__init__()
        self.norm = Norm(WIDTH)
        self.maps = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False))
        self.own = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.wide = nn.Parameter(torch.randn(WIDTH))
        self.scaled = nn.Sequential(nn.Linear(WIDTH, WIDTH))
        self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        self.seen = {name: x.dtype for name, x in self._every()}
        x = x + self.maps(self.norm(x)) + nn.functional.linear(x, self.wide * self.scaled[0].weight)
        return x * self.wide + nn.functional.linear(x, self.own)

    def _every(self):
        yield "own", self.own
        yield "wide", self.wide
        for name in ("norm", "maps.0", "maps.1", "scaled.0"):
            yield name, self.get_submodule(name).weight


def numbers(seed: int = 0) -> tuple[Part, torch.Tensor]:
    torch.manual_seed(seed)
    return Part(), torch.randn(5, WIDTH)


def test_without_autocast_nothing_is_narrow():
    part, x = numbers()
    torch.testing.assert_close(narrowly(part, x), part(x), rtol=0, atol=0)
    assert set(part.seen.values()) == {torch.float32}


def test_numbers_and_gradients_are_those_of_autocast():
    part, x = numbers()
    x = x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        expected = part(x)
        assert part.seen["maps.0"] == torch.float32
        found = narrowly(part, x)
    assert {part.seen.pop(name) for name in ("wide", "scaled.0")} == {torch.float32}
    assert set(part.seen.values()) == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in part.parameters()), "afterwards they are as before"
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    weights = {name: p for name, p in part.named_parameters() if name.split(".")[0] != "unused" and p.dim()}
    weights.pop("scaled.0.bias")
    for out in (expected, found):
        part.zero_grad()
        out.float().square().sum().backward()
        now = {name: p.grad.clone() for name, p in weights.items()}
        if out is expected:
            first = now
    for name in weights:
        assert now[name].dtype == torch.float32
        torch.testing.assert_close(now[name], first[name], rtol=2e-2, atol=2e-2 * float(first[name].abs().max()))
    assert part.unused.weight.grad is None, "what taught nothing has no gradient, rather than one of zeros"


@torch.no_grad()
def test_where_nothing_is_learned_a_module_stays_as_it_is():
    """So that several threads can use it at the same time."""
    part, x = numbers()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(narrowly(part, x), part(x), rtol=0, atol=0)
    assert set(part.seen.values()) == {torch.float32}


def test_gradients_have_gradients():
    part, x = numbers()
    with torch.autocast("cpu", torch.bfloat16):
        out = narrowly(part, x).float().square().sum()
    (first,) = torch.autograd.grad(out, part.own, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), part.maps[0].weight)
    assert second.abs().sum() > 0


def test_what_is_frozen_stays_without_gradient():
    part, x = numbers()
    part.maps.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        narrowly(part, x).float().sum().backward()
    assert part.maps[0].weight.grad is None
    assert part.own.grad is not None
    part.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert not narrowly(part, x).requires_grad


def test_arguments_reach_the_module_as_they_are():
    part, x = numbers()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(narrowly(part, x=x), narrowly(part, x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_as_narrow_as_what_it_is_given(dtype):
    check_norm(dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_so_it_is_on_a_gpu(dtype):
    """Where some versions of autocast would make it wide."""
    with torch.autocast("cuda", torch.bfloat16):
        check_norm(dtype, "cuda")


def check_norm(dtype: torch.dtype, device: str):
    norm, x = Norm(WIDTH).to(device), torch.randn(3, WIDTH, device=device)
    norm.weight.data.uniform_(0.5, 2)
    expected = x / (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt() * norm.weight
    found = norm(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
