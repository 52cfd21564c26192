"""What a read is worth, told by one backward pass, against the loss with and without the read."""

import pytest
import torch

from torchcram.memory.utility import learn_worth
from torchcram.ops import Rows


def test_labels_are_what_the_loss_would_say():
    """A loss linear in x: its first-order change is its change."""
    generator = torch.Generator().manual_seed(0)
    slope, change = torch.randn(2, 5, 3, generator=generator), torch.randn(2, 4, 3, generator=generator)
    rows = Rows(torch.tensor([[0, 2, 4, 0], [1, 2, 3, 4]]), torch.tensor([[True, True, True, False], [True] * 4]))
    weight = torch.rand(2, 4, generator=generator)
    x = torch.randn(2, 5, 3, generator=generator).requires_grad_()
    logit = torch.randn(2, 4, generator=generator).requires_grad_()
    least = torch.tensor(0.3)

    passed, nothing = learn_worth(x, logit, rows, change, weight, least)
    assert nothing.item() == 0
    assert torch.equal(passed, x)
    ((passed * slope).sum() + 0.5 * nothing).backward()

    torch.testing.assert_close(x.grad, slope)
    worth = torch.zeros(2, 4)
    for b in range(2):
        for q in range(4):
            moved = x.detach().clone()
            moved[b, rows.at[b, q]] += change[b, q]
            worth[b, q] = (x.detach() * slope).sum() - (moved * slope).sum()
    other = logit.detach().clone().requires_grad_()
    cost = torch.nn.functional.binary_cross_entropy_with_logits(other, (worth < least).float(), reduction="none")
    (0.5 * cost * weight * rows.valid).sum().backward()
    torch.testing.assert_close(logit.grad, other.grad)
    assert 0 < float((worth < least).float().mean()) < 1


def test_unused_it_teaches_nothing():
    x, logit = torch.randn(1, 2, 3, requires_grad=True), torch.randn(1, 1, requires_grad=True)
    rows = Rows(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool))
    passed, _ = learn_worth(x, logit, rows, torch.ones(1, 1, 3), torch.ones(1, 1), torch.tensor(0.0))
    passed.sum().backward()
    assert logit.grad is None or logit.grad.abs().sum().item() == pytest.approx(0.0)
