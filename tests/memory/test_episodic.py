"""Episodic memory: what is written, what a read finds, and what the buffer keeps for the next call."""

import pytest
import torch
from torch import Tensor, nn

from torchcram import Cram, CramConfig
from torchcram.config import EpisodicConfig
from torchcram.memory import EpisodicMemory, EpisodicState, RoutingPolicy, Timeline
from torchcram.memory.episodic import Reading, Written, smooth, useful
from torchcram.ops import Rows, compact, gather_rows

WIDTH, HEADS = 6, 2


def episodic(**config) -> EpisodicMemory:
    torch.manual_seed(0)
    memory = EpisodicMemory(WIDTH, EpisodicConfig(**{"heads": HEADS, "slots": 5, **config})).double()
    nn.init.normal_(memory.mix)
    nn.init.normal_(memory.recency)
    return memory


def sequence(length: int, seed: int = 0, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """u, h and gaps."""
    generator = torch.Generator().manual_seed(seed)
    u, h = torch.randn(2, batch, length, WIDTH, generator=generator, dtype=torch.float64)
    return u, h, torch.rand(batch, length, generator=generator, dtype=torch.float64) * 3


def call(
    memory: EpisodicMemory, u: Tensor, h: Tensor, clock: Timeline, state: EpisodicState, chosen: Tensor | None = None
) -> tuple[Written, Reading, EpisodicState]:
    """Write, read (by default every real position) and keep."""
    written = memory.write(memory.priority_of(memory.of_token(u), memory.of_working(h)), clock, state)
    rows = compact(clock.mask if chosen is None else chosen)
    found = memory.look(u, h, rows, clock, written, state, chosen, keep=True)
    return written, found, memory.keep(written, found, state)


def spread(found: Reading, length: int) -> Tensor:
    """The reads at their positions, [B, N, D]."""
    out = torch.zeros(found.value.shape[0], length, WIDTH, dtype=found.value.dtype)
    for b, r in found.rows.valid.nonzero().tolist():
        out[b, int(found.rows.at[b, r])] = found.value[b, r]
    return out


def by_loop(memory: EpisodicMemory, u: Tensor, h: Tensor, dt: Tensor) -> Tensor:
    """One sequence [N, D] with a plain list for a buffer: attention over what it holds, then the write."""
    size = WIDTH // HEADS
    buffer: list[tuple[float, int, Tensor, Tensor, float]] = []
    outs, time = [], 0.0
    for t in range(u.shape[0]):
        time += float(dt[t])
        q, k, v = (
            (m(u[t] + memory.mix[i] * h[t])).view(HEADS, size)
            for i, m in enumerate((memory.query, memory.key, memory.value))
        )
        read = torch.zeros(HEADS, size, dtype=u.dtype)
        if buffer:
            scores = torch.stack(
                [
                    (q * key).sum(-1) / size**0.5
                    + nn.functional.logsigmoid(torch.tensor(w))
                    + memory.recency * torch.tensor(time - then).log1p()
                    for w, _, key, _, then in buffer
                ]
            )
            read = torch.einsum("eh,ehd->hd", scores.softmax(0), torch.stack([item[3] for item in buffer]))
        outs.append(memory.outward(read.flatten()))
        w = float(memory.priority(torch.cat([u[t], h[t]])))
        buffer = sorted([*buffer, (w, -t, k, v, time)], key=lambda item: item[:2], reverse=True)[: memory.config.slots]
    return torch.stack(outs)


@torch.no_grad()
@pytest.mark.parametrize("slots", [1, 3, 5, 50, None])
def test_a_call_equals_a_list_of_the_best_events(slots):
    memory = episodic(slots=slots)
    u, h, dt = sequence(14)
    _, found, _ = call(memory, u, h, Timeline.build(dt), memory.empty(2))
    expected = torch.stack([by_loop(memory, u[b], h[b], dt[b]) for b in range(2)])
    torch.testing.assert_close(found.value, expected)
    assert (found.value[:, 0] == 0).all(), "the first position has nothing to read"


@torch.no_grad()
@pytest.mark.parametrize("slots", [1, 4, None])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_any_chunks_equal_the_whole(size, slots):
    memory = episodic(slots=slots)
    u, h, dt = sequence(13)
    mask = torch.rand(2, 13, generator=torch.Generator().manual_seed(1)) < 0.8
    start = torch.zeros(2, 13, dtype=torch.bool)
    start[0, 6] = True
    clock = Timeline.build(dt, mask=mask, start=start)
    _, whole, end = call(memory, u, h, clock, memory.empty(2))
    state, position, time, parts = memory.empty(2), None, None, []
    for begin in range(0, 13, size):
        part = slice(begin, begin + size)
        clock = Timeline.build(dt[:, part], mask=mask[:, part], start=start[:, part], position=position, time=time)
        _, found, state = call(memory, u[:, part], h[:, part], clock, state)
        position, time = clock.position[:, -1], clock.time[:, -1]
        parts.append(spread(found, clock.mask.shape[1]))
    torch.testing.assert_close(torch.cat(parts, dim=1), spread(whole, 13))
    for name, x in end.named_tensors():
        torch.testing.assert_close(dict(state.named_tensors())[name], x, msg=lambda m, n=name: f"{n}: {m}")


@torch.no_grad()
def test_the_buffer_keeps_the_best_events_and_grows_no_further():
    memory = episodic(slots=4)
    u, h, dt = sequence(9)
    clock = Timeline.build(dt)
    state, sizes = memory.empty(2), []
    for t in range(9):
        one = Timeline.build(dt[:, t : t + 1], position=clock.position[:, t], time=clock.time[:, t] - clock.gap[:, t])
        _, _, state = call(memory, u[:, t : t + 1], h[:, t : t + 1], one, state)
        sizes.append(state.slots)
    assert sizes == [1, 2, 3, 4, 4, 4, 4, 4, 4]
    priority = memory.priority(torch.cat([u, h], dim=-1)).squeeze(-1)
    key = memory.key(u + memory.mix[1] * h).view(2, 9, HEADS, -1)
    value = memory.value(u + memory.mix[2] * h).view(2, 9, HEADS, -1)
    for b in range(2):
        kept = state.position[b].tolist()
        assert sorted(kept) == sorted(priority[b].topk(4).indices.tolist())
        torch.testing.assert_close(state.priority[b], priority[b, kept])
        torch.testing.assert_close(state.key[b], key[b, kept])
        torch.testing.assert_close(state.value[b], value[b, kept])
        torch.testing.assert_close(state.time[b], clock.time[b, kept])


@torch.no_grad()
def test_attention_received_adds_up_over_calls():
    memory = episodic(slots=None)
    u, h, dt = sequence(8)
    state, position, time = memory.empty(2), None, None
    for part in (slice(0, 3), slice(3, 8)):
        clock = Timeline.build(dt[:, part], position=position, time=time)
        _, _, state = call(memory, u[:, part], h[:, part], clock, state)
        position, time = clock.position[:, -1], clock.time[:, -1]
    torch.testing.assert_close(state.mass.sum(1), torch.full((2,), 7.0).double())  # all rows but the first
    torch.testing.assert_close(state.mass[:, 7], torch.zeros(2).double())  # the last event was read by nobody


@torch.no_grad()
def test_a_start_empties_the_buffer():
    memory = episodic(slots=3)
    u, h, dt = sequence(10)
    start = torch.zeros(2, 10, dtype=torch.bool)
    start[:, 6] = True
    _, packed, state = call(memory, u, h, Timeline.build(dt, start=start), memory.empty(2))
    _, alone, end = call(memory, u[:, 6:], h[:, 6:], Timeline.build(dt[:, 6:]), memory.empty(2))
    torch.testing.assert_close(packed.value[:, 6:], alone.value)
    assert (packed.value[:, 6] == 0).all()
    assert torch.equal(state.position, end.position)


@torch.no_grad()
def test_only_the_given_rows_are_read():
    memory = episodic(slots=None)
    u, h, dt = sequence(6)
    chosen = torch.tensor([[0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0]]).bool()
    clock = Timeline.build(dt)
    _, dense, _ = call(memory, u, h, clock, memory.empty(2))
    _, found, _ = call(memory, u, h, clock, memory.empty(2), chosen)
    assert found.value.shape == (2, 2, WIDTH)
    assert found.pairs.tolist() == [1 + 4, 3]
    torch.testing.assert_close(spread(found, 6), dense.value * chosen.unsqueeze(-1))


def test_every_parameter_is_learned_through_the_reads_the_priority_too():
    memory = episodic(slots=None)
    u, h, dt = sequence(6)
    _, found, _ = call(memory, u, h, Timeline.build(dt), memory.empty(2))
    found.value.square().sum().backward()
    silent = [name for name, p in memory.named_parameters() if p.grad is None or not p.grad.ne(0).any()]
    assert silent == []


def test_a_query_and_a_key_of_the_same_content_match_at_the_start():
    """Whatever working memory holds: the two look alike until training tells them apart."""
    memory = EpisodicMemory(WIDTH, EpisodicConfig(heads=HEADS))
    u, h, dt = (x.float() for x in sequence(4))
    written = memory.write(
        memory.priority_of(memory.of_token(u), memory.of_working(h)), Timeline.build(dt), memory.empty(2)
    )
    listed = memory.list(u, h, memory.pick(written, None, keep=False), written, memory.empty(2))
    torch.testing.assert_close(listed.key.flatten(2), memory.query(u + memory.mix[0] * (h + 1)))
    assert memory.query.weight.data_ptr() != memory.key.weight.data_ptr()


def test_reads_get_sharper_beyond_the_length_of_training():
    plain, told = episodic(slots=None).eval(), episodic(slots=None, trained_length=8).eval()
    u, h, dt = sequence(64)
    clock = Timeline.build(dt)
    masses = []
    for memory in (plain, told):
        _, found, _ = call(memory, u, h, clock, memory.empty(2), clock.mask & (clock.position[:, :-1] == 63))
        masses.append(found.mass)
    assert (masses[1].amax(1) > masses[0].amax(1)).all(), "the winner takes more"
    _, before, _ = call(told, u[:, :9], h[:, :9], Timeline.build(dt[:, :9]), told.empty(2))
    _, expected, _ = call(plain, u[:, :9], h[:, :9], Timeline.build(dt[:, :9]), plain.empty(2))
    assert torch.equal(before.value, expected.value), "nothing changes up to there"
    _, learning, _ = call(told.train(), u, h, clock, told.empty(2))
    _, expected, _ = call(plain, u, h, clock, plain.empty(2))
    assert torch.equal(learning.value, expected.value), "training is what sets the length"


def test_without_recency_there_is_nothing_to_learn_about_age():
    memory = EpisodicMemory(WIDTH, EpisodicConfig(heads=HEADS, recency=False))
    assert not memory.recency.requires_grad
    assert (memory.recency == 0).all()


def test_the_short_convolution_weighs_each_tap():
    memory = EpisodicMemory(2, EpisodicConfig(heads=1, convolution=3))
    u = torch.tensor([[[1.0, 2.0]]])
    before = torch.tensor([[[[10.0, 20.0], [100.0, 200.0]]]])
    assert smooth(u, before, memory.taps).tolist() == [[[56.0, 112.0]]]
    taps = torch.tensor([[1.0, 0.0], [0.5, 1.0], [0.0, 2.0]])
    assert smooth(u, before, taps).tolist() == [[[6.0, 420.0]]]
    assert EpisodicMemory(2, EpisodicConfig(heads=1)).taps is None


def test_keep_puts_nothing_in_a_slot_that_is_free():
    memory = episodic(slots=4)
    u, h, dt = sequence(3)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    _, _, state = call(memory, u, h, Timeline.build(dt, mask=mask), memory.empty(2))
    assert state.position.tolist() == [[0, 1, -1], [-1, -1, -1]]
    for name, x in state.named_tensors():
        if name != "position":
            assert (x[state.position < 0] == 0).all(), name


def test_an_empty_row_list_is_fine():
    memory = episodic()
    u, h, dt = sequence(3)
    clock = Timeline.build(dt)
    written = memory.write(memory.priority_of(memory.of_token(u), memory.of_working(h)), clock, memory.empty(2))
    nobody = Rows(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.bool))
    found = memory.look(u, h, nobody, clock, written, memory.empty(2), torch.zeros_like(clock.mask), keep=True)
    assert found.value.shape == (2, 0, WIDTH)
    assert found.pairs.tolist() == [0, 0]
    assert memory.keep(written, found, memory.empty(2)).position.tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("idle", [0, 1])
