"""The model as a whole: policies, precision, forms of the operations, gradients."""

import copy

import pytest
import torch

from tests.models.feeding import assert_close, assert_same_state
from torchcram import Cram, RoutingPolicy
from torchcram.draws import Draws
from torchcram.memory import SEMANTIC, Timeline
from torchcram.ops import use


@torch.no_grad()
def test_evaluation_is_deterministic(lively, events):
    model = lively()
    tokens, dt = events(2, 50, seed=101)
    torch.manual_seed(1)
    first = model(tokens, dt=dt)
    torch.manual_seed(2)
    second = model(tokens, dt=dt)
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.routing, second.routing)
    assert_same_state(first.state, second.state, rtol=0)


def test_training_is_random_but_repeatable(lively, events):
    model = lively().train()
    tokens, dt = events(2, 50, seed=101)

    def actions(seed):
        return model(tokens, dt=dt, policy=RoutingPolicy(generator=torch.Generator().manual_seed(seed))).routing

    assert torch.equal(actions(1), actions(1))
    assert not torch.equal(actions(1), actions(2))


@torch.no_grad()
@pytest.mark.parametrize("policy", [{"audit": 0.2}, {"reads": "dense", "skip": 0.3}], ids=["routed", "dense"])
def test_counted_noise_makes_training_the_same_in_any_split_of_the_rows(policy, lively, events):
    model = lively(seed=4).train()
    tokens, dt = events(4, 50, seed=101)

    def run(rows, step=0):
        draws = Draws(seed=1, step=step, rows=torch.arange(rows.start, rows.stop))
        out = model(
            tokens[rows.start : rows.stop], dt=dt[rows.start : rows.stop], policy=RoutingPolicy(draws=draws, **policy)
        )
        return torch.stack([out.routing, torch.stack([layer.audits for layer in out.layers], dim=-1)])

    whole = run(range(4))
    assert torch.equal(torch.cat([run(range(1)), run(range(1, 4))], dim=1), whole)
    assert not torch.equal(run(range(4), step=1), whole)


@torch.no_grad()
def test_rows_do_not_see_each_other(lively, events):
    model = lively(seed=4)
    tokens, dt = events(3, 50, seed=102)
    together = model(tokens, dt=dt)
    for row in range(3):
        alone = model(tokens[row : row + 1], dt=dt[row : row + 1])
        assert torch.equal(alone.routing, together.routing[row : row + 1])
        assert_close(alone.logits, together.logits[row : row + 1])


@pytest.mark.parametrize(
    "changes", [{}, {"router.quality": "exact", "episodic.convolution": 3}], ids=["predicted", "exact"]
)
@torch.no_grad()
def test_float64(changes, lively, events):
    """The same numbers, only finer; nothing falls back to float32 on the way."""
    model = lively(changes, seed=4)
    tokens, dt = events(2, 60, seed=103)
    single = model(tokens, dt=dt)
    double = model.double()(tokens, dt=dt.double())
    assert double.logits.dtype == torch.float64
    assert torch.equal(double.routing, single.routing)
    assert_close(double.logits.float(), single.logits, atol=1e-3)
    chunked = model(tokens[:, 30:], dt=dt[:, 30:].double(), state=model(tokens[:, :30], dt=dt[:, :30].double()).state)
    assert_close(chunked.logits, double.logits[:, 30:], atol=1e-12)
    assert_same_state(chunked.state, double.state, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("quality", ["predicted", "exact"])
def test_training_in_other_precisions(dtype, quality, lively, events):
    model = lively({"router.quality": quality, "episodic.convolution": 3}).to(dtype).train()
    tokens, dt = events(2, 30, seed=104)
    out = model(tokens, dt=dt, policy=RoutingPolicy(audit=0.3))
    assert out.logits.dtype == dtype
    (out.logits.float().square().mean() + sum(out.losses.values())).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"router.quality": "exact", "episodic.convolution": 3, "episodic.layers": [0, 2]},
        {"working.carry": "none", "episodic.slots": None},
    ],
    ids=["bounded", "exact quality, convolution", "pointwise, unbounded"],
)
def test_fast_forms_agree_with_the_reference(changes, lively, events):
    """Outputs, state, counts, losses and every gradient of a training call with audits, padding and packing."""
    model = lively(changes, seed=4).double().train()
    other = copy.deepcopy(model)
    tokens, dt = events(2, 40, seed=105)
    mask = torch.arange(40).expand(2, 40) != 20
    start = torch.zeros(2, 40, dtype=torch.bool)
    start[1, 25] = True

    def train(model):
        policy = RoutingPolicy(audit=0.2, generator=torch.Generator().manual_seed(106))
        before = model(tokens[:, :5], dt=dt[:, :5], policy=policy).state
        out = model(tokens, dt=dt, mask=mask, start=start, state=before, policy=policy)
        (out.logits.square().mean() + sum(out.losses.values())).backward()
        return out

    fast = train(model)
    with use("reference"):
        slow = train(other)
    assert torch.equal(fast.routing, slow.routing)
    assert fast.ledger() == slow.ledger()
    assert_close(fast.logits, slow.logits, atol=1e-10)
    assert_same_state(fast.state, slow.state, rtol=1e-9)
    for name, value in slow.losses.items():
        assert_close(fast.losses[name], value, atol=1e-9)
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-7, atol=1e-9, msg=name)


