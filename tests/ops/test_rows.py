"""Compaction of chosen positions, and the way there and back."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from torchcram.ops import Rows, add_rows, compact, gather_rows, scatter_rows
from torchcram.ops.rows import fast, following, reference


def pattern(name: str, batch: int, length: int) -> Tensor:
    chosen = torch.rand(batch, length, generator=torch.Generator().manual_seed(length)) < 0.5
    if name == "none":
        chosen[:] = False
    elif name == "all":
        chosen[:] = True
    elif name == "one empty row":
        chosen[0] = False
    elif name == "last only":
        chosen[:] = False
        chosen[-1, -1] = True
    return chosen


PATTERNS = ["random", "none", "all", "one empty row", "last only"]


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 33])
def test_fast_forms_equal_reference(assert_forms_agree, name, length):
    chosen = pattern(name, 3, length)
    rows, expected = fast.compact(chosen), reference.compact(chosen)
    assert torch.equal(rows.at, expected.at)
    assert torch.equal(rows.valid, expected.valid)
    assert torch.equal(rows.chosen, expected.chosen)
    for trailing in ((), (2,), (2, 3)):
        x = torch.randn(3, length, *trailing, dtype=torch.float64, requires_grad=True)
        assert_forms_agree(
            lambda a: fast.gather_rows(a, rows), lambda a: reference.gather_rows(a, rows), x, seed=length
        )
        values = torch.randn(*rows.at.shape, *trailing, dtype=torch.float64, requires_grad=True)
        assert_forms_agree(
            lambda a: fast.scatter_rows(a, rows, length),
            lambda a: reference.scatter_rows(a, rows, length),
            values,
            seed=length,
        )
        assert_forms_agree(
            lambda a, b: fast.add_rows(a, b, rows), lambda a, b: reference.add_rows(a, b, rows), x, values, seed=length
        )


@pytest.mark.parametrize("name", [name for name in PATTERNS if name != "none"])  # which has no gradients
@pytest.mark.parametrize("room", [None, 3, 20])
def test_compiled_code_fetches_the_same_there_and_back(assert_forms_agree, name, room):
    chosen = pattern(name, 3, 9)
    rows = fast.compact(chosen, room)
    x = torch.randn(3, 9, 2, dtype=torch.float64, requires_grad=True)
    values = torch.randn(*rows.at.shape, 2, dtype=torch.float64, requires_grad=True)

    def there_and_back(form):
        def run(a, b):
            return form.gather_rows(a, rows).sum(1), form.add_rows(a, b, rows), form.scatter_rows(b, rows, 9)

        return run

    compiled = torch.compile(there_and_back(fast), fullgraph=True, backend="aot_eager")
    assert_forms_agree(compiled, there_and_back(reference), x, values, seed=9)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=str)
def test_nothing_to_choose_from(shape):
    chosen = torch.zeros(shape, dtype=torch.bool)
    for form in (fast, reference):
        rows = form.compact(chosen)
        assert rows.at.shape == rows.valid.shape == (shape[0], 0)


def test_rows_list_the_chosen_positions_in_order():
    rows = compact(torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]).bool())
    assert rows.at.tolist() == [[1, 3], [2, 0], [0, 0]]
    assert rows.valid.tolist() == [[True, True], [True, False], [False, False]]


@pytest.mark.parametrize("room", [0, 1, 3])
def test_rows_say_how_many_were_chosen_whether_there_is_room_or_not(room):
    chosen = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]).bool()
    for form in (fast, reference):
        assert form.compact(chosen, room).chosen.tolist() == [2, 1, 0]


def test_the_next_chosen_position():
    chosen = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]).bool()
    assert following(chosen).tolist() == [[1, 3, 3, 5, 5], [5] * 5, [4, 4, 4, 4, 5]]


def test_padded_rows_neither_read_nor_write():
    rows = Rows(torch.tensor([[2, 0]]), torch.tensor([[True, False]]))
    x = torch.tensor([[torch.nan, 1.0, 2.0]])
    assert gather_rows(x, rows).tolist() == [[2.0, 0.0]]
    assert scatter_rows(torch.tensor([[5.0, torch.nan]]), rows, 3).tolist() == [[0.0, 0.0, 5.0]]
    assert add_rows(torch.ones(1, 3), torch.tensor([[5.0, torch.nan]]), rows).tolist() == [[1.0, 1.0, 6.0]]


@pytest.mark.parametrize("name", PATTERNS)
def test_there_and_back_keeps_the_chosen_and_zeroes_the_rest(name):
    chosen = pattern(name, 4, 11)
    rows = compact(chosen)
    for x in (torch.randn(4, 11, 3), torch.arange(44).view(4, 11)):
        back = scatter_rows(gather_rows(x, rows), rows, 11)
        keep = chosen if x.dim() == 2 else chosen.unsqueeze(-1)
        assert torch.equal(back, torch.where(keep, x, 0))


def test_gradients_go_where_the_values_came_from():
    rows = compact(pattern("one empty row", 2, 5))
    assert gradcheck(lambda a: fast.gather_rows(a, rows), torch.randn(2, 5, 2, dtype=torch.float64, requires_grad=True))
    values = torch.randn(*rows.at.shape, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda a: fast.scatter_rows(a, rows, 5), values)
