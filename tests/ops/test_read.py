"""The episodic read: both forms, and that a row sees just the events it may read."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from torchcram.ops import Events, Rows, compact, episodic_read
from torchcram.ops.read import BONUS, fast, reference

HEADS, SIZE = 2, 3


class Case(NamedTuple):
    tensors: list[Tensor]
    """query, key, value, strength, recency: those with a gradient."""
    rows: Rows
    row_time: Tensor
    events: Events
    target: Tensor | None = None

    def run(self, form, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return form.episodic_read(*(tensors or self.tensors), self.rows, self.row_time, self.events, self.target)

    def readable(self) -> Tensor:
        """[B, R, E], straight from the definition."""
        t = self.rows.at.unsqueeze(2)
        inside = (self.events.written.unsqueeze(1) < t) & (t <= self.events.expires.unsqueeze(1))
        return inside & self.rows.valid.unsqueeze(2)


def case(length: int, held: int, seed: int, chosen: float = 0.6, dtype: torch.dtype = torch.float64) -> Case:
    """Held events and new ones with random ends; the last sequence chooses no row, held events may be empty slots.

    Half of the rows are thought to ask for some event, whether they can read it or not.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    batch, count = 3, held + length
    wanted = torch.rand(batch, length, generator=generator) < chosen
    wanted[-1] = False
    rows = compact(wanted)
    here = torch.arange(length).expand(batch, length)
    written = torch.cat([torch.full((batch, held), -1), here], dim=1)
    life = torch.randint(0, length + 2, (batch, count), generator=generator)
    clock = torch.rand(batch, count, generator=generator, dtype=torch.float64).cumsum(1)
    row_time = torch.where(rows.valid, clock[:, held:].gather(1, rows.at), 0)
    tensors = [
        draw(batch, rows.at.shape[1], HEADS, SIZE),
        draw(batch, count, HEADS, SIZE),
        draw(batch, count, HEADS, SIZE),
        draw(batch, count),
        draw(HEADS),
    ]
    target = torch.randint(-count, count, rows.at.shape, generator=generator).clamp_min(-1)
    return Case([x.requires_grad_() for x in tensors], rows, row_time, Events(written, written + life, clock), target)


@pytest.mark.parametrize("tile", [1, 1 << 22])
@pytest.mark.parametrize("held", [0, 1, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 17, 31, 32, 33, 64])
def test_fast_form_equals_reference(assert_forms_agree, monkeypatch, length, held, tile):
    monkeypatch.setattr(fast, "_TILE_SCORES", tile)  # 1: tiles of 16 rows
    seed = 10 * length + held
    c = case(length, held, seed)
    assert_forms_agree(lambda *x: c.run(fast, *x), lambda *x: c.run(reference, *x), *c.tensors, seed=seed)


@pytest.mark.parametrize("chosen", [0.0, 1.0])
def test_no_row_and_all_rows(assert_forms_agree, chosen):
    c = case(9, held=4, seed=3, chosen=chosen)
    assert c.rows.at.shape[1] == 9 * chosen
    assert_forms_agree(lambda *x: c.run(fast, *x), lambda *x: c.run(reference, *x), *c.tensors, seed=3)


def test_no_event_at_all(assert_forms_agree):
    c = case(5, held=0, seed=4)
    query, *rest, recency = c.tensors
    none = [x[:, :0].detach().requires_grad_() for x in rest]
    c = c._replace(tensors=[query, *none, recency], events=Events(*(x[:, :0] for x in c.events)))
    assert_forms_agree(lambda *x: c.run(fast, *x), lambda *x: c.run(reference, *x), *c.tensors, seed=4)
    value, mass, pairs = c.run(fast)
    assert (value == 0).all()
    assert mass.shape == (3, 0)
    assert pairs.tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", [5, 6])
def test_gradients_of_fast_form(seed):
    c = case(4, held=2, seed=seed)
    assert gradcheck(lambda *x: c.run(fast, *x)[0], c.tensors)


@pytest.mark.parametrize("form", [reference, fast])
def test_what_a_row_is_thought_to_ask_for_scores_higher(form):
    """As if its strength were higher, for that row alone; what it cannot read it cannot be made to."""
    given = case(40, 3, seed=5)
    plain = given._replace(target=None)
    query, key, value, strength, recency = given.tensors
    found, _, pairs = given.run(form)
    assert torch.equal(pairs, plain.run(form)[2])
    readable = given.readable()
    moved = 0
    for b, r in given.rows.valid.nonzero().tolist():
        target = int(given.target[b, r])
        stronger = strength.detach().clone()
        if target >= 0:
            stronger[b, target] += BONUS
            moved += bool(readable[b, r, target])
        alone = plain.run(form, query, key, value, stronger, recency)[0]
        torch.testing.assert_close(found[b, r], alone[b, r])
    assert moved > 3


