"""The contradiction index, on numbers small enough to work out by hand and against a plain walk through a sequence."""

import math

import pytest
import torch

from torchcram.config import ContradictionConfig
from torchcram.memory.contradiction import ContradictionIndex, Lesson, Marks
from torchcram.ops import Events, Rows, compact, gather_rows

WIDTH, RANK = 6, 4


def make(*, supersede: bool = False) -> ContradictionIndex:
    torch.manual_seed(0)
    return ContradictionIndex(WIDTH, ContradictionConfig(rank=RANK, supersede=supersede))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_what_was_looked_at_is_marked_unless_it_is_known():
    index = make()
    u, value = random(2, 5, WIDTH), random(2, 5, 2, 3, seed=2)
    likely = torch.tensor([[True, False, True, True, False], [False, False, False, True, True]])
    logits = index.known(index.code(u), value)
    index.bias.data += -logits[0, 2].detach() - 1e-3  # so that some are known and some are not
    marks, known = index.look(u, value, likely, torch.ones(2, 1, RANK))
    expected = index.known(index.code(u), value).masked_fill(~likely, 0)
    torch.testing.assert_close(known, expected.detach())
    assert torch.equal(marks.known, likely & (expected > 0))
    assert marks.known.any()
    marked = likely & (expected < 0)
    assert torch.equal(marks.mark[:, 1:].any(-1), marked)
    torch.testing.assert_close(marks.mark[:, 1:][marked], index.code(u)[marked].detach())
    assert (marks.mark[:, 0] == 1).all(), "what was held stays"


def test_nothing_likely_marks_nothing():
    index = make()
    none = torch.zeros(2, 3, dtype=torch.bool)
    marks, known = index.look(random(2, 3, WIDTH), random(2, 3, 2, 3), none, torch.zeros(2, 0, RANK))
    assert not marks.mark.any()
    assert not known.any()
    events = Events(torch.arange(3).expand(2, 3), torch.full((2, 3), 3), torch.zeros(2, 3))
    found = index.consult(random(2, 3, WIDTH), torch.ones(2, 3, dtype=torch.bool), marks, events)
    assert not found.hits.any()
    assert found.pairs.tolist() == [0, 0]
    assert (found.expires > 3).all()


@pytest.mark.parametrize("supersede", [False, True])
@pytest.mark.parametrize("block", [None, 7])
def test_hits_are_what_a_plain_walk_finds(supersede, block, monkeypatch):
    if block is not None:
        monkeypatch.setattr("torchcram.memory.contradiction._AT_ONCE", block)
    index = make(supersede=supersede)
    index.level.data.fill_(0.3)
    held, length = 2, 12
    kinds = 8 * random(4, WIDTH, seed=3)
    kind = torch.randint(4, (2, length), generator=torch.Generator().manual_seed(4))
    u = kinds[kind] + 0.05 * random(2, length, WIDTH, seed=5)
    mask = torch.rand(2, length, generator=torch.Generator().manual_seed(6)) < 0.9
    likely = (torch.rand(2, length, generator=torch.Generator().manual_seed(7)) < 0.5) & mask
    inside = likely & (torch.rand(2, length, generator=torch.Generator().manual_seed(8)) < 0.7)
    code = index.code(u).detach()
    old = index.code(kinds[:held].expand(2, held, WIDTH)).detach()
    rows = compact(likely)
    marks = Marks(torch.cat([old, code * inside.unsqueeze(-1)], 1), gather_rows(code, rows), rows, likely)
    here = torch.arange(length).expand(2, length)
    ends = torch.cat([torch.tensor([[length, 5]] * 2), (here + 6).clamp_max(length)], 1)
    events = Events(torch.cat([torch.full((2, held), -1), here], 1), ends, torch.zeros(2, held + length))

    found = index.consult(u, mask, marks, events)

    asks, every = index.code(u).detach(), torch.cat([old, code], 1)
    present = torch.cat([torch.ones(2, held, dtype=torch.bool), inside], 1)
    for row in range(2):
        pairs, gone = 0, {}
        for t in range(length):
            entries = [
                e
                for e in range(held + length)
                if present[row, e] and events.written[row, e] < t <= ends[row, e] and t <= gone.get(e, length)
            ]
            hit = any(float(asks[row, t] @ every[row, e]) > index.level.item() for e in entries)
            assert bool(found.hits[row, t]) == (hit and bool(mask[row, t])), (row, t)
            pairs += len(entries) * bool(mask[row, t])
            if supersede and likely[row, t]:
                limit = index.level.item() + (1 - index.level.item()) / 4
                gone |= {e: t for e in entries if float(every[row, held + t] @ every[row, e]) > limit}
        assert int(found.pairs[row]) == pairs
        lasts = {e: int(x) for e, x in enumerate(found.expires[row]) if x < ends[row, e]}
        assert lasts == {e: t for e, t in gone.items() if t < ends[row, e]}
        assert bool(lasts) == supersede


