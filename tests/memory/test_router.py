"""The router: how quality moves the logits, and how logits become actions."""

import pytest
import torch
from torch import Tensor, nn

from torchcram.config import RouterConfig
from torchcram.draws import Draws
from torchcram.memory import EPISODIC, NONE, SEMANTIC, Guidance, Router, RoutingPolicy
from torchcram.memory.contradiction import Consulted
from torchcram.memory.state import IndexState
from torchcram.ops import About, compact

WIDTH = 4


def router(**config) -> Router:
    torch.manual_seed(0)
    return Router(WIDTH, RouterConfig(**config))


def of(r: Router, u: Tensor, *scalars: Tensor) -> Tensor:
    return r(None if r.of_token is None else r.of_token(u), About(*scalars))


def features(quality: float | Tensor, length: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    u, *scalars = (torch.rand(2, length, *more, generator=generator) for more in ((WIDTH,), (), (), ()))
    gap, norm, uncertainty = scalars
    return [u, gap, norm, torch.full((2, length), 1.0) * quality, uncertainty]


def deaf(r: Router) -> Router:
    """A router whose network says nothing, so that only the consolidation term is left."""
    nn.init.zeros_(r.out.weight)
    nn.init.zeros_(r.out.bias)
    return r


def decide(r: Router, logits: Tensor, policy: RoutingPolicy | None = None, **options):
    defaults = {"mask": torch.ones(logits.shape[:2], dtype=torch.bool), "forced": None, "able": (True, True, True)}
    return r.decide(logits, policy=policy or RoutingPolicy(), **{**defaults, **options})


def test_quality_above_the_threshold_moves_reads_to_recalls():
    r = deaf(router(sharpness=8.0, threshold=0.7))
    torch.testing.assert_close(of(r, *features(0.7)), torch.zeros(2, 6, 3))
    torch.testing.assert_close(of(r, *features(0.9)), torch.tensor([0.0, -1.6, 1.6]).expand(2, 6, 3))
    torch.testing.assert_close(of(r, *features(0.2)), torch.tensor([0.0, 4.0, -4.0]).expand(2, 6, 3))


@pytest.mark.parametrize("raw", [-200.0, -3.0, 0.0, 5.0])
def test_sharpness_never_becomes_negative(raw):
    r = deaf(router())
    nn.init.constant_(r.sharpness, raw)
    lead = of(r, *features(1.0))
    assert (lead[..., SEMANTIC] >= 0).all()
    assert (lead[..., EPISODIC] <= 0).all()


def test_sharpness_is_learned():
    r = router()
    of(r, *features(0.9))[..., SEMANTIC].sum().backward()
    assert r.sharpness.grad is not None
    assert r.sharpness.grad > 0


def test_zero_sharpness_removes_the_term():
    r = deaf(router(sharpness=0.0))
    assert (of(r, *features(0.9)) == 0).all()
    assert not r.sharpness.requires_grad
    high, low = (of(router(sharpness=0.0), *features(quality)) for quality in (0.9, 0.1))
    assert (high != low).any(), "q is still seen"


def test_an_uninformed_router_does_not_hear_of_quality():
    r = router(informed=False)
    torch.testing.assert_close(of(r, *features(0.1)), of(r, *features(0.9)))
    assert not r.sharpness.requires_grad
    told = router()
    assert not torch.allclose(of(told, *features(0.1)), of(told, *features(0.9)))
    with pytest.raises(ValueError, match=r"router\.informed = 0 is not possible"):
        RouterConfig(informed=0)


def test_scalar_features_leave_the_token_out():
    for name, sees in (("input", True), ("scalars", False)):
        r = router(features=name)
        u, *scalars = features(0.5)
        assert torch.equal(of(r, u + 1, *scalars), of(r, u, *scalars)) != sees


def test_each_scalar_is_seen():
    r = router(features="scalars", sharpness=0.0)
    arguments = features(0.5)
    before = of(r, *arguments)
    for n in range(1, 5):
        moved = [x + 1 if i == n else x for i, x in enumerate(arguments)]
        assert (of(r, *moved) != before).any(), f"feature {n}"


def test_without_a_buffer_there_is_no_read():
    r = router()
    logits = torch.tensor([0.0, 50.0, 1.0]).repeat(2, 30, 1).requires_grad_()
    for training in (True, False):
        decision = decide(r.train(training), logits, RoutingPolicy(audit=1.0), able=(True, False, True))
        assert (decision.probabilities[..., EPISODIC] == 0).all()
        assert (decision.actions != EPISODIC).all()
        assert not decision.audited.any()
        (gradient,) = torch.autograd.grad(decision.weights[..., SEMANTIC].sum(), logits)
        assert gradient.isfinite().all()


def test_evaluation_takes_the_best_and_training_samples_it():
    r = router()
    logits = torch.tensor([0.4, 0.6, 0.0]).repeat(1, 20_000, 1)
    assert (decide(r.eval(), logits).actions == EPISODIC).all()
    actions = decide(r.train(), logits, RoutingPolicy(generator=torch.Generator().manual_seed(2))).actions
    share = torch.bincount(actions.flatten(), minlength=3) / actions.numel()
    torch.testing.assert_close(share, torch.softmax(logits[0, 0], -1), atol=0.015, rtol=0)


def test_padding_gets_no_action():
    mask = torch.tensor([[True, False, True]])
    decision = decide(router().eval(), torch.tensor([0.0, 1.0, 0.0]).repeat(1, 3, 1), mask=mask)
    assert decision.actions.tolist() == [[EPISODIC, NONE, EPISODIC]]
    audited = decide(
        router().eval(), torch.tensor([1.0, 0.0, 0.0]).repeat(1, 3, 1), RoutingPolicy(audit=1.0), mask=mask
    ).audited
    assert torch.equal(audited, mask)


def test_policies_for_all_tokens_at_once():
    r = router().eval()
    logits = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(3))
    assert (decide(r, logits, RoutingPolicy(reads="dense")).actions == EPISODIC).all()
    generator = torch.Generator().manual_seed(4)
    skipping = decide(r, torch.zeros(2, 5000, 3), RoutingPolicy(reads="dense", skip=0.3, generator=generator)).actions
    assert (skipping == EPISODIC).float().mean().item() == pytest.approx(0.7, abs=0.02)
    assert (skipping != SEMANTIC).all()
    off = decide(r, logits, RoutingPolicy(reads="off")).actions
    assert torch.equal(off, torch.where(logits[..., SEMANTIC] > logits[..., NONE], SEMANTIC, NONE))


