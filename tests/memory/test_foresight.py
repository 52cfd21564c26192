"""Working memory's prediction of its own next input: who learns, and from how much of a call."""

import pytest
import torch

from torchcram import processes
from torchcram.memory import Timeline
from torchcram.memory.foresight import Foresight, telling_positions

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


def related(batch: int, length: int, foresight: Foresight):
    """u that follows from the h before it, so that whoever looks at another h is far off; and what came before."""
    down, up = foresight
    _, h, carried = call(batch, length)
    carried = 30 * carried
    before = torch.cat([carried, down(h)[:, :-1]], dim=1)
    noise = torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(1))
    return (up(before) + 0.1 * noise).detach().requires_grad_(), h, carried


@pytest.mark.parametrize(("batch", "length"), [(2, 12_289), (2, 40_000), (9000, 3)])
def test_of_a_long_call_some_positions_tell(batch, length):
    foresight = Foresight(WIDTH, RANK)
    u, h, carried = related(batch, length, foresight)
    timeline = Timeline.build(torch.ones(batch, length))
    surprise, _ = foresight.surprise(u, h, timeline, carried)
    loss = foresight.loss(u, h, surprise, timeline, carried, torch.tensor(batch * length))
    at, apart = telling_positions(batch, length, u.device)
    assert at.numel() == pytest.approx(max(2048, batch), rel=0.1)
    assert apart.sum() == length, "each position is in one of the parts"
    begin = apart.cumsum(0) - apart
    assert bool(((at >= begin) & (at < begin + apart)).all())
    told = (surprise.gather(1, at) * apart).sum() / (batch * length)
    assert loss.item() == pytest.approx(told.item(), rel=1e-4), "as surprising as they are among all"
    assert loss.item() == pytest.approx(surprise.mean().item(), rel=0.03)
    loss.backward()
    assert u.grad is None, "the prediction is judged, not what it foretells"
    assert h.grad is None


@pytest.mark.parametrize("length", [12_289, 40_000])
def test_they_teach_what_all_would_teach(length):
    foresight, (u, h, carried) = Foresight(WIDTH, RANK), call(2, length)
    timeline = Timeline.build(torch.ones(2, length))
    surprise, _ = foresight.surprise(u, h, timeline, carried)
    foresight.loss(u, h, surprise, timeline, carried, torch.tensor(2 * length)).backward()
    whole = Foresight(WIDTH, RANK)
    whole.load_state_dict(foresight.state_dict())
    surprises(whole, u.detach(), h.detach(), carried)[0].mean().backward()
    for name, parameter in foresight.named_parameters():
        exact = whole.get_parameter(name).grad
        assert torch.cosine_similarity(parameter.grad.flatten(), exact.flatten(), dim=0) > 0.9, name


@pytest.mark.parametrize(("batch", "length"), [(1, 16_384), (8, 2048), (6, 5000), (16, 1024), (32, 2048)])
def test_positions_that_tell_are_spread_over_rhythms(batch, length):
    """Of data that repeats after some positions, each phase is seen."""
    at, _ = telling_positions(batch, length, torch.device("cpu"))
    for period in range(2, 129):
        seen = torch.bincount(at.flatten() % period, minlength=period)
        assert seen.min() > 0, period
        assert seen.max() < 3 * at.numel() / period, period


def test_processes_that_share_a_batch_learn_from_the_same_positions():
    foresight = Foresight(WIDTH, RANK)
    u, h, carried = related(4, 4096, foresight)
    tokens = torch.tensor(4 * 4096)

    def learn(rows: slice, tokens: torch.Tensor) -> tuple[float, torch.Tensor]:
        foresight.zero_grad()
        given = u[rows], h[rows]
        timeline = Timeline.build(torch.ones(given[0].shape[:2]))
        surprise, _ = foresight.surprise(*given, timeline, carried[rows])
        loss = foresight.loss(*given, surprise, timeline, carried[rows], tokens)
        loss.backward()
        return loss.item(), foresight[0].weight.grad.clone()

    expected, gradient = learn(slice(None), tokens)
    found = []
    for rank in (0, 1):
        with processes.sharing(processes.Sharing(rank=rank, size=2, add_up=lambda x: x)):
            found.append(learn(slice(2 * rank, 2 * rank + 2), tokens / 2))
    assert sum(loss for loss, _ in found) / 2 == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close((found[0][1] + found[1][1]) / 2, gradient, rtol=1e-4, atol=1e-6)