def test_evidence_is_what_the_heads_that_matter_rest_on(idle):
    """One head adds nothing to the read: where it looks does not count."""
    memory = episodic(slots=16)
    u, h, dt = sequence(9)
    timeline = Timeline.build(dt)
    half = memory.outward.weight.shape[1] // 2
    with torch.no_grad():
        memory.outward.weight.view(-1, 2, half)[:, idle] = 0
        memory.query.weight *= 4
    written = memory.write(memory.priority_of(memory.of_token(u), memory.of_working(h)), timeline, memory.empty(2))
    rows = compact(torch.arange(9).expand(2, 9) > 2)
    used = torch.arange(9).expand(2, 9) % 2 == 0
    listed = memory.list(u, h, memory.pick(written, None, keep=False), written, memory.empty(2))
    found = memory.evidence(u, h, rows, timeline, written, listed, used)
    with torch.no_grad():
        query = memory.query_of(gather_rows(u, rows), gather_rows(h, rows), rows, timeline)[:, :, 1 - idle]
        scores = query @ listed.key[:, :, 1 - idle].transpose(1, 2) / half**0.5
        scores = scores + nn.functional.logsigmoid(written.priority).unsqueeze(1)
        age = torch.log1p(timeline.time[:, rows.at[0], None] - timeline.time.unsqueeze(1)).clamp_min(0)
        scores = scores + memory.recency[1 - idle] * age
        later = torch.arange(9) >= rows.at.unsqueeze(2)
        share, event = scores.masked_fill(later, -torch.inf).softmax(-1).max(-1)
    assert torch.equal(found.event, event)
    torch.testing.assert_close(found.share, share.to(found.share.dtype))
    assert torch.equal(found.used, used[:, 3:])


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 4, 6])
def test_what_says_nothing_new_is_evicted_first(size):
    """In the call it comes in and in the next; among its like, the newer goes."""
    memory = episodic(slots=2)
    memory.priority.weight.zero_()
    u, h, dt = sequence(6)
    known = torch.tensor([[True, False, True, True, False, False], [True, True, True, True, True, False]])
    state, position, time = memory.empty(2), None, None
    for begin in range(0, 6, size):
        part = slice(begin, begin + size)
        clock = Timeline.build(dt[:, part], position=position, time=time)
        written = memory.write(
            memory.priority_of(memory.of_token(u[:, part]), memory.of_working(h[:, part])),
            clock,
            state,
            known=known[:, part],
        )
        rows = compact(clock.mask)
        found = memory.look(u[:, part], h[:, part], rows, clock, written, state, None, keep=True)
        state = memory.keep(written, found, state)
        position, time = clock.position[:, -1], clock.time[:, -1]
    assert [sorted(row) for row in state.position.tolist()] == [[1, 4], [0, 5]]


