"""The hard choice with a soft gradient, and the noise that makes it a sample."""

import pytest
import torch
from torch import Tensor

from torchcram.ops import gumbel, route
from torchcram.ops.route import fast, reference


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("length", [1, 2, 9, 16, 17])
def test_fast_form_equals_reference(assert_forms_agree, length, temperature):
    logits = draw(3, length, 3, seed=length).requires_grad_()
    noise = draw(3, length, 3, seed=length + 1)
    assert_forms_agree(
        lambda a: fast.route(a, noise, temperature),
        lambda a: reference.route(a, noise, temperature),
        logits,
        seed=length,
    )


@pytest.mark.parametrize("form", [fast, reference], ids=["fast", "reference"])
def test_ties_go_to_the_first(form):
    logits = torch.tensor([[[1.0, 1.0, 1.0], [0.0, 2.0, 2.0]]])
    assert form.route(logits, torch.zeros_like(logits), 1.0)[0].tolist() == [[0, 1]]


def test_weights_are_exactly_one_hot():
    logits = draw(50, 40, 3, seed=1).float().requires_grad_()
    actions, weights = route(logits, gumbel(logits, torch.Generator().manual_seed(1)), 0.7)
    assert torch.equal(weights, torch.nn.functional.one_hot(actions, 3).float())


def test_the_gradient_is_that_of_the_tempered_softmax():
    logits, noise, direction = draw(2, 5, 3, seed=2).requires_grad_(), draw(2, 5, 3, seed=3), draw(2, 5, 3, seed=4)
    _, weights = route(logits, noise, 0.4)
    (ours,) = torch.autograd.grad((weights * direction).sum(), logits)
    soft = torch.softmax((logits + noise) / 0.4, dim=-1)
    (expected,) = torch.autograd.grad((soft * direction).sum(), logits)
    torch.testing.assert_close(ours, expected)


def test_an_impossible_action_is_never_chosen_and_gets_no_gradient():
    base = draw(2, 50, 3, seed=5).requires_grad_()
    logits = base.index_fill(-1, torch.tensor([1]), -torch.inf)
    actions, weights = route(logits, gumbel(logits, torch.Generator().manual_seed(5)), 1.0)
    assert (actions != 1).all()
    (gradient,) = torch.autograd.grad((weights * draw(2, 50, 3, seed=6)).sum(), base)
    assert gradient.isfinite().all()
    assert (gradient[..., 1] == 0).all()
    assert (gradient[..., 0] != 0).any()


def test_gumbel_noise_samples_the_softmax():
    logits = torch.tensor([0.5, -1.0, 1.5]).expand(1, 40_000, 3)
    actions, _ = route(logits, gumbel(logits, torch.Generator().manual_seed(7)), 1.0)
    share = torch.bincount(actions.flatten(), minlength=3) / actions.numel()
    torch.testing.assert_close(share, torch.softmax(logits[0, 0], dim=-1), atol=0.01, rtol=0)


def test_gumbel_noise_is_finite_and_repeats_with_its_generator():
    logits = torch.empty(100, 1000, 3)
    first = gumbel(logits, torch.Generator().manual_seed(8))
    assert first.isfinite().all()
    assert torch.equal(first, gumbel(logits, torch.Generator().manual_seed(8)))
    assert not torch.equal(first, gumbel(logits, torch.Generator().manual_seed(9)))
