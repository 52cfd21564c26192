"""The layer: routing, audits, causality, and that only the chosen reads are computed."""

import pytest
import torch
from torch import Tensor, nn

import torchcram.ops
from torchcram.config import BlockConfig, EpisodicConfig, RouterConfig, SemanticConfig, WorkingConfig
from torchcram.draws import Draws
from torchcram.memory import EPISODIC, NONE, SEMANTIC, Block, BlockOutput, RoutingPolicy, Timeline

WIDTH, LENGTH, BATCH = 8, 13, 3


def layer(
    *,
    slots: int | None = 5,
    convolution: int = 1,
    buffer: bool = True,
    rank: int = 3,
    expansion: float = 2.0,
    training: bool = False,
    **router,
) -> Block:
    """A layer that has learned something, so that no part of it is silent."""
    torch.manual_seed(0)
    block = Block(
        block=BlockConfig(width=WIDTH, expansion=expansion),
        working=WorkingConfig(),
        episodic=EpisodicConfig(slots=slots, heads=2, convolution=convolution) if buffer else None,
        semantic=SemanticConfig(rank=rank),
        router=RouterConfig(**{"sharpness": 1.0, "threshold": 0.5, **router}),
    ).double()
    if rank:
        nn.init.normal_(block.semantic.up.weight)
    if buffer:
        nn.init.normal_(block.episodic.recency)
        if convolution > 1:
            nn.init.normal_(block.episodic.taps)
    nn.init.normal_(block.router.out.weight, std=3.0)  # all three actions occur
    nn.init.zeros_(block.router.out.bias)
    return block.train(training)


def sequence(seed: int = 0, length: int = LENGTH) -> tuple[Tensor, Timeline]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, length, WIDTH, generator=generator, dtype=torch.float64)
    return x, Timeline.build(2 * torch.rand(BATCH, length, generator=generator, dtype=torch.float64))


def run(block: Block, x: Tensor, clock: Timeline, policy: RoutingPolicy | None = None, **options) -> BlockOutput:
    return block(x, clock, block.initial_state(x.shape[0]), policy, **options)


def audit(share: float, seed: int = 0, **policy) -> RoutingPolicy:
    """The Gumbel noise is drawn before the audits, so that the same seed gives the same actions at any share."""
    return RoutingPolicy(audit=share, generator=torch.Generator().manual_seed(seed), **policy)


def favour(block: Block, action: int, lead: float) -> Block:
    """A router that gives one action the same lead at every token."""
    nn.init.zeros_(block.router.out.weight)
    nn.init.zeros_(block.router.out.bias)
    block.router.out.bias.data[action] = lead
    return block