@pytest.mark.parametrize("slots", [2, 5, None])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("packed", [False, True])
def test_keys_and_values_of_what_nobody_reads_are_never_made(slots, share, packed):
    """Only what a reader can see, or what stays, is listed; what is read, learned and kept is the same."""
    memory = episodic(slots=slots)
    first, (u, h, dt) = sequence(7, seed=1), sequence(20, seed=2)
    start = torch.zeros(2, 20, dtype=torch.bool)
    start[0, 11] = packed
    before = call(memory, *first[:2], Timeline.build(first[2]), memory.empty(2))[2]
    before = EpisodicState(**{name: x.detach() for name, x in before.named_tensors()})
    clock = Timeline.build(dt, start=start)
    chosen = torch.rand(2, 20, generator=torch.Generator().manual_seed(3)) < share
    results = []
    for readers in (None, chosen):
        memory.zero_grad()
        written = memory.write(memory.priority_of(memory.of_token(u), memory.of_working(h)), clock, before)
        found = memory.look(u, h, compact(chosen), clock, written, before, readers, keep=True)
        found.value.square().sum().backward()
        kept = memory.keep(written, found, before)
        results.append((found, kept, [p.grad for p in memory.parameters()]))
    (all_of_it, kept, grads), (picked, kept_too, grads_too) = results
    torch.testing.assert_close(picked.value, all_of_it.value)
    torch.testing.assert_close(picked.mass, all_of_it.mass)
    assert torch.equal(picked.pairs, all_of_it.pairs)
    for (name, x), (_, y) in zip(kept.named_tensors(), kept_too.named_tensors(), strict=True):
        torch.testing.assert_close(x, y, msg=name)
    torch.testing.assert_close(grads_too, grads)

    written = memory.write(memory.priority_of(memory.of_token(u), memory.of_working(h)), clock, before)
    events, at = written.events, torch.arange(20)
    readable = (events.written[:, :, None] < at) & (at <= events.expires[:, :, None]) & chosen[:, None]
    for keep in (False, True):
        listed = memory.look(u, h, compact(chosen), clock, written, before, chosen, keep=keep).listed
        wanted = readable.any(2) | (events.expires >= 20 if keep else False)
        for row in range(2):
            new = listed.number[row][listed.valid[row]][written.held :]
            assert (new - written.held).tolist() == wanted[row, written.held :].nonzero().flatten().tolist()


