"""The clock of a call: gaps, positions and times across padding, packing and calls."""

import pytest
import torch
from torch import Tensor

from torchcram.memory import Timeline


def flags(*rows: str) -> Tensor:
    return torch.tensor([[c == "1" for c in row] for row in rows])


def test_a_plain_sequence():
    clock = Timeline.build(torch.tensor([[2.0, 0.0, 3.0]]))
    assert clock.mask.all()
    assert not clock.start.any()
    assert clock.position.tolist() == [[0, 1, 2, 3]]
    assert clock.time.tolist() == [[2.0, 2.0, 5.0]]
    assert clock.time.dtype == torch.float64
    torch.testing.assert_close(clock.log_gap, torch.tensor([[3.0, 1.0, 4.0]]).log())


def test_padding_takes_no_time_and_no_position():
    clock = Timeline.build(torch.full((2, 4), 5.0), mask=flags("1011", "0000"))
    assert clock.gap.tolist() == [[5.0, 0.0, 5.0, 5.0], [0.0] * 4]
    assert clock.position.tolist() == [[0, 1, 1, 2, 3], [0] * 5]
    assert clock.time.tolist() == [[5.0, 5.0, 10.0, 15.0], [0.0] * 4]


def test_the_unit_of_time_scales_gaps_and_times():
    clock = Timeline.build(torch.tensor([[6.0, 3.0]]), unit=3.0)
    assert clock.gap.tolist() == [[2.0, 1.0]]
    assert clock.time.tolist() == [[2.0, 3.0]]


def test_a_call_goes_on_where_the_last_one_ended():
    clock = Timeline.build(torch.ones(1, 3), position=torch.tensor([7]), time=torch.tensor([9.5], dtype=torch.float64))
    assert clock.position.tolist() == [[7, 8, 9, 10]]
    assert clock.time.tolist() == [[10.5, 11.5, 12.5]]


@pytest.mark.parametrize("begin", [0, 1, 4])
def test_a_packed_sequence_has_the_clock_it_would_have_alone(begin):
    dt = torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]])
    mask, start = flags("110111"), torch.zeros(1, 6, dtype=torch.bool)
    start[0, begin] = True
    packed = Timeline.build(
        dt, mask=mask, start=start, position=torch.tensor([3]), time=torch.tensor([50.0], dtype=torch.float64)
    )
    alone = Timeline.build(dt[:, begin:], mask=mask[:, begin:])
    assert torch.equal(packed.position[:, begin:], alone.position)
    assert torch.equal(packed.time[:, begin:], alone.time)


def test_the_last_of_several_starts_counts():
    clock = Timeline.build(torch.ones(1, 6), start=flags("010110"))
    assert clock.position.tolist() == [[0, 0, 1, 0, 0, 1, 2]]
    assert clock.time.tolist() == [[1.0, 1.0, 2.0, 1.0, 1.0, 2.0]]


@pytest.mark.parametrize("seed", range(4))
def test_any_chunks_give_the_clock_of_the_whole(seed):
    generator = torch.Generator().manual_seed(seed)
    dt = torch.rand(3, 12, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 12, generator=generator) < 0.7
    start = torch.rand(3, 12, generator=generator) < 0.2
    whole = Timeline.build(dt, mask=mask, start=start)
    position, time = None, None
    for begin, end in ((0, 1), (1, 5), (5, 12)):
        part = slice(begin, end)
        clock = Timeline.build(dt[:, part], mask=mask[:, part], start=start[:, part], position=position, time=time)
        assert torch.equal(clock.position[:, :-1], whole.position[:, part]), f"seed {seed}"
        torch.testing.assert_close(clock.time, whole.time[:, part], rtol=0, atol=1e-12)
        position, time = clock.position[:, -1], clock.time[:, -1]
    assert torch.equal(position, whole.position[:, -1]), f"seed {seed}"


def test_small_gaps_are_not_lost_in_long_streams():
    clock = Timeline.build(torch.full((1, 4), 1e-3), time=torch.tensor([1e8], dtype=torch.float64))
    torch.testing.assert_close(
        clock.time[0, 1:] - clock.time[0, :-1], torch.full((3,), 1e-3).double(), rtol=1e-4, atol=0
    )


def test_without_padding_and_packing_the_past_is_a_plain_shift():
    dt, x, carried = torch.rand(2, 7), torch.randn(2, 7, 3), torch.randn(2, 2, 3)
    plain = Timeline.build(dt, position=torch.tensor([5, 9]), time=torch.zeros(2, dtype=torch.float64))
    told = Timeline.build(
        dt, mask=torch.ones(2, 7, dtype=torch.bool), position=torch.tensor([5, 9]), time=torch.zeros(2).double()
    )
    for one, other in zip(plain.previous(x, carried), told.previous(x, carried), strict=True):
        assert torch.equal(one, other)
    assert plain.clean(x) is x
    assert torch.equal(told.clean(x), x)