def test_every_parameter_learns(lively, events):
    model = lively({"episodic.convolution": 3}).train()
    for block in model.blocks:
        block.episodic.query.weight.data *= 10  # reads that rest on one event teach the contradiction index
        block.router.on_hit.data.zero_()  # and what asks for what it holds does this or that
    tokens, dt = events(2, 40, seed=107)
    out = model(tokens, dt=dt, policy=RoutingPolicy(audit=0.2))
    (out.logits.square().mean() + sum(out.losses.values())).backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not (p.grad != 0).any()]
    assert idle == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_policies_of_reading(lively, events):
    model = lively(seed=4)
    tokens, dt = events(2, 40, seed=108)
    dense = model(tokens, dt=dt, policy=RoutingPolicy(reads="dense"))
    off = model(tokens, dt=dt, policy=RoutingPolicy(reads="off"))
    most = model(tokens, dt=dt, policy=RoutingPolicy(reads="dense", skip=0.25))
    assert (dense.routing == 1).all()
    assert abs(float((most.routing == 0).float().mean()) - 0.25) < 4 * (0.25 * 0.75 / most.routing.numel()) ** 0.5
    assert not (most.routing == 2).any()
    assert not (off.routing == 1).any()
    # Without reads, a token takes the better of the two other actions.
    first = off.layers[0].decision
    assert torch.equal(first.actions, first.probabilities[..., [0, 2]].argmax(-1) * 2)
    assert (first.probabilities[..., 1] == 0).all()


@torch.no_grad()
def test_events_are_written_with_the_priorities_given(lively, events):
    model = lively({"episodic.slots": 8, "contradiction.rank": 0}, seed=4)
    tokens, dt = events(2, 40, seed=109)
    rising = torch.arange(40.0).view(1, 40, 1).expand(2, 40, 3)
    for priorities, kept in ((rising, range(32, 40)), (-rising, range(8))):
        state = model(tokens, dt=dt, policy=RoutingPolicy(priorities=priorities)).state
        for layer in state.layers:
            assert layer.episodic.position.sort(1).values.tolist() == [list(kept)] * 2


@torch.no_grad()
def test_reads_need_not_be_verified(lively, events):
    model = lively()
    tokens, dt = events(2, 30, seed=112)
    usual, brief = (model(tokens, dt=dt, policy=RoutingPolicy(verify=verify)) for verify in (True, False))
    assert torch.equal(brief.logits, usual.logits)
    assert any(layer.exact is not None for layer in usual.layers)
    assert all(layer.exact is None for layer in brief.layers)
    tried = RoutingPolicy(verify=False, trial=0.5)
    assert any(layer.exact is not None for layer in model(tokens, dt=dt, policy=tried).layers), "trials rest on it"
    taught = model.train()(tokens, dt=dt, policy=RoutingPolicy(verify=False), keep_state=False)
    assert any(layer.exact is not None for layer in taught.layers), "training cannot do without"