def test_forced_actions_override_the_choice():
    forced = torch.randint(3, (2, 10), generator=torch.Generator().manual_seed(4), dtype=torch.int8)
    decision = decide(router().train(), torch.zeros(2, 10, 3), forced=forced)
    assert torch.equal(decision.actions, forced.long())
    assert torch.equal(decision.weights, nn.functional.one_hot(forced.long(), 3).float())


def test_audits_fall_on_the_asked_share_of_tokens_that_do_not_read():
    logits = torch.randn(1, 20_000, 3, generator=torch.Generator().manual_seed(5))
    policy = RoutingPolicy(audit=0.2, generator=torch.Generator().manual_seed(6))
    decision = decide(router().eval(), logits, policy)
    reads = decision.actions == EPISODIC
    assert not (decision.audited & reads).any()
    share = decision.audited[~reads].float().mean().item()
    assert share == pytest.approx(0.2, abs=0.015)


def counted(rows: range, step: int = 0, **policy) -> RoutingPolicy:
    return RoutingPolicy(draws=Draws(seed=0, step=step, rows=torch.arange(rows.start, rows.stop)), **policy)


def test_counted_noise_is_that_of_its_row_and_layer():
    whole = torch.stack(counted(range(6)).noise(6, 500, 3))
    assert torch.equal(torch.stack(counted(range(2, 5)).noise(3, 500, 3)), whole[:, 2:5])
    assert not torch.equal(torch.stack(counted(range(6), step=1).noise(6, 500, 3)), whole)
    tables = [*whole.unbind(0), counted(range(6)).draws.uniform(0, 2500).view(6, 500, 5)]  # the last one: a task's
    apart = torch.stack([column.flatten() for table in tables for column in table.unbind(-1)])
    correlation = torch.corrcoef(apart) - torch.eye(len(apart))
    assert correlation.abs().max() < 5 / apart.shape[1] ** 0.5
    assert RoutingPolicy().noise(6, 500, 3) == (None, None, None)