def test_witnesses_that_do_not_read_see_all_that_they_could():
    """Without audits, an index still learns from what a read of its witnesses would rest on."""
    torch.manual_seed(0)
    config = CramConfig.preset("tiny", vocabulary=16).override({"contradiction.rank": 8, "episodic.slots": 16})
    model = Cram(config).double().train()
    tokens, nobody = torch.randint(16, (2, 64)), torch.full((2, 64, config.layers), 2)
    policy = RoutingPolicy(actions=nobody, answered=torch.ones(2, 64, dtype=torch.bool))
    layer = model(tokens, policy=policy, keep_state=False).layers[0]
    witnesses = layer.guidance.witnesses
    assert witnesses.valid.any()
    assert not layer.reads.any()
    assert not layer.audits.any()
    at = witnesses.at
    events = layer.reading.listed.events
    seen = ((events.written[:, None] < at[..., None]) & (at[..., None] <= events.expires[:, None])).sum(2)
    # A buffer of 16 slots is full from the 16th position on: so many events each of them can read.
    assert torch.equal(seen[witnesses.valid], at.clamp_max(16)[witnesses.valid])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_events_are_useful_if_a_later_token_reads_before_they_expire(keep, share):
    generator = torch.Generator().manual_seed(0)
    length = 9
    readers = torch.rand(4, length, generator=generator) < share
    expires = torch.arange(length) + torch.randint(0, 6, (4, length), generator=generator)
    expires = expires.clamp_max(length)
    found = useful(expires, readers, keep=keep)
    for row in range(4):
        for event in range(length):
            read = any(readers[row, t] for t in range(event + 1, min(length, int(expires[row, event]) + 1)))
            assert bool(found[row, event]) == (read or (keep and int(expires[row, event]) >= length))