@torch.no_grad()
def test_forced_actions_are_taken(lively, events):
    model = lively(seed=4)
    tokens, dt = events(2, 40, seed=109)
    actions = torch.randint(3, (2, 40, 3), generator=torch.Generator().manual_seed(110))
    out = model(tokens, dt=dt, policy=RoutingPolicy(actions=actions))
    assert torch.equal(out.routing.long(), actions)
    own = model(tokens, dt=dt)
    again = model(tokens, dt=dt, policy=RoutingPolicy(actions=own.routing))
    assert torch.equal(again.logits, own.logits)
    # Each action of the last layer leads to its own result, and touches no other position.
    for action in range(3):
        other = own.routing.clone()
        other[:, 30, 2] = action
        change = (model(tokens, dt=dt, policy=RoutingPolicy(actions=other)).logits - own.logits).abs().amax(-1)
        assert ((change[:, 30] > 1e-3) == (own.routing[:, 30, 2] != action)).all()
        change[:, 30] = 0
        assert change.max() < 2e-6


@pytest.mark.parametrize(
    "weight",
    [
        "working.outward.weight",
        "working.gate_weight",
        "episodic.outward.weight",
        "episodic.recency",
        "episodic.priority.weight",
        "semantic.up.weight",
        "feed.2.weight",
    ],
)
@torch.no_grad()
def test_every_memory_is_heard(weight, lively, events):
    """Switching a part off changes what the model says, the actions being the same.

    The buffer is unbounded, so that priorities matter to the weights of a read alone.
    """
    tokens, dt = events(2, 40, seed=111)
    model = lively({"episodic.slots": None}, seed=4)
    before = model(tokens, dt=dt)
    for block in model.blocks:
        block.get_parameter(weight).zero_()
    after = model(tokens, dt=dt, policy=RoutingPolicy(actions=before.routing))
    assert (after.logits - before.logits).abs().max() > 0.05


@torch.no_grad()
def test_audits_at_evaluation_change_nothing(lively, events):
    model = lively(seed=4)
    tokens, dt = events(2, 40, seed=112)
    plain, audited = model(tokens, dt=dt), model(tokens, dt=dt, policy=RoutingPolicy(audit=1.0))
    assert torch.equal(plain.routing, audited.routing)
    assert_close(audited.logits, plain.logits, atol=2e-6)
    assert audited.ledger().audits > 0


def test_a_diverged_model_gives_nan_and_no_crash(lively, events):
    """So that a training loop can see it in the loss and say so."""
    model = lively()
    tokens, dt = events(2, 40, seed=113)
    with torch.no_grad():
        model.encoder.gap.weight.fill_(torch.nan)
    assert model(tokens, dt=dt).logits.isnan().all()


def test_the_same_seed_makes_the_same_model(tiny):
    models = []
    for _ in range(2):
        torch.manual_seed(7)
        models.append(Cram(tiny()))
    for (name, mine), theirs in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_two_calls_before_one_backward(lively, events):
    """As in training over chunks, or with two views of one batch."""
    model = lively().train()
    tokens, dt = events(2, 20, seed=114)
    first = model(tokens[:, :10], dt=dt[:, :10])
    second = model(tokens[:, 10:], dt=dt[:, 10:], state=first.state)
    (sum(first.losses.values()) + sum(second.losses.values())).backward()


def test_first_training_call_with_nothing_to_read(tiny):
    model = Cram(tiny()).train()
    out = model(torch.zeros(2, 1, dtype=torch.int64), policy=RoutingPolicy(reads="dense"))
    assert all(loss.isfinite() for loss in out.losses.values())


def test_a_bad_call_leaves_no_trace_in_running_means(lively, events):
    model = lively().train()
    tokens, dt = events(2, 20, seed=115)
    model(tokens, dt=dt)
    saved = model.encoder.gap.weight.detach().clone()
    with torch.no_grad():
        model.encoder.gap.weight.fill_(torch.nan)
        model(tokens, dt=dt)
        model.encoder.gap.weight.copy_(saved)
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    assert all(loss.isfinite() for loss in model(tokens, dt=dt).losses.values())


