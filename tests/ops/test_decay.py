"""The time-decay recurrence: both forms, the closed form, and what gaps and resets do to the state."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from torchcram.ops import decay_scan
from torchcram.ops.decay import fast, reference

LENGTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 100]


def case(length: int, seed: int, resets: tuple[int, ...] = (), batch: int = 3, width: int = 4) -> list[Tensor]:
    """x, rate, gap, reset, initial, with gradients wanted for all but `reset`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    # x is a part of a wider tensor, as it is in working memory: it is not contiguous.
    x = (draw(batch, length, 2 * width) - 0.5).chunk(2, dim=-1)[0]
    reset = torch.zeros(batch, length, dtype=torch.bool)
    for t in resets:
        reset[t % batch, t] = True
    arguments = [x, draw(width), 2 * draw(batch, length), reset, draw(batch, width)]
    return [a if a.dtype == torch.bool else a.detach().requires_grad_() for a in arguments]


@pytest.mark.parametrize("resets", ["none", "first", "last", "several", "all"])
@pytest.mark.parametrize("length", LENGTHS)
def test_fast_form_equals_reference(assert_forms_agree, length, resets):
    where = {
        "none": (),
        "first": (0,),
        "last": (length - 1,),
        "several": tuple(range(0, length, 3)),
        "all": tuple(range(length)),
    }[resets]
    arguments = case(length, seed=length, resets=where)
    if resets == "all":
        arguments[3] = torch.ones_like(arguments[3])
    assert_forms_agree(fast.decay_scan, reference.decay_scan, *arguments, seed=length)


@pytest.mark.parametrize("length", [1, 8, 11, 20])
def test_gradients_of_fast_form(length):
    assert gradcheck(fast.decay_scan, case(length, seed=length, resets=(length // 2,), batch=2, width=2))


def test_states_are_sums_of_decayed_inputs():
    x, rate, gap, reset, initial = (a.detach() for a in case(19, seed=1))
    states, last = decay_scan(x, rate, gap, reset, initial)
    time = gap.cumsum(1)
    for t in range(19):
        age = (time[:, t, None] - time[:, : t + 1]).unsqueeze(-1)
        direct = (torch.exp(-rate * age) * x[:, : t + 1]).sum(1)
        direct += torch.exp(-rate * time[:, t, None]) * initial
        torch.testing.assert_close(states[:, t], direct)
    assert torch.equal(last, states[:, -1])


def test_a_gap_of_zero_keeps_the_state():
    x, rate, gap, reset, initial = case(13, seed=2)
    states, _ = decay_scan(x, rate, torch.zeros_like(gap), reset, initial)
    torch.testing.assert_close(states, initial.unsqueeze(1) + x.cumsum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_gaps_forget_without_overflow(dtype):
    x, rate, gap, reset, initial = (a.detach() for a in case(21, seed=3))
    arguments = [a.to(dtype).requires_grad_() for a in (x, torch.full_like(rate, 10), torch.full_like(gap, 1000))]
    initial = initial.to(dtype).requires_grad_()
    states, _ = decay_scan(*arguments, reset, initial)
    assert torch.equal(states, arguments[0])
    for gradient in torch.autograd.grad(states.sum(), [*arguments, initial]):
        assert gradient.isfinite().all()


def test_a_reset_forgets_everything_before():
    x, rate, gap, reset, initial = case(17, seed=4)
    reset[:, 6] = True
    states, last = decay_scan(x, rate, gap, reset, initial)
    alone, _ = decay_scan(x[:, 6:], rate, gap[:, 6:], reset[:, 6:], torch.zeros_like(initial))
    torch.testing.assert_close(states[:, 6:], alone)
    to_x, to_initial = torch.autograd.grad(last.sum(), [x, initial])
    assert (to_initial == 0).all()
    assert (to_x[:, :6] == 0).all()
    assert (to_x[:, 6:] != 0).all()


@pytest.mark.parametrize("cut", [1, 8, 12, 22])
def test_two_calls_equal_one(cut):
    x, rate, gap, reset, initial = (a.detach() for a in case(23, seed=5, resets=(3, 16)))
    whole, end = decay_scan(x, rate, gap, reset, initial)
    first, middle = decay_scan(x[:, :cut], rate, gap[:, :cut], reset[:, :cut], initial)
    second, last = decay_scan(x[:, cut:], rate, gap[:, cut:], reset[:, cut:], middle)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(last, end)
