"""The other form of a state space, which benchmarks may use, finds the same."""

import pytest
import torch

from torchcram.bench.rival import fastest_space
from torchcram.ops import space, state_space
from torchcram.ops.dispatch import use


def test_without_a_gpu_it_is_ours():
    with fastest_space(torch.device("cpu")) as told:
        assert told == "ours, in PyTorch"
        assert "triton" not in space.FORMS


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of another package
def test_it_finds_what_ours_does():
    pytest.importorskip("fla")
    torch.manual_seed(0)
    batch, length, heads, size, width = 2, 200, 4, 64, 32

    def given():
        torch.manual_seed(1)
        x = torch.randn(batch, length, heads, width, device="cuda")
        decay = torch.rand(batch, length, heads, device="cuda")
        key, query = (torch.randn(batch, length, 1, size, device="cuda") / 8 for _ in range(2))
        initial = torch.randn(batch, heads, width, size, device="cuda")
        return [each.requires_grad_() for each in (x, decay, key, query, initial)]

    found = []
    for form in ("fast", "triton"):
        x, decay, key, query, initial = each = given()
        reset = torch.zeros(batch, length, dtype=torch.bool, device="cuda")
        with fastest_space(x.device) as told, use(form):
            out, last = state_space(x, decay, key, query, reset, initial)
        if "does not go back" in told:
            pytest.skip(told)
        assert told.startswith("flash-linear-attention")
        (out.square().mean() + last.square().mean()).backward()
        found.append([out, last, *(part.grad for part in each)])
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).norm() / ours.norm()) < 1e-2
