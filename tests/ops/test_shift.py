"""What a sequence held some real positions ago: padding is skipped, starts forget, calls join up."""

import pytest
import torch
from torch import Tensor

from torchcram.ops import previous
from torchcram.ops.shift import fast, reference


def positions(mask: Tensor, reset: Tensor, before: Tensor) -> Tensor:
    """Real positions of the same sequence before each one and before the next call, [B, N + 1], counted one by one."""
    out = []
    for b in range(mask.shape[0]):
        count, row = int(before[b]), []
        for t in range(mask.shape[1]):
            count = 0 if reset[b, t] else count
            row.append(count)
            count += bool(mask[b, t])
        out.append([*row, count])
    return torch.tensor(out)


def case(length: int, depth: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows: nothing special; padding; padding and starts; nothing but padding."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, length, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    carried = torch.randn(4, depth, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(4, length, generator=generator) < 0.7
    reset = torch.rand(4, length, generator=generator) < 0.25
    mask[0], mask[3], reset[:2], reset[3] = True, False, False, False
    before = torch.tensor([depth + 3, 1, 0, 2])
    return x, carried, mask, positions(mask, reset, before)


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 17])
def test_fast_form_equals_reference(assert_forms_agree, length, depth):
    seed = 10 * length + depth
    x, carried, mask, position = case(length, depth, seed)
    assert_forms_agree(
        lambda a, b: fast.previous(a, b, mask, position),
        lambda a, b: reference.previous(a, b, mask, position),
        x,
        carried,
        seed=seed,
    )


def test_nearest_first_across_padding_and_calls():
    x = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]])
    mask = torch.tensor([[True, False, True, True]])
    carried = torch.tensor([[[-1.0], [-2.0]]])
    out, carry = previous(x, carried, mask, torch.tensor([[9, 10, 10, 11, 12]]))
    assert out.squeeze(-1).tolist() == [[[-1.0, -2.0], [1.0, -1.0], [1.0, -1.0], [3.0, 1.0]]]
    assert carry.squeeze(-1).tolist() == [[4.0, 3.0]]


def test_a_start_hides_what_came_before():
    x = torch.tensor([[[1.0], [2.0], [3.0]]])
    carried = torch.tensor([[[-1.0], [-2.0]]])
    out, carry = previous(x, carried, torch.ones(1, 3, dtype=torch.bool), torch.tensor([[5, 0, 1, 2]]))
    assert out.squeeze(-1).tolist() == [[[-1.0, -2.0], [0.0, 0.0], [2.0, 0.0]]]
    assert carry.squeeze(-1).tolist() == [[3.0, 2.0]]


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_two_calls_equal_one(cut):
    x, carried, mask, position = case(13, 3, seed=cut)
    whole, end = previous(x, carried, mask, position)
    first, middle = previous(x[:, :cut], carried, mask[:, :cut], position[:, : cut + 1])
    second, last = previous(x[:, cut:], middle, mask[:, cut:], position[:, cut:])
    assert torch.equal(second, whole[:, cut:])
    assert torch.equal(first, whole[:, :cut])
    assert torch.equal(last, end)
