"""The Euler steps of working memory: both forms and the steps done by hand."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from torchcram.ops import euler_steps
from torchcram.ops.euler import fast, reference


def case(shape: tuple[int, ...], seed: int, width: int = 3) -> list[Tensor]:
    """h, drive, gate and weight, each with a gradient wanted."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    # h and drive are two halves of one tensor, as they are in working memory: neither is contiguous.
    h, drive = draw(*shape, 2 * width).chunk(2, dim=-1)
    gate = torch.sigmoid(draw(*shape, width))
    return [a.detach().requires_grad_() for a in (h, drive, gate, draw(width, width))]


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 1), (3, 7), (2, 0)], ids=str)
def test_fast_form_equals_reference(assert_forms_agree, shape, steps):
    seed = 10 * len(shape) + steps
    assert_forms_agree(
        lambda *a: fast.euler_steps(*a, steps),
        lambda *a: reference.euler_steps(*a, steps),
        *case(shape, seed),
        seed=seed,
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_gradients_of_fast_form(steps):
    assert gradcheck(lambda *a: fast.euler_steps(*a, steps), case((2, 2), seed=steps))


def test_two_steps_by_hand():
    h, drive, gate, weight = (torch.tensor([v]) for v in (0.5, 0.1, 0.8, -2.0))
    half = 0.5 + 0.8 * math.tanh(-2.0 * 0.5 + 0.1) / 2
    expected = half + 0.8 * math.tanh(-2.0 * half + 0.1) / 2
    torch.testing.assert_close(euler_steps(h, drive, gate, weight.view(1, 1), 2), torch.tensor([expected]))


def test_the_weight_is_applied_as_in_linear():
    h = torch.tensor([1.0, 0.0])
    weight = torch.tensor([[0.0, 0.0], [3.0, 0.0]])  # from entry 0 to entry 1
    out = euler_steps(h, torch.zeros(2), torch.ones(2), weight, 1)
    torch.testing.assert_close(out, torch.tensor([1.0, math.tanh(3.0)]))


def test_a_closed_gate_keeps_the_start_and_the_inputs_are_left_alone():
    h, drive, gate, weight = (a.detach() for a in case((2, 3), seed=1))
    kept = h.clone()
    assert torch.equal(euler_steps(h, drive, torch.zeros_like(gate), weight, 4), kept)
    euler_steps(h, drive, gate, weight, 4)
    assert torch.equal(h, kept)
