"""The state space: in chunks as position after position."""

import pytest
import torch

from torchcram.ops import state_space, use


def make(length, heads=3, groups=1, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=dtype)

    x, initial = normal(2, length, heads, 4), normal(2, heads, 4, 5)
    key, query = normal(2, length, groups, 5), normal(2, length, groups, 5)
    decay = torch.rand(2, length, heads, generator=draw, dtype=dtype)
    reset = torch.rand(2, length, generator=draw) < torch.tensor([[0.0], [0.03]])
    return x, decay, key, query, reset, initial


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_chunks_give_what_a_walk_gives(length, groups):
    given = make(length, groups=groups)
    with use("reference"):
        expected = state_space(*given)
    for mine, wanted in zip(state_space(*given), expected, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-9)


def test_gradients_agree():
    *parts, reset, initial = make(130)
    found = []
    for form in ("reference", "fast"):
        leaves = [part.clone().requires_grad_() for part in (*parts, initial)]
        with use(form):
            out, last = state_space(*leaves[:4], reset, leaves[4])
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
        found.append(torch.autograd.grad((out * weight).sum() + last.square().sum(), leaves))
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-8, atol=1e-8)


def test_fast_decay_leaves_no_infinities():
    x, decay, key, query, reset, initial = make(130, dtype=torch.float32)
    parts = [part.requires_grad_() for part in (x, 1e4 * decay, key, query, initial)]
    out, last = state_space(*parts[:4], reset, parts[4])
    grads = torch.autograd.grad(out.sum() + last.sum(), parts)
    assert all(part.isfinite().all() for part in (out, last, *grads))
