"""The contradiction index, against a plain walk through a sequence, and on lessons that have one answer."""

import math

import pytest
import torch
from torch import Tensor

from torchcram.config import ContradictionConfig
from torchcram.memory import ContradictionIndex, Timeline
from torchcram.memory.lessons import Evidence, choose_witnesses
from torchcram.ops import Rows

WIDTH, RANK = 6, 4


def make(entries: int = 512, layers: int = 1) -> ContradictionIndex:
    torch.manual_seed(0)
    return ContradictionIndex(WIDTH, ContradictionConfig(rank=RANK, entries=entries), layers)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def chance(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


LENGTH = 60


def stream(seed: int = 3) -> tuple[ContradictionIndex, Tensor, Timeline]:
    """Tokens of a few keys, some of which ask and some of which are asked for; what they say differs."""
    index = make()
    keys = 4 * random(4, WIDTH, seed=seed)
    which = torch.randint(4, (2, LENGTH), generator=torch.Generator().manual_seed(seed + 1))
    u = keys[which] + 1.5 * random(2, LENGTH, WIDTH, seed=seed + 2)
    for number, head in enumerate((index.asks, index.asked)):
        head.weight.data = 0.1 * random(1, WIDTH, seed=seed + 5 + number)
        head.bias.data.fill_(0.0)
    index.level.data.fill_(0.5)
    with torch.no_grad():  # so that about half of what is said is new
        index.doubt[2].bias.zero_()
        index.expected[2].weight.zero_()
        index.expected[2].bias.zero_()
        index.content.bias.zero_()
        index.content.weight *= (0.35 / index.content(u).square().mean(-1).median()).sqrt()
    mask = chance(2, LENGTH, seed=seed + 4) < 0.9
    start = chance(2, LENGTH, seed=seed + 7) < torch.tensor([[0.0], [0.08]])
    start[0, 0] = start[1, 23] = True
    timeline = Timeline.build(torch.ones(2, LENGTH), mask=mask | start, start=start)
    return index, u, timeline


@pytest.mark.parametrize("width", [16, 256])
def test_to_an_index_that_has_learned_nothing_all_is_new(width):
    """What is taken for known is forgotten first: nothing may be, before there is reason to."""
    torch.manual_seed(1)
    index = ContradictionIndex(width, ContradictionConfig(rank=64))
    u = random(4, 200, width)
    assert (index.judge(u, index.code(u))[0] > 1).all()


@torch.no_grad()
def walk(index: ContradictionIndex, u: Tensor, timeline: Timeline, most: int):
    """Position after position: targets and where they are in the call, what is entered, what known, pairs compared."""
    code = index.code(u)
    asks, asked, news = index.asks(u).squeeze(-1), index.asked(u).squeeze(-1), index.judge(u, code)[0]
    level, margin = index.level.item(), (1 - index.level.item()) / 2
    targets, places, entered, known, pairs = [], [], [], [], []
    for row in range(len(u)):
        entries: list[dict] = []
        compared, aims, found, marks, olds = 0, [], [], [], []
        for t in range(u.shape[1]):
            if timeline.start[row, t]:
                entries = []
            aim, place, mark, old = -1, -1, False, False
            if timeline.mask[row, t]:
                alive = [e for e in entries[-most:] if not e["dead"]]
                is_asking = asks[row, t] > max(-2.5, asked[row, t] - 1)
                is_writing = asked[row, t] > max(-2.5, asks[row, t] - 1)
                if is_asking or (is_writing and not news[row, t] > 1):
                    compared += len(alive)
                if is_asking:
                    product = {i: float(code[row, t] @ e["code"]) for i, e in enumerate(alive)}
                    best = max(product.values(), default=-math.inf)
                    near = [i for i, p in product.items() if p > level and p >= best - margin]
                    if near:
                        aim, place = alive[near[-1]]["position"], alive[near[-1]]["at"]
                if is_writing:
                    position = int(timeline.position[row, t])
                    mark = bool(news[row, t] > 1)
                    if mark:
                        entries.append({"code": code[row, t], "position": position, "at": t, "dead": False})
                    else:
                        old = True
                        for e in alive:
                            e["dead"] = float(code[row, t] @ e["code"]) > level
            for kept, what in ((aims, aim), (found, place), (marks, mark), (olds, old)):
                kept.append(what)
        for kept, what in ((targets, aims), (places, found), (entered, marks), (known, olds), (pairs, compared)):
            kept.append(what)
    return tuple(map(torch.tensor, (targets, places, entered, known, pairs)))


@pytest.mark.parametrize("block", [None, 7])
@pytest.mark.parametrize("most", [3, 512])
@pytest.mark.parametrize("seed", [3, 13, 23])
def test_consulting_is_what_a_plain_walk_does(seed, most, block, monkeypatch):
    if block is not None:
        monkeypatch.setattr("torchcram.memory.contradiction._AT_ONCE", block)
    index, u, timeline = stream(seed)
    index.config = ContradictionConfig(rank=RANK, entries=most)
    targets, places, entered, known, pairs = walk(index, u, timeline, most)
    found = index.consult(u, timeline, index.empty(2))
    assert torch.equal(found.target, targets)
    assert torch.equal(found.here, places)
    assert torch.equal(found.entered, entered)
    assert torch.equal(found.known, known)
    assert torch.equal(found.pairs, pairs)
    assert (targets >= 0).float().mean() > 0.05
    assert 0.1 < entered.float().mean() < 0.7


@pytest.mark.parametrize("most", [3, 512])
def test_in_parts_it_finds_the_same(most):
    index, u, timeline = stream()
    index.config = ContradictionConfig(rank=RANK, entries=most)
    whole = index.consult(u, timeline, index.empty(2))
    mine, before = index.empty(2), None
    parts = []
    for begin, end in ((0, 1), (1, 20), (20, 21), (21, 47), (47, LENGTH)):
        part = slice(begin, end)
        before = Timeline.build(
            torch.ones(2, end - begin), mask=timeline.mask[:, part], start=timeline.start[:, part], after=before
        )
        parts.append(index.consult(u[:, part], before, mine))
        mine = parts[-1].state
    for name in ("target", "entered", "known", "checked", "surprising"):
        assert torch.equal(torch.cat([getattr(found, name) for found in parts], 1), getattr(whole, name)), name
    assert torch.equal(sum(found.pairs for found in parts), whole.pairs)
    for name, x in mine.named_tensors():
        torch.testing.assert_close(x, dict(whole.state.named_tensors())[name])
    assert mine.slots <= most


def test_nothing_asked_for_makes_no_entry():
    index, u, timeline = stream()
    index.asked.bias.data.fill_(-100)
    found = index.consult(u, timeline, index.empty(2))
    assert not found.entered.any()
    assert (found.target == -1).all()
    assert found.pairs.tolist() == [0, 0]
    assert found.state.slots == 0


def test_whom_it_learns_from():
    """Of those likely to ask all that were drawn; never padding, and no more witnesses than are needed."""
    index, u, timeline = stream()
    lot = chance(2, LENGTH, seed=9)
    likely, _ = index.roles(u, timeline.mask)
    chosen, given, rows = choose_witnesses(likely, timeline.mask, lot, 0.2)
    assert likely.any()
    assert (~likely & timeline.mask).any()
    assert torch.equal(given, torch.where(likely, 1.0, 0.2))
    assert torch.equal(chosen, (lot < given) & timeline.mask)
    assert [row[valid].tolist() for row, valid in zip(rows.at, rows.valid, strict=True)] == [
        row.nonzero().flatten().tolist() for row in chosen
    ]
    many = torch.cat([likely] * 4, 1), torch.cat([timeline.mask] * 4, 1), chance(2, 4 * LENGTH, seed=10)
    chosen, given, rows = choose_witnesses(*many, 1.0)
    assert rows.at.shape == (2, 64)
    for row in range(2):
        lowest = many[2][row].masked_fill(~many[1][row], 2).argsort()[:64].sort().values
        assert torch.equal(rows.at[row], lowest)


class School:
    """Four keys with a value each that never changes, and others; a write says key and value, a question the key."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(9)
        torch.manual_seed(0)
        self.index = ContradictionIndex(16, ContradictionConfig(rank=8)).train()
        self.keys = torch.nn.functional.normalize(self.normal(40, 10), dim=1) * 3
        self.values = torch.nn.functional.normalize(self.normal(8, 6), dim=1) * 3 + 1
        self.usual = torch.tensor([0, 3, 5, 6])

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def draw(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator)

    def tokens(self, key: Tensor, value: Tensor | None = None) -> Tensor:
        says = torch.zeros(*key.shape, 6) if value is None else self.values[value]
        return torch.cat([self.keys[key], says], -1) + 0.05 * self.normal(*key.shape, 16)

    def sequence(self) -> tuple[Tensor, Tensor, Tensor]:
        """u [1, 20, D]: ten writes, then ten questions in another order; keys and values of the writes."""
        key = torch.cat([torch.arange(4), 4 + torch.randperm(36, generator=self.generator)[:6]])
        value = torch.cat([self.usual, self.draw(8, 6)])
        order = torch.randperm(10, generator=self.generator)
        u = torch.cat([self.tokens(key), self.tokens(key)])
        u[:10] = self.tokens(key, value)
        u[10:] = self.tokens(key[order])
        return u.unsqueeze(0), key, order

    def lesson(self) -> Tensor:
        u, _, order = self.sequence()
        at = torch.arange(20).unsqueeze(0)
        share = torch.where(at >= 10, 0.9, 0.1)
        event = torch.cat([torch.zeros(10, dtype=torch.int64), order]).unsqueeze(0)
        says = torch.cat([u[0, event[0], 10:], torch.zeros(20, 10)], -1).unsqueeze(0) * 7
        return self.index.loss(
            u, Rows(at, at >= 0), torch.ones(1, 20), [Evidence(share, event, says, at >= 0, torch.zeros(1))]
        )


@pytest.fixture
def school(taught) -> School:
    """Whatever other tests have drawn before."""
    taught.generator.manual_seed(1)
    return taught


@pytest.fixture(scope="module")
def taught() -> School:
    school = School()
    optimizer = torch.optim.Adam(school.index.parameters(), lr=0.005)
    for _ in range(1200):
        optimizer.zero_grad()
        school.lesson().backward()
        optimizer.step()
    school.index.eval()
    return school


@torch.no_grad()
def test_it_learns_who_asks_and_who_is_asked_for(school):
    u, _, _ = school.sequence()
    asks, asked = (head(u)[0, :, 0] for head in (school.index.asks, school.index.asked))
    assert (asks[10:] > 0).all()
    assert (asks[:10] < 0).all()
    assert school.index.roles(u, torch.ones(1, 20, dtype=torch.bool))[1].tolist() == [[True] * 10 + [False] * 10]
    assert (asked[10:] < asked[:10].min()).all()


@torch.no_grad()
def test_it_learns_what_is_known_and_what_is_new(school):
    """The four keys with their values are known; with others, which was never seen, and other keys, all is new."""
    index = school.index
    key = torch.arange(4).repeat(8).unsqueeze(0)
    value = torch.arange(8).repeat_interleave(4).unsqueeze(0)
    u = school.tokens(key, value)
    news = index.judge(u, index.code(u))[0]
    known = value == school.usual[key]
    assert (news[known] < 1).all()
    assert (news[~known] > 1).all()
    key = 4 + school.draw(36, 1, 50)
    u = school.tokens(key, school.draw(8, 1, 50))
    assert (index.judge(u, index.code(u))[0] > 1).float().mean() > 0.95


@torch.no_grad()
def test_it_answers_by_the_latest_write_and_forgets_what_is_as_ever(school):
    """Key 0 is bound anew twice, key 1 anew and back again, key 2 as ever, key 8 for the first time."""
    key = torch.tensor([[0, 1, 2, 8, 0, 1, 0, 1, 2, 8]])
    usual = school.usual
    value = torch.tensor([[4, 7, int(usual[2]), 1, 2, int(usual[1])]])
    u = torch.cat([school.tokens(key[:, :6], value), school.tokens(key[:, 6:])], 1)
    timeline = Timeline.build(torch.ones(1, 10))
    found = school.index.consult(u, timeline, school.index.empty(1))
    assert found.entered[0].tolist() == [True, True, False, True, True, False] + [False] * 4
    assert found.target[0, 6:].tolist() == [4, -1, -1, 3]
    assert found.state.position[0].tolist() == [0, 1, 3, 4]
    assert found.state.dead[0].tolist() == [False, True, False, False]
    assert found.checked[0].tolist() == [True, True, True, False, True, True] + [False] * 4
    assert found.surprising[0].tolist() == [True, True, False, False, True, False] + [False] * 4


def test_what_layers_say_counts_by_where_reads_rest():
    """Two layers: of what the one says that hardly ever retrieves, nothing is learned."""
    losses = []
    for nonsense in (0.0, 50.0):
        index = make(layers=2).train()
        u = random(1, 6, WIDTH)
        rows = Rows(torch.arange(6).unsqueeze(0), torch.ones(1, 6, dtype=torch.bool))
        event, says = torch.tensor([[0, 0, 0, 1, 1, 2]]), random(1, 6, WIDTH, seed=1)
        blurred = Evidence(torch.full((1, 6), 0.2), event, says + nonsense, rows.valid, torch.zeros(1))
        sharp = Evidence(torch.tensor([[0.1, 0.1, 0.1, 0.8, 0.9, 0.7]]), event, says, rows.valid, torch.zeros(1))
        losses.append(index.loss(u, rows, torch.ones(1, 6), [blurred, sharp]).item())
        assert index.rested.tolist() == pytest.approx([0, 3 * 0.05])
    assert losses[0] == losses[1]


def test_a_layer_whose_reads_nobody_uses_is_not_believed():
    """It may rest on one event throughout, as firmly as it likes."""
    losses = []
    for sure in (0.2, 0.99):
        index = make(layers=2).train()
        u = random(1, 6, WIDTH)
        rows = Rows(torch.arange(6).unsqueeze(0), torch.ones(1, 6, dtype=torch.bool))
        none = torch.zeros(1, 6, dtype=torch.int64)
        sink = Evidence(torch.full((1, 6), sure), none, random(1, 6, WIDTH, seed=2), ~rows.valid, torch.zeros(1))
        event = torch.tensor([[0, 0, 0, 1, 1, 2]])
        used = torch.tensor([[False, False, False, False, False, True]])
        one = Evidence(torch.full((1, 6), 0.8), event, random(1, 6, WIDTH, seed=1), used, torch.zeros(1))
        losses.append(index.loss(u, rows, torch.ones(1, 6), [sink, one]).item())
        assert index.teller.item() == 1
    assert losses[0] == losses[1]


def test_one_layer_tells_as_long_as_it_retrieves():
    index = make(layers=2).train()
    u = random(1, 6, WIDTH)
    rows = Rows(torch.arange(6).unsqueeze(0), torch.ones(1, 6, dtype=torch.bool))

    def teach(*resting: int) -> int:
        share = [torch.where(torch.arange(6) < count, 0.8, 0.1).unsqueeze(0) for count in resting]
        event = torch.tensor([[0, 0, 0, 1, 1, 2]])
        index.loss(u, rows, torch.ones(1, 6), [Evidence(s, event, u, rows.valid, torch.zeros(1)) for s in share])
        return int(index.teller)

    assert {teach(5, 4) for _ in range(50)} == {0}
    assert {teach(4, 6) for _ in range(100)} == {0}
    assert [teach(1, 6) for _ in range(100)][-1] == 1
    assert {teach(4, 6) for _ in range(100)} == {1}


def test_nothing_is_matched_before_anything_is_retrieved():
    index = make().train()
    u = random(1, 3, WIDTH)
    rows = Rows(torch.arange(3).unsqueeze(0), torch.ones(1, 3, dtype=torch.bool))
    nothing = Evidence(
        torch.full((1, 3), 0.2), torch.zeros(1, 3, dtype=torch.int64), random(1, 3, WIDTH), rows.valid, torch.zeros(1)
    )
    index.loss(u, rows, torch.ones(1, 3), [nothing]).backward()
    assert not index.coding.weight.grad.any()
    assert index.asks.weight.grad.any()


def test_the_model_is_not_shaped_by_the_index():
    index = make().train()
    u, says = random(1, 6, WIDTH).requires_grad_(), random(1, 6, WIDTH, seed=1).requires_grad_()
    rows = Rows(torch.arange(6).unsqueeze(0), torch.ones(1, 6, dtype=torch.bool))
    told = Evidence(torch.full((1, 6), 0.9), torch.tensor([[0, 0, 1, 2, 3, 4]]), says, rows.valid, torch.zeros(1))
    index.loss(u, rows, torch.ones(1, 6), [told]).backward()
    assert says.grad is None
    assert u.grad is None
    assert all(p.grad is not None for p in index.parameters())


def test_where_values_come_after_keys_it_learns_which_token_has_the_key():
    """Ten pairs of tokens, key and value, then questions, each after a token of no meaning that looks like a key."""
    draw = torch.Generator().manual_seed(3)
    torch.manual_seed(0)
    keys, values = (4 * torch.randn(30, 16, generator=draw) for _ in range(2))
    index = ContradictionIndex(16, ContradictionConfig(rank=16), taps=2).train()
    optimizer = torch.optim.Adam(index.parameters(), lr=0.01)

    def sequence() -> tuple[Tensor, Tensor, Tensor]:
        bound, order = torch.randperm(30, generator=draw)[:10], torch.randperm(10, generator=draw)
        told = values[torch.randint(30, (10,), generator=draw)]
        noise = keys[torch.randint(30, (10,), generator=draw)]
        tokens = torch.cat(
            [torch.stack(both, 1).flatten(0, 1) for both in ((keys[bound], told), (noise, keys[bound[order]]))]
        )
        before = torch.cat([torch.zeros(1, 16), tokens[:-1]])
        return (tokens + 0.5 * before).unsqueeze(0), torch.stack([tokens, before], 1).unsqueeze(0), 1 + 2 * order

    at = torch.arange(21, 40, 2).unsqueeze(0)
    for _ in range(400):
        u, taps, event = sequence()
        says = u[:, event]
        evidence = Evidence(torch.full((1, 10), 0.9), event.unsqueeze(0), says, at >= 0, torch.zeros(1))
        optimizer.zero_grad()
        index.loss(u, Rows(at, at >= 0), torch.ones(1, 40), [evidence], taps).backward()
        optimizer.step()
    assert (10 * index.back).softmax(1)[0, 0] > 0.8, "a question is the key itself"
    assert (10 * index.back).softmax(1)[1, 1] > 0.8, "a value comes after it"
    u, taps, event = sequence()
    timeline = Timeline.build(torch.ones(1, 40))
    asking, telling = torch.zeros(1, 40, dtype=torch.bool), torch.zeros(1, 40, dtype=torch.bool)
    asking[0, 21::2], telling[0, 1:20:2] = True, True
    found = index.consult(u, timeline, index.empty(1), (asking, telling), taps)
    assert (found.target[0, 21::2] == event).double().mean() >= 0.9


def test_what_is_read_where_no_answer_counts_teaches_nothing_about_keys():
    torch.manual_seed(0)
    index = ContradictionIndex(8, ContradictionConfig(rank=4), taps=2).eval()
    index.rested.fill_(1.0)
    u, taps = torch.randn(1, 12, 8), torch.randn(1, 12, 2, 8)
    at = torch.arange(6, 12).unsqueeze(0)
    answered = torch.zeros(1, 12, dtype=torch.bool)
    answered[0, 6:9] = True
    events = [torch.tensor([[0, 1, 2, *others]]) for others in ((3, 4, 5), (5, 0, 4))]

    def loss(event, answered):
        evidence = Evidence(torch.full((1, 6), 0.9), event, torch.ones(1, 6, 8), at >= 0, torch.zeros(1))
        return index.loss(u, Rows(at, at >= 0), torch.ones(1, 12), [evidence], taps, answered).item()

    assert loss(events[0], answered) == loss(events[1], answered)
    assert loss(events[0], None) != loss(events[1], None)
    chosen, chance, _ = choose_witnesses(
        torch.zeros_like(answered), answered | True, torch.full((1, 12), 0.5), 0, answered
    )
    assert torch.equal(chosen, answered), "who has an answer is a witness"
    assert torch.equal(chance, answered.float())


def answered_lesson(index, u, taps, at, event, answered):
    rows = Rows(at, at >= 0)
    evidence = Evidence(torch.full(at.shape, 0.9), event, torch.ones(*at.shape, u.shape[-1]), at >= 0, torch.zeros(1))
    return index.loss(u, rows, torch.ones(u.shape[:2]), [evidence], taps, answered)


def test_that_an_unanswered_position_does_not_ask_counts_a_tenth():
    torch.manual_seed(0)
    index = ContradictionIndex(8, ContradictionConfig(rank=4), taps=2).eval()
    index.rested.fill_(1.0)
    u, taps = torch.randn(1, 12, 8), torch.randn(1, 12, 2, 8)
    at, event = torch.tensor([[6, 7]]), torch.tensor([[0, 1]])
    answered = torch.zeros(1, 12, dtype=torch.bool)
    answered[0, 6] = True
    logits = index.asks(taps[:, 6:8].flatten(2)).flatten()

    def pull(loss):
        return torch.cat([x.flatten() for x in torch.autograd.grad(loss, list(index.asks.parameters()))])

    # The gradient is a sum of the two tokens' own, each by its weight and (probability - whether it asks).
    found = pull(answered_lesson(index, u, taps, at, event, answered))
    own = torch.stack([pull(index.asks(taps[0, row].flatten()).sum()) for row in (6, 7)], dim=1)
    weights = torch.linalg.lstsq(own, found.unsqueeze(1)).solution.flatten()
    asks, does_not = logits.sigmoid().tolist()
    assert weights.tolist() == pytest.approx([(asks - 1) / 1.1, 0.1 * does_not / 1.1], rel=1e-3)


def test_a_key_is_not_told_apart_from_the_binding_after_it():
    """A key about to be bound has the code of its own binding, which it cannot ask for: that is not held against it."""
    torch.manual_seed(0)
    index = ContradictionIndex(8, ContradictionConfig(rank=4), taps=2).eval()
    index.rested.fill_(1.0)
    index.level.data.fill_(0.99)
    u, taps = torch.randn(1, 12, 8), torch.randn(1, 12, 2, 8)
    answered = torch.zeros(1, 12, dtype=torch.bool)
    answered[0, 9] = True
    losses = []
    for early in (False, True):
        at = torch.tensor([[2 if early else 7, 9]])  # before or after the binding at 5, which 9 asks for
        taps[0, 2] = taps[0, 7]
        u[0, 2] = u[0, 7]
        losses.append(answered_lesson(index, u, taps, at, torch.tensor([[0, 5]]), answered).item())
    assert losses[1] < losses[0]


def test_roles_do_not_exclude_each_other_where_a_binding_is_two_tokens():
    mask = torch.ones(1, 6, dtype=torch.bool)
    u, taps = torch.randn(1, 6, 8), torch.randn(1, 6, 2, 8)
    for count in (1, 2):
        index = ContradictionIndex(8, ContradictionConfig(rank=4), taps=count)
        for head, logit in ((index.asks, 0.0), (index.asked, 4.0)):
            last = head if count == 1 else head[-1]
            last.weight.data.zero_()
            last.bias.data.fill_(logit)
        asking, telling = index.roles(u, mask, taps if count > 1 else None)
        assert telling.all()
        assert asking.all() == (count > 1)
