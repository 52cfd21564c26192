"""What a read is worth, told by one backward pass, against the loss with and without the read."""

from dataclasses import replace

import pytest
import torch

from torchcram.config import RouterConfig
from torchcram.draws import Draws
from torchcram.memory import RoutingPolicy, WorthEstimator
from torchcram.memory.utility import try_reads
from torchcram.ops import Rows, scatter_rows


@pytest.mark.parametrize("most", [5.0, 0.5])
def test_labels_are_what_the_loss_would_say(most):
    """A loss linear in x: its first-order change is its change. The loss is a mean over 7 positions."""
    generator = torch.Generator().manual_seed(0)
    slope, change = torch.randn(2, 5, 3, generator=generator), torch.randn(2, 4, 3, generator=generator)
    rows = Rows(torch.tensor([[0, 2, 4, 0], [1, 2, 3, 4]]), torch.tensor([[True, True, True, False], [True] * 4]))
    tried = torch.tensor([[True, True, False, True], [True, True, True, False]])
    audited = torch.tensor([[False, True, True, False], [True, False, False, True]])
    x = torch.randn(2, 5, 3, generator=generator).requires_grad_()
    estimate = (0.1 + torch.rand(2, 4, generator=generator)).requires_grad_()

    passed, trial, nothing = try_reads(x, estimate, rows, change, tried, audited, 7, most)
    assert nothing.item() == 0
    assert torch.equal(passed, x)
    assert torch.equal(trial.tried, tried & rows.valid)
    ((passed * slope).sum() / 7 + 0.5 * nothing).backward()

    torch.testing.assert_close(x.grad, slope / 7)
    worth = torch.zeros(2, 4)
    for b in range(2):
        for q in range(4):
            moved = x.detach().clone()
            moved[b, rows.at[b, q]] += change[b, q]
            worth[b, q] = (x.detach() * slope).sum() - (moved * slope).sum()
    torch.testing.assert_close(trial.worth, worth)
    other = estimate.detach().clone().requires_grad_()
    cost = other - worth.clamp(-most, most) * other.log()
    used, unused = trial.tried & ~audited, trial.tried & audited
    (0.5 * (cost[used].mean() + cost[unused].mean())).backward()
    torch.testing.assert_close(estimate.grad, other.grad)


def test_the_mean_over_random_parts_is_the_difference_of_the_losses():
    """However bent the way from skipping to reading is."""
    generator = torch.Generator().manual_seed(1)
    count = 20_000
    rows = Rows(torch.arange(count).unsqueeze(0), torch.ones(1, count, dtype=torch.bool))
    start, change = torch.tensor([-1.0, 0.5]), torch.tensor([3.0, 1.0])

    def loss(x):
        return (x.square().sum(-1) + 3 * torch.tanh(2 * x).sum(-1)).sum()

    part = torch.rand(1, count, 1, generator=generator)
    x = (start + part * change).requires_grad_()
    every = rows.valid
    passed, trial, _ = try_reads(x, torch.ones(1, count), rows, change.expand(1, count, 2), every, ~every, 1.0)
    loss(passed).backward()
    assert trial.worth.mean().item() == pytest.approx((loss(start) - loss(start + change)).item(), rel=0.02)


def test_unused_it_teaches_nothing():
    x, estimate = torch.randn(1, 2, 3, requires_grad=True), torch.ones(1, 1, requires_grad=True)
    rows = Rows(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool))
    passed, trial, _ = try_reads(x, estimate, rows, torch.ones(1, 1, 3), rows.valid, ~rows.valid, 1.0)
    assert trial.worth.isnan().all(), "nothing is known before the backward pass"
    passed.sum().backward()
    assert estimate.grad is None or estimate.grad.abs().sum().item() == pytest.approx(0.0)
    assert trial.worth.item() == pytest.approx(-3.0)