def test_a_layer_alone_can_count_its_noise():
    block, (x, clock) = favour(layer(training=True, sharpness=0.0), NONE, 0.0), sequence()
    policy = RoutingPolicy(draws=Draws(seed=0, step=0, rows=torch.arange(BATCH)))
    first, again = (run(block, x, clock, policy).decision.actions for _ in range(2))
    other = run(block, x, clock, policy, noise=policy.noise(*first.shape, layers=2)[1]).decision.actions
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def logit_gradient(block: Block, x: Tensor, clock: Timeline, policy: RoutingPolicy | None, **options) -> Tensor:
    """How a fixed function of the output depends on the router's logits."""
    kept: list[Tensor] = []
    hook = block.router.register_forward_hook(lambda _module, _inputs, logits: kept.append(logits))
    out = run(block, x, clock, policy, **options)
    hook.remove()
    direction = torch.randn(out.x.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    gradient = torch.autograd.grad((out.x * direction).sum(), kept[0], allow_unused=True, materialize_grads=True)
    return gradient[0]


def by_masking(block: Block, x: Tensor, clock: Timeline, actions: Tensor, weights: Tensor | None = None) -> Tensor:
    """The layer's equation with every read computed and then masked."""
    dense = run(block, x, clock, forced=torch.full_like(actions, EPISODIC))
    read = dense.reading.value
    assert dense.reading.rows.at.shape == actions.shape
    u = block.norm_memory(x)
    context, _, _ = block.working(u, clock, torch.zeros(x.shape[0], WIDTH, dtype=x.dtype))
    weights = nn.functional.one_hot(actions, 3).to(x.dtype) if weights is None else weights
    x = x + context + weights[..., EPISODIC, None] * read + weights[..., SEMANTIC, None] * block.semantic(u)
    return x if block.feed is None else x + block.feed(block.norm_feed(x))


@torch.no_grad()
@pytest.mark.parametrize(("convolution", "expansion"), [(1, 2.0), (3, 2.0), (1, 0)])
def test_the_gathered_path_equals_the_masked_one(convolution, expansion):
    block = layer(convolution=convolution, expansion=expansion)
    assert (block.feed is None) == (expansion == 0)
    x, clock = sequence()
    routed = run(block, x, clock)
    actions = routed.decision.actions
    assert set(actions.flatten().tolist()) == {NONE, EPISODIC, SEMANTIC}
    torch.testing.assert_close(routed.x, by_masking(block, x, clock, actions), rtol=1e-10, atol=1e-10)
    forced = torch.randint(3, actions.shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        run(block, x, clock, forced=forced).x, by_masking(block, x, clock, forced), rtol=1e-10, atol=1e-10
    )


@torch.no_grad()
def test_only_routed_and_audited_rows_are_computed():
    x, clock = sequence()
    out = run(layer(training=True), x, clock, audit(0.4))
    reads = out.decision.actions == EPISODIC
    assert torch.equal(out.reads, reads)
    assert torch.equal(out.audits, out.decision.audited)
    assert out.audits.any()
    assert not (out.audits & reads).any()
    computed = torch.zeros_like(reads)
    for b, r in out.reading.rows.valid.nonzero().tolist():
        computed[b, out.reading.rows.at[b, r]] = True
    assert torch.equal(computed, reads | out.audits)
    assert not computed.all()
    assert out.reading.value.shape[1] == computed.sum(1).max()


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
def test_an_audit_changes_no_output(training):
    x, clock = sequence()
    block = layer(training=training)
    plain = run(block, x, clock, audit(0.0))
    for share in (0.5, 1.0):
        audited = run(block, x, clock, audit(share))
        assert audited.audits.any()
        assert torch.equal(audited.decision.actions, plain.decision.actions)
        # A larger product may round differently where tokens read; an audit's own weight is exactly 0.
        torch.testing.assert_close(audited.x, plain.x, rtol=1e-13, atol=1e-13)
    block = favour(layer(training=False, sharpness=0.0), NONE, 3.0)
    plain, audited = run(block, x, clock), run(block, x, clock, audit(1.0))
    assert audited.audits.all()
    assert torch.equal(audited.x, plain.x)
    for name, tensor in audited.state.named_tensors():
        if name != "episodic.mass":
            assert torch.equal(tensor, dict(plain.state.named_tensors())[name]), name


def test_an_audit_teaches_a_router_that_never_reads():
    """No token reads and semantic memory is silent: only an audit can tell the router what a read would do."""
    x, clock = sequence()
    block = favour(layer(sharpness=0.0), NONE, 2.0)
    nn.init.zeros_(block.semantic.up.weight)
    assert (logit_gradient(block, x, clock, None) == 0).all()
    gradient = logit_gradient(block, x, clock, audit(1.0))
    assert (gradient[:, 1:, EPISODIC] != 0).all()
    assert (gradient[:, 0] == 0).all(), "the first position has nothing to read"


def all_reads_gradient(block: Block, x: Tensor, clock: Timeline) -> Tensor:
    """The same gradient when every read is computed and weighed by the straight-through weights."""
    with torch.no_grad():
        actions = run(block, x, clock).decision.actions
    kept: list[Tensor] = []
    hook = block.router.register_forward_hook(lambda _module, _inputs, logits: kept.append(logits))
    run(block, x, clock)
    hook.remove()
    logits = kept[0]
    soft = torch.softmax(logits, dim=-1)
    weights = nn.functional.one_hot(actions, 3) + soft - soft.detach()
    out = by_masking(block, x, clock, actions, weights)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((out * direction).sum(), logits)
    return gradient


def test_auditing_everything_gives_the_gradient_of_computing_everything():
    block = layer()
    x, clock = sequence()
    expected = all_reads_gradient(block, x, clock)
    torch.testing.assert_close(logit_gradient(block, x, clock, audit(1.0)), expected)
    assert not torch.allclose(logit_gradient(block, x, clock, None), expected), "without audits it is another one"


def test_auditing_some_gives_that_gradient_on_average():
    block = layer()
    x, clock = sequence(length=5)
    expected = all_reads_gradient(block, x, clock)
    draws = torch.stack([logit_gradient(block, x, clock, audit(0.5, seed)) for seed in range(400)])
    error = draws.std(0) / len(draws) ** 0.5
    assert error.max() > 0
    assert ((draws.mean(0) - expected).abs() <= 4.5 * error + 1e-9).all()


POLICIES = {
    "forced": {},
    "dense": {"policy": RoutingPolicy(reads="dense")},
    "off": {"policy": RoutingPolicy(reads="off")},
    "routed": {},
}


@torch.no_grad()
@pytest.mark.parametrize("t", [0, 4, LENGTH - 1])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("quality", ["predicted", "exact"])
def test_nothing_comes_from_the_future(quality, policy, t):
    block = layer(quality=quality, slots=3, convolution=3)
    x, clock = sequence(seed=t)
    options = dict(POLICIES[policy])
    if policy == "forced":
        options["forced"] = torch.randint(3, (BATCH, LENGTH), generator=torch.Generator().manual_seed(t))
    before = run(block, x, clock, **options)
    moved = x.clone()
    moved[:, t] += torch.randn(WIDTH, generator=torch.Generator().manual_seed(t + 1), dtype=x.dtype) * 3
    after = run(block, moved, clock, **options)
    assert (after.x[:, t] != before.x[:, t]).all()
    assert torch.equal(after.decision.actions[:, :t], before.decision.actions[:, :t])
    if policy == "routed":  # later actions may differ, and with them the size of a product and its last bit
        torch.testing.assert_close(after.x[:, :t], before.x[:, :t], rtol=1e-13, atol=1e-13)
    else:
        assert torch.equal(after.x[:, :t], before.x[:, :t])
        assert torch.equal(after.quality[:, :t], before.quality[:, :t])


@torch.no_grad()
@pytest.mark.parametrize("quality", ["predicted", "exact"])
@pytest.mark.parametrize("size", [1, 4])
def test_any_chunks_equal_the_whole(size, quality):
    block = layer(slots=3, convolution=3, quality=quality)
    x, clock = sequence()
    mask = torch.rand(BATCH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.8
    start = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    start[0, 7] = True
    whole = run(block, x, Timeline.build(clock.gap, mask=mask, start=start))
    state, position, time, parts = block.initial_state(BATCH), None, None, []
    for begin in range(0, LENGTH, size):
        part = slice(begin, begin + size)
        now = Timeline.build(clock.gap[:, part], mask=mask[:, part], start=start[:, part], position=position, time=time)
        out = block(x[:, part], now, state)
        state, position, time = out.state, now.position[:, -1], now.time[:, -1]
        parts.append(out.x)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole.x)
    for name, tensor in whole.state.named_tensors():
        torch.testing.assert_close(dict(state.named_tensors())[name], tensor, msg=lambda m, n=name: f"{n}: {m}")


@torch.no_grad()
def test_padding_has_no_influence():
    block = layer(convolution=3)
    x, clock = sequence(length=9)
    mask = torch.ones(BATCH, 9, dtype=torch.bool)
    mask[:, [2, 5, 6]] = False
    padded = run(block, x, Timeline.build(clock.gap, mask=mask))
    kept = mask[0].nonzero().squeeze(1)
    alone = run(block, x[:, kept], Timeline.build(clock.gap[:, kept]))
    torch.testing.assert_close(padded.x[:, kept], alone.x)
    assert (padded.x[:, ~mask[0]] == 0).all()
    assert not padded.reads[~mask].any()
    assert not padded.writes[~mask].any()
    empty = run(block, x, Timeline.build(clock.gap, mask=torch.zeros_like(mask)))
    assert (empty.x == 0).all()


def test_exact_quality_reads_every_position():
    block = layer(quality="exact", slots=None)
    x, clock = sequence()
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[1, 8:] = False
    out = run(block, x, Timeline.build(clock.gap, mask=mask), audit(0.5))
    assert torch.equal(out.reads, mask)
    assert not out.audits.any()
    assert out.reading.pairs.tolist() == [sum(range(n)) for n in (13, 8, 13)]
    assert (out.decision.actions != EPISODIC).any(), "reading is not using"
    recalled = block.semantic(block.norm_memory(x))
    for b, r in out.reading.rows.valid.nonzero().tolist():
        t = out.reading.rows.at[b, r]
        distance = (recalled[b, t] - out.reading.value[b, r]).square().sum()
        torch.testing.assert_close(out.quality[b, t], torch.exp(-distance), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(out.x[0], by_masking(block, x, clock, out.decision.actions)[0])


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("quality", ["predicted", "exact"])
def test_a_layer_without_a_buffer_never_reads(quality, training):
    block = favour(layer(buffer=False, training=training, quality=quality), EPISODIC, 9.0)
    names = [name for name, _ in block.named_parameters()]
    assert not any(word in name for name in names for word in ("episodic", "query", "key"))
    x, clock = sequence()
    for policy in (None, RoutingPolicy(reads="dense"), audit(1.0)):
        out = run(block, x, clock, policy)
        assert (out.decision.actions != EPISODIC).all()
        assert not out.reads.any()
        assert not out.audits.any()
        assert not out.writes.any()
        assert out.reading is None
        assert out.state.episodic is None
    assert set(out.losses) == ({"uncertainty"} if training else set())


@pytest.mark.parametrize("quality", ["predicted", "exact"])
def test_a_layer_without_semantic_memory_reads_or_does_not(quality):
    block = layer(rank=0, training=True, quality=quality)
    x, clock = sequence()
    out = run(block, x, clock)
    assert set(out.decision.actions.unique().tolist()) == {NONE, EPISODIC}
    assert torch.equal(out.reads, out.decision.actions == EPISODIC)
    assert set(out.losses) == {"uncertainty", "priority", "reads", "recall"}
    assert out.losses["recall"] == 0
    forced = torch.full(clock.mask.shape, SEMANTIC)
    assert (run(block, x, clock, forced=forced).decision.actions == NONE).all()
    assert not any("semantic" in name or "quality" in name for name, _ in block.named_parameters())


@torch.no_grad()
def test_a_state_that_is_not_wanted_is_not_made():
    x, clock = sequence()
    block = layer()
    short = run(block, x, clock, keep_state=False)
    assert short.state is None
    assert torch.equal(short.x, run(block, x, clock).x)


def test_losses_are_for_training_and_each_teaches_its_own_part():
    x, clock = sequence()
    assert run(layer(), x, clock).losses == {}
    block = layer(training=True)
    losses = run(block, x, clock, audit(0.5)).losses
    moved = {}
    for name, loss in losses.items():
        block.zero_grad()
        loss.backward(retain_graph=True)
        moved[name] = {n for n, p in block.named_parameters() if p.grad is not None and (p.grad != 0).any()}

    def of(part: str) -> set[str]:
        return {n for n, _ in block.named_parameters() if n.startswith(part)}

    assert set(losses) == {"consolidation", "quality", "uncertainty", "priority", "reads", "recall"}
    assert moved["consolidation"] == of("semantic")
    assert moved["quality"] == of("quality")
    assert moved["uncertainty"] == of("predictor")
    assert moved["priority"] >= of("episodic.priority")
    assert moved["priority"] & of("episodic") == of("episodic.priority")
    for name in ("reads", "recall"):
        assert moved[name] >= of("router")
        assert not moved[name] & (of("episodic") | of("semantic") | of("quality") | of("predictor"))


def test_training_without_a_single_read():
    x, clock = sequence()
    block = layer(training=True)
    losses = run(block, x, clock, forced=torch.zeros(BATCH, LENGTH, dtype=torch.int64)).losses
    assert losses["consolidation"] == 0
    assert losses["quality"] == 0
    sum(losses.values()).backward()
    assert all(p.grad.isfinite().all() for p in block.parameters() if p.grad is not None)
    assert block.quality.reads.seen == 0


def test_uncertainty_is_how_badly_the_last_position_foresaw_this_one():
    block = layer(training=True)
    x, clock = sequence()
    out = run(block, x, clock)
    u = block.norm_memory(x)
    _, h, _ = block.working(u, clock, torch.zeros(BATCH, WIDTH, dtype=x.dtype))
    foreseen = torch.cat([torch.zeros(BATCH, 1, WIDTH), block.predictor(h)[:, :-1]], dim=1)
    torch.testing.assert_close(out.losses["uncertainty"], (u - foreseen).square().mean())


@pytest.mark.parametrize("convolution", [1, 3])
def test_the_layer_is_the_same_in_both_forms_of_its_operations(convolution):
    x, clock = sequence()
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[2, 9:] = False
    clock = Timeline.build(clock.gap, mask=mask)
    results = []
    for form in ("fast", "reference"):
        block = layer(training=True, convolution=convolution)
        with torchcram.ops.use(form):
            out = run(block, x, clock, audit(0.3))
            (out.x.square().mean() + sum(out.losses.values())).backward()
        results.append([out.x, *out.losses.values(), *(p.grad for p in block.parameters())])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-9)


def test_what_stands_at_padding_is_never_looked_at():
    block = layer(convolution=3)
    x, clock = sequence(length=9)
    mask = torch.ones(BATCH, 9, dtype=torch.bool)
    mask[:, [2, 5, 6]] = False
    timeline = Timeline.build(clock.gap, mask=mask)
    poisoned = run(block, x.masked_fill(~mask.unsqueeze(-1), torch.nan), timeline)
    assert torch.equal(poisoned.x, run(block, x, timeline).x)


@pytest.mark.parametrize("policy", [RoutingPolicy(reads="dense", skip=0.2), RoutingPolicy(audit=0.5)], ids=str)
def test_training_under_autocast(policy):
    block = layer(convolution=3).float().train()
    x, clock = sequence(length=9)
    x = x.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = block(x, Timeline.build(clock.gap.float()), block.initial_state(BATCH), policy)
        loss = out.x.square().mean() + sum(out.losses.values())
    loss.backward()
    assert all(p.grad.isfinite().all() for p in block.parameters() if p.grad is not None)
    assert x.grad.isfinite().all()


@torch.no_grad()
def test_chunks_of_a_layer_alone():
    """As the documents show it: each chunk's timeline comes after the one before."""
    block = layer(slots=3)
    x, clock = sequence(length=12)
    whole = run(block, x, clock)
    state, timeline, outs = None, None, []
    for part in (slice(0, 5), slice(5, 6), slice(6, 12)):
        timeline = Timeline.build(clock.gap[:, part], after=timeline)
        out = block.eval()(x[:, part], timeline, state)
        state = out.state
        outs.append(out.x)
    torch.testing.assert_close(torch.cat(outs, dim=1), whole.x)


def test_a_layer_says_what_shape_it_expects():
    x, clock = sequence(length=9)
    with pytest.raises(ValueError, match=r"x has shape .* expected .* as the timeline is"):
        layer()(x[:, :-1], clock)
    with pytest.raises(ValueError, match=r"x has shape"):
        layer()(x[..., :-1], clock)


@torch.no_grad()
def test_keeping_all_is_a_buffer_without_bounds():
    x, clock = sequence()
    dense = RoutingPolicy(reads="dense", keep_all=True)
    found = run(layer(slots=2), x, clock, dense, keep_state=False)
    assert torch.equal(found.x, run(layer(slots=None), x, clock, RoutingPolicy(reads="dense")).x)
    assert not torch.equal(found.x, run(layer(slots=2), x, clock, RoutingPolicy(reads="dense")).x)
    with pytest.raises(ValueError, match="keep_state=False"):
        run(layer(slots=2), x, clock, dense)


@pytest.mark.parametrize("rule", ["choice", "worth"])
def test_the_router_sees_what_the_convolution_makes_of_a_token(rule):
    """The scalars are blinded, so that the token is all that is left to tell positions apart by."""
    x, clock = sequence()
    x[:, 5] = x[:, 9]  # the same token after different ones
    clock = Timeline.build(torch.ones_like(clock.gap))
    for convolution in (1, 2):
        block = layer(convolution=convolution, rule=rule, sharpness=0.0)
        heads = [block.router.hidden, *([block.router.worth.hidden] if rule == "worth" else [])]
        for head in heads:
            head.weight.data[:, : head.in_features - WIDTH] = 0
        seen: list[Tensor] = []
        for module in (block.router, *([block.router.worth] if rule == "worth" else [])):
            module.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out))
        run(block, x, clock)
        for out in seen:
            assert torch.allclose(out[:, 5], out[:, 9]) == (convolution == 1)
