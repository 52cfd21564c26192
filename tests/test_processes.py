"""A batch shared by processes: means come out as over the whole, and one process notices nothing."""

import pytest
import torch

from torchcram import processes
from torchcram.memory.moments import RunningMoments
from torchcram.processes import Sharing


def as_process(rank: int, others: list[torch.Tensor], size: int = 2):
    """Process `rank`, to which the other ones send these tensors, one an exchange."""
    sent = iter(others)
    return processes.sharing(Sharing(rank=rank, size=size, add_up=lambda x: x.add_(next(sent))))


def test_one_process_gets_back_what_it_gave():
    a, b = torch.randn(3), torch.tensor(7)
    assert processes.totals(a, b) == (a, b)
    assert processes.total(a) is a
    assert processes.part_of_mean(a, b, b) is a
    assert processes.share(range(3, 9)) == range(3, 9)
    assert processes.per_process(b) == 7
    assert processes.per_process(torch.tensor(0)) == 1


def test_totals_keep_shape_and_kind_and_have_no_gradient():
    a, b = torch.ones(2, 3, requires_grad=True), torch.tensor(2**40 + 1)
    with as_process(0, [torch.arange(7.0).double()]):
        x, y = processes.totals(a, b)
    assert torch.equal(x, torch.arange(1.0, 7.0).view(2, 3))
    assert not x.requires_grad
    assert y.dtype == torch.int64
    assert y == 2**40 + 7


def test_parts_of_uneven_processes_average_to_the_mean():
    values = [torch.tensor([1.0, 2.0, 6.0]), torch.tensor([10.0])]
    by_sum, by_mean = [], []
    for rank, mine in enumerate(values):
        count, theirs = torch.tensor(len(mine)), torch.tensor([float(len(values[1 - rank]))])
        with as_process(rank, [theirs]):
            overall = processes.total(count)
            by_sum.append(mine.sum() / processes.per_process(overall))
            by_mean.append(processes.part_of_mean(mine.mean(), count, overall))
    expected = torch.cat(values).mean()
    torch.testing.assert_close(sum(by_sum) / 2, expected)
    torch.testing.assert_close(sum(by_mean) / 2, expected)


def test_running_means_are_those_of_all_reads():
    """Three reads here and one elsewhere weigh as four reads."""
    generator = torch.Generator().manual_seed(0)
    here, there = torch.randn(1, 3, 4, generator=generator), torch.randn(1, 1, 4, generator=generator) + 5
    shared, whole = (RunningMoments(4) for _ in range(2))
    elsewhere = torch.cat([torch.tensor([1.0]), there.sum((0, 1)), there.square().sum().view(1)]).double()
    with as_process(0, [elsewhere]):
        shared.observe(here, torch.ones(1, 3, dtype=torch.bool))
    whole.observe(torch.cat([here, there], dim=1), torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(dict(shared.named_buffers()), dict(whole.named_buffers()))


def test_rows_are_shared_evenly_or_not_at_all():
    shares = []
    for rank in range(3):
        with as_process(rank, [], size=3):
            shares.append(processes.share(range(2, 8)))
    assert shares == [range(2, 4), range(4, 6), range(6, 8)]
    with as_process(0, [], size=3), pytest.raises(ValueError, match="7 rows cannot be shared evenly by 3 processes"):
        processes.share(range(7))


def test_sharing_ends_with_its_block():
    with pytest.raises(RuntimeError), as_process(1, []):
        raise RuntimeError
    assert processes.share(range(4)) == range(4)