def test_counted_noise_samples_audits_and_skips_the_asked_shares():
    logits = torch.tensor([0.4, 0.6, 0.0]).repeat(4, 5000, 1)
    policy = counted(range(4), audit=0.2)
    decision = decide(router().train(), logits, policy, noise=policy.noise(4, 5000)[0])
    share = torch.bincount(decision.actions.flatten(), minlength=3) / decision.actions.numel()
    torch.testing.assert_close(share, torch.softmax(logits[0, 0], -1), atol=0.015, rtol=0)
    skipping = decision.actions != EPISODIC
    assert decision.audited[skipping].float().mean().item() == pytest.approx(0.2, abs=0.015)
    dense = counted(range(4), reads="dense", skip=0.3, audit=0.2)
    decision = decide(router().eval(), logits, dense, noise=dense.noise(4, 5000)[0])
    skipping = decision.actions == NONE
    assert skipping.float().mean().item() == pytest.approx(0.3, abs=0.015)
    assert decision.audited[skipping].float().mean().item() == pytest.approx(0.2, abs=0.025)


def test_draws_for_another_number_of_sequences_are_refused():
    with pytest.raises(ValueError, match=r"policy.draws is for 3 sequences, the input has 2"):
        counted(range(3)).noise(2, 10)


@pytest.mark.parametrize(
    ("field", "value"), [("reads", "some"), ("temperature", 0.0), ("audit", -0.1), ("audit", 1.5), ("skip", 2.0)]
)
def test_an_impossible_policy_is_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} = .*allowed"):
        RoutingPolicy(**{field: value})