@torch.no_grad()
def test_chunks_under_autocast(lively, events):
    model = lively()
    tokens, dt = events(2, 20, seed=116)
    with torch.autocast("cpu", torch.bfloat16):
        first = model(tokens[:, :10], dt=dt[:, :10])
        second = model(tokens[:, 10:], dt=dt[:, 10:], state=first.state)
    assert second.logits.isfinite().all()
    assert {x.dtype for _, x in first.state.named_tensors()} <= {
        torch.float32,
        torch.float64,
        torch.int64,
        torch.bool,
    }


def test_a_token_that_skips_does_so_in_every_layer(lively, events):
    model = lively({"episodic.layers": None}).train()
    tokens, dt = events(2, 40, seed=117)
    reads = model(tokens, dt=dt, policy=RoutingPolicy(reads="dense", skip=0.3)).routing == 1
    assert torch.equal(reads.any(-1), reads.all(-1))
    assert 0.5 < reads.any(-1).double().mean() < 0.9


@torch.no_grad()
def test_what_asks_for_what_memory_gets_wrong_recalls_in_no_layer(lively, events):
    """Also where there is no buffer to read from instead."""
    model = lively({"episodic.layers": [0, 2]}, seed=4)
    tokens, dt = events(2, 200, seed=113)
    out = model(tokens, dt=dt)
    hits = out.guidance.hits
    assert hits.sum() > 20
    assert not (out.routing[hits] == 2).any()
    assert (out.routing[~hits][:, 1] == 2).any()


def test_in_training_every_other_hit_is_not_pointed_at_anything(lively, events):
    """So that attention stays in practice; the same ones in every layer."""
    model = lively(seed=4)
    tokens, dt = events(8, 200, seed=113)
    policy = RoutingPolicy(draws=Draws(seed=0, step=0, rows=torch.arange(8)))
    with torch.no_grad():
        used, learning = model(tokens, dt=dt).guidance, model.train()(tokens, dt=dt, policy=policy).guidance
    assert torch.equal(used.pointer.position, used.consulted.target)
    assert torch.equal(used.pointer.here, used.consulted.here)
    pointed = learning.pointer.position >= 0
    assert torch.equal(pointed & learning.hits, pointed)
    assert 0.35 < pointed.sum() / learning.hits.sum() < 0.65
    for given, told in zip(learning.pointer, learning.consulted[:2], strict=True):
        assert torch.equal(given[pointed], told[pointed])
        assert (given[~pointed] == -1).all()


def test_models_of_tests_use_their_index(lively, events):
    """Otherwise many mistakes would not show."""
    found = dict.fromkeys(("entered", "known", "checked", "surprising", "hits", "dead"), 0)
    for seed in range(5):
        x, dt = events(4, 100, seed=seed)
        with torch.no_grad():
            consulted = lively(seed=seed)(x, dt=dt).guidance.consulted
        for name in ("entered", "known", "checked", "surprising"):
            found[name] += int(getattr(consulted, name).sum())
        found["hits"] += int((consulted.target >= 0).sum())
        found["dead"] += int(consulted.state.dead.sum())
    assert min(found.values()) > 5, found


def test_blocks_of_ones_own_can_share_an_index(lively, events):
    model = lively().train()
    timeline = Timeline.build(events(2, 200, seed=3)[1])
    policy = RoutingPolicy(audit=0.1, draws=Draws(seed=0, step=0, rows=torch.arange(2)))
    u = torch.randn(2, 200, model.config.block.width, generator=torch.Generator().manual_seed(0))
    below = model.blocks[0](u, timeline, policy=policy, keep_state=False)
    assert below.guidance.hits.any()
    above = model.blocks[1](below.x, timeline, policy=policy, guidance=below.guidance, keep_state=False)
    assert not ((above.decision.actions == SEMANTIC) & below.guidance.hits).any()