def lesson(u: torch.Tensor, events: int, **given: torch.Tensor) -> Lesson:
    """Reads of the tokens u [1, Q, D] that rest on nothing, unless something else is said."""
    reads = u.shape[1]
    no = torch.zeros(1, reads, dtype=torch.bool)
    nothing = Lesson(
        u=u,
        weight=torch.ones(1, reads),
        best=torch.zeros(1, reads, dtype=torch.int64),
        rests=no,
        rival=torch.zeros(1, reads, events, dtype=torch.bool),
        same=no,
        told=~no,
        usual=torch.ones(1),
    )
    return nothing._replace(**given)


def softplus(*logits: torch.Tensor) -> float:
    return math.log1p(sum(math.exp(x.item()) for x in logits))


def test_what_a_call_teaches():
    """Three reads of three events, of which the last is not there.

    The first rests on the second event, which was recalled; the second, which counts three times, on none; of the third
    it is not told what it showed.
    """
    index = make()
    value, u = random(1, 3, 2, 3, seed=2), random(1, 3, WIDTH, seed=3)
    code = index.code(random(1, 3, WIDTH, seed=4))
    rows = Rows(torch.tensor([[0, 1, 0]]), torch.tensor([[True, True, False]]))
    given = lesson(
        u,
        3,
        weight=torch.tensor([[1.0, 3.0, 1.0]]),
        best=torch.tensor([[1, 0, 0]]),
        rests=torch.tensor([[True, False, True]]),
        rival=torch.tensor([[[True, False, True], [True, True, True], [False, True, True]]]),
        same=torch.tensor([[True, False, True]]),
        told=torch.tensor([[True, True, False]]),
        usual=torch.tensor([0.5]),
    )
    known = random(1, 3, seed=5)
    loss = index.loss(Marks(code, code, rows, torch.zeros(1, 2, dtype=torch.bool)), known, value, given)
    away = (index.expected(index.code(u)) - value.flatten(2)).square().mean(-1)[0] / 0.5
    checked = (softplus(-known[0, 0]) + away[0].item() + away[2].item()) / 2
    match = index.match(index.code(u), code)[0]
    asked = softplus(-match[0, 1]) + softplus(match[0, 0]) + 3 * softplus(match[1, 0], match[1, 1])
    asked += softplus(-match[2, 0]) + softplus(match[2, 1])
    between = softplus(index.match(code, code)[0, 1, 0]) / 2
    assert loss.item() == pytest.approx(checked + asked / (2 + 5 / 10) + between, rel=1e-5)


def test_what_recurs_is_known_and_a_known_key_with_another_value_is_not():
    """Four tokens that always ask for the same value, and others: after some reads the index tells them apart."""
    index = make()
    generator = torch.Generator().manual_seed(9)
    asking, values = 3 * torch.randn(4, WIDTH, generator=generator), torch.randn(4, 2, 3, generator=generator)
    optimizer = torch.optim.Adam(index.parameters(), lr=0.01)
    novel = torch.arange(16) % 2 == 0
    rows = Rows(torch.arange(4).expand(1, 4), torch.ones(1, 4, dtype=torch.bool))

    def reads():
        which = torch.randint(4, (16,), generator=generator)
        u = torch.where(novel.unsqueeze(1), 3 * torch.randn(16, WIDTH, generator=generator), asking[which])
        return u.unsqueeze(0), torch.where(novel, torch.randint(4, (16,), generator=generator), which).unsqueeze(0)

    for _ in range(600):
        u, best = reads()
        given = lesson(u, 4, best=best, rests=torch.ones(1, 16, dtype=torch.bool), same=~novel.unsqueeze(0))
        optimizer.zero_grad()
        code = index.code(asking.unsqueeze(0))
        known = index.known(index.code(u), values[best])
        index.loss(Marks(code, code, rows, rows.valid), known, values[best], given).backward()
        optimizer.step()
    code = index.code(asking.unsqueeze(0))
    known = [index.known(code, values.roll(shift, 0).unsqueeze(0)).detach() for shift in range(4)]
    assert (known[0] > 0).all()
    assert all((others < 0).all() for others in known[1:])
    u, best = reads()
    assert (index.known(index.code(u), values[best])[0, novel] < 0).float().mean() > 0.7


def test_nothing_is_matched_before_anything_is_retrieved():
    index = make()
    code = index.code(random(1, 2, WIDTH))
    rows = Rows(torch.tensor([[0, 1]]), torch.tensor([[True, True]]))
    given = lesson(random(1, 1, WIDTH, seed=3), 2, rival=torch.ones(1, 1, 2, dtype=torch.bool))
    index.loss(Marks(code, code, rows, rows.valid), torch.zeros(1, 1), random(1, 2, 2, 3), given).backward()
    assert not index.coding.weight.grad.any()


def test_the_model_is_not_shaped_by_the_index():
    index = make()
    value, u = random(1, 3, 2, 3).requires_grad_(), random(1, 3, WIDTH, seed=1).requires_grad_()
    code = index.code(u)
    given = lesson(u, 3, rests=torch.ones(1, 3, dtype=torch.bool), rival=torch.ones(1, 3, 3, dtype=torch.bool))
    rows = Rows(torch.arange(3).expand(1, 3), torch.ones(1, 3, dtype=torch.bool))
    index.loss(Marks(code, code, rows, rows.valid), index.known(code, value), value, given).backward()
    assert value.grad is None
    assert u.grad is None
    assert all(p.grad is not None for p in index.parameters())