def test_one_row_by_hand():
    """Three events, of which the second has expired; ages 7 and 1."""
    key = torch.tensor([2.0, 50.0, -1.0]).view(1, 3, 1, 1)
    value = torch.tensor([10.0, 1000.0, 20.0]).view(1, 3, 1, 1)
    strength = torch.tensor([[-0.5, 0.0, -1.5]])
    events = Events(
        torch.tensor([[-1, 0, 1]]), torch.tensor([[9, 1, 9]]), torch.tensor([[1.0, 2.0, 7.0]], dtype=torch.float64)
    )
    rows = Rows(torch.tensor([[2]]), torch.tensor([[True]]))
    out = episodic_read(
        torch.tensor([3.0]).view(1, 1, 1, 1),
        key,
        value,
        strength,
        torch.tensor([-0.25]),
        rows,
        torch.tensor([[8.0]], dtype=torch.float64),
        events,
    )
    first = math.exp(3 * 2 - 0.5 - 0.25 * math.log(8))
    third = math.exp(3 * -1 - 1.5 - 0.25 * math.log(2))
    share = first / (first + third)
    torch.testing.assert_close(out.value.flatten(), torch.tensor([10 * share + 20 * (1 - share)]))
    torch.testing.assert_close(out.mass, torch.tensor([[share, 0.0, 1 - share]]))
    assert out.pairs.tolist() == [2]


@pytest.mark.parametrize("form", [fast, reference], ids=["fast", "reference"])
def test_what_no_row_may_read_has_no_influence(form):
    c = case(12, held=4, seed=7, chosen=0.3)
    query, key, value, strength, recency = c.tensors
    unseen = ~c.readable().any(1)
    assert unseen.any(1).all()
    value_before, mass, pairs = c.run(form)
    assert pairs.tolist() == c.readable().sum((1, 2)).tolist()
    assert (mass[unseen] == 0).all()

    gradients = torch.autograd.grad(value_before.square().sum(), [key, value, strength])
    assert all((g[unseen] == 0).all() for g in gradients)
    assert all((g[~unseen] != 0).any() for g in gradients)
    noise = torch.where(unseen, 1e3, 0.0).double()
    moved = [key + noise[..., None, None], value + noise[..., None, None], strength + noise]
    assert torch.equal(c.run(form, query, *moved, recency)[0], value_before)


@pytest.mark.parametrize("form", [fast, reference], ids=["fast", "reference"])
def test_a_row_with_nothing_to_read_finds_exactly_zero(form):
    c = case(10, held=3, seed=8, chosen=1.0)
    events = c.events._replace(expires=torch.where(c.events.expires >= 4, 3, c.events.expires))
    c = c._replace(events=events)  # nothing lives beyond position 3, so that later rows find nothing either
    nothing = ~c.readable().any(2)
    assert nothing[:2].any()
    assert not nothing[:2].all()
    value, mass, _ = c.run(form)
    assert (value[nothing] == 0).all()
    torch.testing.assert_close(mass.sum(1), (~nothing).sum(1).double())

    gradients = torch.autograd.grad(value.square().sum() + value.sum(), c.tensors)
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[0][nothing] == 0).all()
    alone = torch.autograd.grad(c.run(form)[0][nothing].sum(), c.tensors, allow_unused=True, materialize_grads=True)
    assert all((g == 0).all() for g in alone)


@pytest.mark.parametrize("form", [fast, reference], ids=["fast", "reference"])
@pytest.mark.parametrize("factor", [1e4, -1e4])
def test_extreme_scores_do_not_overflow(form, factor):
    c = case(15, held=2, seed=9, dtype=torch.float32)
    query, key, value, strength, recency = (x.detach() for x in c.tensors)
    tensors = [x.requires_grad_() for x in (query * factor, key * 100, value, strength, recency)]
    found, mass, _ = c.run(form, *tensors)
    # The weights are one-hot: each head returns the value of its best event.
    scores = torch.einsum("brhd,behd->brhe", tensors[0].double(), tensors[1].double())
    best = scores.masked_fill(~c.readable().unsqueeze(2), -torch.inf).argmax(-1)
    picked = tensors[2].gather(1, best.unsqueeze(-1).expand(-1, -1, -1, SIZE))
    some = c.readable().any(2)
    torch.testing.assert_close(found[some], picked[some])
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), tensors))
    torch.testing.assert_close(mass.sum(1), some.sum(1).float())


@pytest.mark.parametrize("length", [1, 16, 33])
def test_mass_is_one_for_each_row_that_finds_something(length):
    c = case(length, held=3, seed=length)
    _, mass, pairs = c.run(fast)
    torch.testing.assert_close(mass.sum(1), c.readable().any(2).sum(1).double())
    assert pairs.tolist() == c.readable().sum((1, 2)).tolist()
    assert not mass.requires_grad