def test_of_some_reads_a_random_part_is_used():
    """Of all that are audited, and of a share of the others; the rest is what the token would have done without."""
    router = Router(4, RouterConfig()).eval()
    logits = torch.tensor([0.0, 9.0, 3.0]).expand(2, 4000, 3).clone()
    logits[1] = torch.tensor([9.0, 0.0, 3.0])
    mask = torch.ones(2, 4000, dtype=torch.bool)
    policy = RoutingPolicy(trial=0.3, audit=0.2, generator=torch.Generator().manual_seed(0))
    found = router.decide(logits, mask, policy, None, (True, True, True))
    assert (found.actions[0] == EPISODIC).all()
    assert (found.actions[1] == NONE).all()
    assert found.tried[0].float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(found.tried[1], found.audited[1])
    assert found.audited[1].float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert (found.instead[0] == SEMANTIC).all()
    assert (found.instead[1] == NONE).all()
    part = found.weights[..., EPISODIC]
    for row, other in ((0, SEMANTIC), (1, NONE)):
        tried = found.tried[row]
        torch.testing.assert_close(found.weights[row, tried].sum(-1), torch.ones(int(tried.sum())))
        torch.testing.assert_close(found.weights[row, tried, other], 1 - part[row, tried])
        assert part[row, tried].mean().item() == pytest.approx(0.5, abs=0.05)
        assert part[row, tried].std().item() == pytest.approx(12**-0.5, abs=0.03)
    assert set(found.weights[~found.tried].flatten().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("reads", ["dense", "routed"])
def test_in_training_a_read_on_trial_stands_against_what_was_sampled(reads):
    """Or what the router would rather do, where it has sampled the read itself."""
    router = Router(4, RouterConfig())
    logits = torch.tensor([0.1, 0.0 if reads == "dense" else 9.0, 0.0]).expand(1, 4000, 3)
    policy = RoutingPolicy(reads=reads, trial=1.0, generator=torch.Generator().manual_seed(0))
    found = router.decide(logits, torch.ones(1, 4000, dtype=torch.bool), policy, None, (True, True, True))
    tried = found.instead[found.tried]
    assert len(tried) > 3900
    recalls = (tried == SEMANTIC).float().mean().item()
    assert recalls == pytest.approx(0.32 if reads == "dense" else 0.0, abs=0.03)
    assert not (tried == EPISODIC).any()


def guided(hits: torch.Tensor) -> Guidance:
    """By an index that only says who asks for what it holds."""
    nobody, nothing = torch.zeros_like(hits), torch.zeros(1, 0)
    state = IndexState(code=nothing, position=nothing.long(), dead=nothing.bool())
    consulted = Consulted(
        torch.where(hits, 0, -1), torch.where(hits, 0, -1), nobody, nobody, nobody, nobody, torch.zeros(1), state
    )
    return Guidance(consulted, hits, None, nobody, nobody, 1.0, compact(nobody))


def test_tokens_that_ask_for_what_memory_gets_wrong_are_routed_alike():
    router = Router(4, RouterConfig(), guided=True).eval()
    logits = torch.randn(1, 50, 3, generator=torch.Generator().manual_seed(1))
    hits = torch.ones(1, 50, dtype=torch.bool)
    mask = torch.ones(1, 50, dtype=torch.bool)
    fresh = router.decide(logits, mask, RoutingPolicy(), None, (True, True, True), None, guided(hits))
    torch.testing.assert_close(fresh.probabilities[0, 0], torch.tensor([0.0, 2.0, -torch.inf]).softmax(-1))
    hits = torch.arange(50).unsqueeze(0) % 2 == 0
    for on_hit, action in ((0.1, EPISODIC), (-0.1, NONE)):
        router.on_hit.data.fill_(on_hit)
        found = router.decide(logits, mask, RoutingPolicy(), None, (True, True, True), None, guided(hits))
        assert (found.actions[hits] == action).all(), "and none of them recalls"
        assert torch.equal(found.actions[~hits], logits.argmax(-1)[~hits])


def test_reads_must_be_worth_their_price():
    router = Router(4, RouterConfig(rule="worth"))
    logits = torch.tensor([0.0, 9.0, 1.0]).expand(1, 5, 3)
    worth = torch.tensor([[0.0, 0.1, 0.2, 0.3, 0.4]])
    mask = torch.tensor([[True, True, True, True, False]])

    def actions(policy: RoutingPolicy) -> list[int]:
        return router.decide(logits, mask, policy, None, (True, True, True), worth=worth).actions[0].tolist()

    assert actions(RoutingPolicy(price=0.15))[2:] == [EPISODIC, EPISODIC, NONE]
    router.eval()
    assert actions(RoutingPolicy()) == [SEMANTIC, SEMANTIC, EPISODIC, EPISODIC, NONE], "as in training"
    assert actions(RoutingPolicy(price=0.25)) == [SEMANTIC, SEMANTIC, SEMANTIC, EPISODIC, NONE]
    assert actions(RoutingPolicy()) == [SEMANTIC, SEMANTIC, EPISODIC, EPISODIC, NONE], "asked once, not for good"
    assert actions(RoutingPolicy(reads="off")) == [SEMANTIC] * 4 + [NONE]
    assert actions(RoutingPolicy(reads="dense")) == [EPISODIC] * 4 + [NONE]
    again = Router(4, RouterConfig(rule="worth")).eval()
    again.load_state_dict(router.state_dict())
    assert again.price.item() == pytest.approx(0.15)