def test_the_estimate_finds_the_mean_of_what_it_is_told():
    """Two kinds of tokens, of which one is worth a nat now and then, the other a hundredth at most."""
    torch.manual_seed(0)
    estimator = WorthEstimator(4, RouterConfig(hidden=16))
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.005)
    kind = torch.arange(64).unsqueeze(0) % 2
    u = torch.nn.functional.one_hot(kind, 4).float()
    zeros, rows = torch.zeros(1, 64), Rows(torch.arange(64).unsqueeze(0), torch.ones(1, 64, dtype=torch.bool))
    hits = torch.arange(64).unsqueeze(0) < 16
    for _ in range(400):
        told = torch.where(kind == 0, 4.0 * (torch.rand(1, 64) < 0.25), 0.02 * torch.rand(1, 64))
        told = torch.where(hits, 0.5, told)
        estimate = estimator(u, zeros, zeros + 0.5, zeros, hits)
        x = torch.zeros(1, 64, 1, requires_grad=True)
        passed, _, nothing = try_reads(x, estimate, rows, -told.unsqueeze(-1), rows.valid, ~rows.valid, 1.0)
        optimizer.zero_grad()
        (passed.sum() + nothing).backward()
        optimizer.step()
    found = estimator(u, zeros, zeros + 0.5, zeros, hits).detach()
    assert found[~hits & (kind == 0)].mean().item() == pytest.approx(1.0, rel=0.2)
    assert found[~hits & (kind == 1)].mean().item() == pytest.approx(0.01, rel=0.5)
    assert found[hits].mean().item() == pytest.approx(0.5, rel=0.1)
    assert (found[hits] == found[hits][0]).all(), "what became of one key says nothing of another"


@pytest.mark.parametrize("counted", [False, True], ids=["generator", "draws"])
def test_read_densely_a_token_is_tried_in_all_layers_by_the_same_part(counted, lively, events):
    """A share of those that read, whatever share is skipped."""
    model = lively({"router.rule": "worth", "contradiction.rank": 0}, seed=4)
    tokens, dt = events(4, 300, seed=108)
    policy = RoutingPolicy(reads="dense", skip=0.1, trial=0.1, generator=torch.Generator().manual_seed(1))
    if counted:
        policy = replace(policy, draws=Draws(seed=1, step=0, rows=torch.arange(4)))
    decisions = [layer.decision for layer in model(tokens, dt=dt, policy=policy).layers]
    tried = decisions[0].tried
    assert tried.float().mean().item() == pytest.approx(0.09, abs=0.03)
    for other in decisions[1:]:
        assert torch.equal(other.tried, tried)
        assert torch.equal(other.weights[tried][:, 1], decisions[0].weights[tried][:, 1])


def test_an_estimate_that_went_too_high_comes_down_again():
    torch.manual_seed(0)
    estimator = WorthEstimator(4, RouterConfig(hidden=8))
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.01)
    rows, zeros = Rows(torch.arange(8).unsqueeze(0), torch.ones(1, 8, dtype=torch.bool)), torch.zeros(1, 8)
    u, hits = torch.ones(1, 8, 4), torch.arange(8).unsqueeze(0) < 4
    for told in [50.0] * 200 + [0.01] * 400:
        estimate = estimator(u, zeros, zeros + 0.5, zeros, hits)
        x = torch.zeros(1, 8, 1, requires_grad=True)
        passed, _, nothing = try_reads(x, estimate, rows, torch.full((1, 8, 1), -told), rows.valid, ~rows.valid, 1.0)
        optimizer.zero_grad()
        (passed.sum() + nothing).backward()
        optimizer.step()
    assert estimator(u, zeros, zeros + 0.5, zeros, hits).max() < 0.1


def test_half_precision_is_wide_enough():
    estimator = WorthEstimator(4, RouterConfig()).bfloat16()
    sure = torch.ones(1, 3, dtype=torch.bfloat16)
    assert estimator(torch.ones(1, 3, 4, dtype=torch.bfloat16), sure, sure, sure, None).isfinite().all()


def test_reads_are_tried_where_they_are_used(lively, events):
    """A model's own trials: they are those that its decisions name, and each is told what it was worth."""
    model = lively({"router.rule": "worth", "contradiction.rank": 0}, seed=4)
    tokens, dt = events(2, 40, seed=108)
    policy = RoutingPolicy(price=0.001, trial=0.4, audit=0.3, scored=80.0, generator=torch.Generator().manual_seed(1))
    out = model(tokens, dt=dt, policy=policy)
    out.logits.square().mean().backward()
    for layer in out.layers:
        trial = layer.trial
        assert trial.tried.any()
        assert trial.worth.isfinite()[trial.tried].all()
        assert trial.worth[trial.tried].abs().max() > 0
        where = scatter_rows(trial.tried.long(), trial.rows, 40).bool()
        assert torch.equal(where, layer.decision.tried)
