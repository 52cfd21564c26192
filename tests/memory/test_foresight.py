"""Working memory's prediction of its own next input: who learns, and from how much of a call."""

import pytest
import torch

from torchcram.memory import Timeline
from torchcram.memory.foresight import Foresight

WIDTH, RANK = 6, 3


def call(batch: int, length: int):
    torch.manual_seed(0)
    u, h = torch.randn(2, batch, length, WIDTH).unbind()
    return u.requires_grad_(), h.requires_grad_(), torch.randn(batch, 1, RANK)


def surprises(foresight: Foresight, u, h, carried):
    """One position after the other."""
    down, up = foresight
    before = torch.cat([carried, down(h)[:, :-1]], dim=1)
    return (u - up(before)).square().mean(-1), down(h)[:, -1:]


@pytest.mark.parametrize("length", [1, 5, 5000])
def test_surprise_is_how_far_off_the_prediction_was(length):
    foresight, (u, h, carried) = Foresight(WIDTH, RANK), call(3, length)
    timeline = Timeline.build(torch.ones(3, length))
    expected, last = surprises(foresight, u, h, carried)
    found, carry = foresight.surprise(u, h, timeline, carried)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(carry, last)


@pytest.mark.parametrize("masked", [False, True])
def test_a_short_call_is_learned_from_whole(masked):
    foresight, (u, h, carried) = Foresight(WIDTH, RANK), call(2, 7)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, 4:] = not masked
    timeline = Timeline.build(torch.ones(2, 7), mask=mask if masked else None)
    surprise, _ = foresight.surprise(u, h, timeline, carried)
    loss = foresight.loss(u, h, surprise, timeline, carried, mask.sum())
    torch.testing.assert_close(loss, surprise[mask].mean())


@pytest.mark.parametrize("length", [12_289, 40_000])
def test_of_a_long_call_some_positions_tell(length):
    foresight, (u, h, carried) = Foresight(WIDTH, RANK), call(2, length)
    timeline = Timeline.build(torch.ones(2, length))
    surprise, _ = foresight.surprise(u, h, timeline, carried)
    loss = foresight.loss(u, h, surprise, timeline, carried, torch.tensor(2 * length))
    assert loss.item() == pytest.approx(surprise.mean().item(), rel=0.03)
    loss.backward()
    assert u.grad is None, "the prediction is judged, not what it foretells"
    assert h.grad is None
    whole = Foresight(WIDTH, RANK)
    whole.load_state_dict(foresight.state_dict())
    surprises(whole, u.detach(), h.detach(), carried)[0].mean().backward()
    for name, parameter in foresight.named_parameters():
        exact = whole.get_parameter(name).grad
        assert torch.cosine_similarity(parameter.grad.flatten(), exact.flatten(), dim=0) > 0.9, name


def test_positions_that_tell_are_spread_over_rows_and_rhythms():
    """Of data that repeats after some positions, each phase is seen about as often; and so is the first position."""
    length = 16_384
    foresight, (_, h, carried) = Foresight(WIDTH, RANK), call(4, length)
    timeline = Timeline.build(torch.ones(4, length))
    for period in (2, 3, 8, 10):
        phase = (torch.arange(length) % period == 1).float().expand(4, length)
        u = (phase.unsqueeze(-1) * torch.ones(WIDTH)).contiguous()
        with torch.no_grad():
            foresight[1].weight.zero_()
            surprise, _ = foresight.surprise(u, h, timeline, carried)
            loss = foresight.loss(u, h, surprise, timeline, carried, torch.tensor(4 * length))
        assert loss.item() == pytest.approx(1 / period, rel=0.1), period
