"""Lengths that are kept: lists are the same, whatever room they have, and too little room is noticed."""

import pytest
import torch

from torchcram.ops import Lengths, compact, gather_rows
from torchcram.ops.rows import fast, kept, reference


def chosen(*counts, length=100):
    return torch.stack([torch.randperm(length) < count for count in counts])


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_have_room_as_well(count):
    lengths = Lengths()
    for _ in range(2):
        with lengths.kept():
            call = kept()
            room = call.room("rows", most=100, usual=25)
            call.need("rows", torch.tensor(count))
        assert lengths.fit(lengths.needed.tolist())
    assert room == 16


@pytest.mark.parametrize("room", [0, 3, 40, 100])
def test_forms_agree_with_any_room(room):
    torch.manual_seed(room)
    mask = chosen(0, 2, 40, 100)
    rows, expected = fast.compact(mask, room), reference.compact(mask, room)
    assert rows.at.shape == (4, room)
    assert torch.equal(rows.at, expected.at)
    assert torch.equal(rows.valid, expected.valid)


def test_a_list_keeps_its_length_while_it_has_room():
    lengths = Lengths()
    shapes = []
    for count in (10, 3, 12, 0):
        with lengths.kept():
            mask = chosen(count, count // 2)
            rows = compact(mask)
        shapes.append(rows.at.shape[1])
        assert lengths.needed.tolist() == [count]
        assert lengths.fit(lengths.needed.tolist())
        assert rows.valid.sum(1).tolist() == [count, count // 2]
        x = torch.randn(2, 100)
        plain = compact(mask)
        assert torch.equal(gather_rows(x, plain), gather_rows(x, rows)[:, : plain.at.shape[1]])
    assert shapes == [16] * 4


def test_what_does_not_fit_is_noticed_and_then_has_room():
    lengths = Lengths()
    for count in (10, 50):
        with lengths.kept():
            rows = compact(chosen(count))
    assert rows.valid.sum() == 16
    assert not lengths.fit(lengths.needed.tolist())
    with lengths.kept():
        rows = compact(chosen(50))
    assert rows.valid.sum() == 50
    assert lengths.fit(lengths.needed.tolist())


def test_room_that_is_not_needed_is_given_up_in_time():
    lengths = Lengths()
    rooms = []
    for count in [90] + 130 * [5]:
        with lengths.kept():
            rooms.append(compact(chosen(count)).at.shape[1])
        lengths.fit(lengths.needed.tolist())
    assert rooms[0] == rooms[64] == 100, "one of the last 64 needed it, and no list is longer than the sequence"
    assert rooms[65:] == [100] * (128 - 65) + [16] * 3


def test_lists_whose_length_is_dear_become_shorter_by_half_or_not_at_all():
    lengths = Lengths(steady=True)
    rooms = []
    for count in 64 * [80] + 64 * [60] + 65 * [30]:
        with lengths.kept():
            rooms.append(compact(chosen(count)).at.shape[1])
        assert lengths.fit(lengths.needed.tolist())
    assert rooms == [96] * 192 + [48]


def test_kinds_of_calls_and_lists_of_a_call_are_kept_apart():
    lengths = Lengths()
    for kind, counts in (("a", (5, 60)), ("b", (40,)), ("a", (6, 61)), ("b", (41,))):
        with lengths.kept(kind):
            rooms = [compact(chosen(count)).at.shape[1] for count in counts]
        assert lengths.fit(lengths.needed.tolist())
        assert rooms == ([16, 80] if kind == "a" else [64])
    assert compact(chosen(7)).at.shape[1] == 7, "outside, lists are as long as they must be"


def test_without_lists_everything_fits():
    lengths = Lengths()
    assert lengths.fit(lengths.needed.tolist())
    with lengths.kept():
        pass
    assert lengths.fit(lengths.needed.tolist())


def test_room_that_is_asked_for_by_name():
    lengths = Lengths()
    rooms = []
    for count in (10, 50, 50):
        with lengths.kept():
            call = kept()
            rooms.append(call.room("rows", most=100, usual=25))
            call.need("rows", torch.tensor(count))
        rooms.append(lengths.fit(lengths.needed.tolist()))
    assert rooms == [25, True, 16, False, 64, True], "what was guessed is set right by the first call"
    assert kept() is None
    with lengths.kept():
        assert kept().room("rows", most=40, usual=25) == 40, "no list is longer than its sequence"
        for count in (30, 90, 10):
            kept().need("rows", torch.tensor(count))
    assert lengths.needed.tolist() == [90], "of several lists of that name, the longest"
