"""Baselines fed whole, in chunks, padded or packed: the same."""

import itertools
import math

import pytest
import torch

from tests.models.feeding import assert_close, assert_same_state, feed, predictions, random_sizes, routing, total
from torchcram.config import BASELINES, AttentionConfig, BaselineConfig, InputConfig, OutputConfig, TokenField
from torchcram.memory import RoutingPolicy, Timeline
from torchcram.models import Baseline, BaselineState
from torchcram.models.baselines.adaptive import Boat, _highest
from torchcram.models.baselines.lookback import Turn

LENGTH = 90
SMALL = {"attention.window": 7, "attention.slots": 5, "every": 2, "switch": 30}
CASES = {name: {} for name in BASELINES} | {
    "window of one": {"attention.window": 1},
    "boat without window": {"mixer": "boat"},
    "without convolution": {"mixer": "space", "space.convolution": 1},
    "switch without convolution": {"mixer": "switch", "switch": 30, "space.convolution": 1},
    "depth in a window": {"mixer": "depth", "attention.window": 5},
    "attention after a convolution": {"mixer": "attention", "attention.convolution": 3},
    "attention after a convolution and state spaces": {"mixer": "space", "every": 2, "attention.convolution": 3},
    "slots after a convolution": {"mixer": "attention", "attention.convolution": 2, "attention.slots": 5},
    "surely uncertain": {"mixer": "entropy", "deviations": -10.0},
}


def make(case: str, seed: int = 0) -> Baseline:
    """A model whose tokens differ in what they do."""
    changes = {**BASELINES.get(case, {}), **CASES[case]}
    changes = {name: SMALL.get(name, value) if not CASES[case] else value for name, value in changes.items()}
    config = BaselineConfig(
        mixer="attention",
        layers=3,
        inputs=InputConfig(tokens=(TokenField(name="tokens", vocabulary=16),)),
        outputs=(OutputConfig(name="tokens", kind="tokens", size=16),),
    ).override({"block.width": 16, "attention.heads": 2, "space.size": 6, "space.head": 8, **changes})
    torch.manual_seed(seed)
    model = Baseline(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= 2
        for block in model.blocks:
            if config.mixer == "boat":
                block.mixer.configure.weight *= 10
                block.mixer.configure.bias.zero_()
            if config.mixer == "depth":
                block.mixer.predictor[2].weight *= 4
            if config.mixer == "entropy" and config.deviations > 0:
                block.mixer.entropies.mean.fill_(2.4)
                block.mixer.entropies.mean_square.fill_(2.4**2)
    return model.eval()


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_any_chunking_gives_the_same(case, events):
    model = make(case)
    tokens, dt = events(2, LENGTH, seed=11)
    whole = model(tokens, dt=dt)
    for sizes in ([1] * LENGTH, random_sizes(LENGTH, seed=1), [LENGTH - 1, 1]):
        outs = feed(model, tokens, sizes, dt=dt)
        assert torch.equal(routing(outs), whole.routing)
        assert_close(predictions(outs), whole.logits, atol=2e-5)
        assert_same_state(outs[-1].state, whole.state)
        assert total(outs) == whole.ledger()


@pytest.mark.parametrize("case", [case for case in CASES if case != "surely uncertain"])
def test_tokens_do_different_things(case, events):
    """Otherwise many mistakes would not show."""
    tokens, dt = events(2, LENGTH, seed=11)
    model = make(case)
    share = model(tokens, dt=dt).routing.double().mean()
    if model.config.mixer in ("boat", "depth", "entropy", "switch"):
        assert 0.1 < share < 0.9
    elif model.config.mixer == "space":
        assert share == (1 / 3 if model.config.every else 0)
    else:
        assert share == 1


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_padding_changes_nothing(case, events):
    model = make(case)
    tokens, dt = events(2, LENGTH, seed=12)
    alone = model(tokens, dt=dt)
    wide, real = LENGTH + 20, torch.zeros(2, LENGTH + 20, dtype=torch.bool)
    for row in range(2):
        real[row, torch.randperm(wide, generator=torch.Generator().manual_seed(row))[:LENGTH].sort().values] = True
    padded, gaps = torch.full((2, wide), 7), torch.full((2, wide), 99.0)
    padded[real], gaps[real] = tokens.flatten(), dt.flatten()
    out = model(padded, dt=gaps, mask=real)
    assert_close(out.logits[real], alone.logits.flatten(0, 1), atol=2e-5)
    assert torch.equal(out.routing[real], alone.routing.flatten(0, 1))
    assert not out.routing[~real].any()
    assert_same_state(out.state, alone.state)
    assert out.ledger() == alone.ledger()


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_packed_sequences_do_not_touch(case, events):
    model = make(case)
    tokens, dt = events(1, LENGTH, seed=13)
    sizes = [30, 1, 39, 20]
    start = torch.zeros(1, LENGTH, dtype=torch.bool)
    start[0, [0, 30, 31, 70]] = True
    packed = model(tokens, dt=dt, start=start)
    alone = [model(*parts[:1], dt=parts[1]) for parts in zip(tokens.split(sizes, 1), dt.split(sizes, 1), strict=True)]
    assert_close(packed.logits, predictions(alone), atol=2e-5)
    assert torch.equal(packed.routing, routing(alone))
    assert packed.ledger() == total(alone)
    going_on = feed(model, tokens, [50, 40], dt=dt, start=start)
    assert_close(predictions(going_on), packed.logits, atol=2e-5)
    last = dict(alone[-1].state.named_tensors())
    for name, x in packed.state.named_tensors():
        if name.split(".")[-1] == "position" and x.dim() > 1:
            assert sorted(x[x >= 0].tolist()) == sorted(last[name][last[name] >= 0].tolist())


@pytest.mark.parametrize("name", BASELINES)
def test_states_can_be_saved_split_and_joined(name, events, tmp_path):
    model = make(name)
    tokens, dt = events(3, 40, seed=14)
    with torch.no_grad():
        state = model(tokens, dt=dt).state
        parts = [model(tokens[i : i + 1, : 20 + 5 * i], dt=dt[i : i + 1, : 20 + 5 * i]).state for i in range(3)]
    state.save(tmp_path / "state")
    assert_same_state(BaselineState.load(tmp_path / "state"), state)
    joined = BaselineState.join(parts)
    with torch.no_grad():
        together = model(tokens[:, :10], dt=dt[:, :10], state=joined)
        for row, part in enumerate(parts):
            each = model(tokens[row : row + 1, :10], dt=dt[row : row + 1, :10], state=part)
            assert_close(together.logits[row : row + 1], each.logits, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_all_parameters_learn(case, events):
    model = make(case).train()
    tokens, dt = events(4, LENGTH, seed=15)
    out = model(tokens, dt=dt, keep_state=False)
    assert out.state is None
    targets = tokens.roll(-1, 1).flatten()
    loss = sum(
        torch.nn.functional.cross_entropy(p["tokens"].flatten(0, 1), targets) for p in (out.predictions, *out.early)
    )
    (loss + sum(out.losses.values())).backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    unused = {f"blocks.{i}.mixer.memory.mix" for i in range(3)} if "slots" in case else set()
    assert without == unused
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("layout", ["one a row", "packed", "padded", "going on", "every token"])
def test_a_sequence_gets_its_own_share_of_attention(layout, events):
    """In training of `mod`: what else is in the row takes none of it away."""
    model = make("mod").train()
    tokens, dt = events(1, LENGTH, seed=13)
    begins = {"packed": [0, 30, 31, 70], "padded": [0, 40], "going on": [50], "every token": list(range(LENGTH))}
    start = torch.zeros(1, LENGTH, dtype=torch.bool)
    start[0, begins.get(layout, [0])] = True
    mask = torch.ones_like(start)
    mask[0, 45:60] = layout != "padded"
    where = {} if layout == "one a row" else {"start": start}
    chosen = model(tokens, dt=dt, mask=mask if layout == "padded" else None, keep_state=False, **where).routing
    edges = sorted({0, *begins.get(layout, []), LENGTH})
    for begin, end in itertools.pairwise(edges):
        expected = math.ceil(model.config.capacity * int(mask[0, begin:end].sum()))
        assert (chosen[0, begin:end].sum(0) == expected).all(), (begin, end)
    assert not chosen[~mask].any()


def test_a_share_of_attention_goes_to_the_highest_of_the_sequence():
    score = torch.tensor([[3.0, 9.0, 1.0, 8.0, 2.0, 0.0, 7.0, 5.0]])
    start = torch.tensor([[0, 0, 0, 1, 0, 0, 0, 1]]).bool()
    timeline = Timeline.build(torch.ones_like(score), start=start)
    assert _highest(score, timeline, 0.5).nonzero()[:, 1].tolist() == [0, 1, 3, 6, 7]
    mask = torch.tensor([[1, 0, 1, 1, 1, 1, 0, 1]]).bool()
    timeline = Timeline.build(torch.ones_like(score), start=start, mask=mask)
    assert _highest(score, timeline, 0.5).nonzero()[:, 1].tolist() == [0, 3, 4, 7]
    timeline = Timeline.build(torch.ones_like(score), mask=mask)
    assert _highest(score, timeline, 0.5).nonzero()[:, 1].tolist() == [0, 3, 7]


def boat() -> tuple[Boat, torch.Tensor, Timeline]:
    """A layer of `seqboat` whose average is the token itself, so that tokens meet in attention alone."""
    mixer = make("boat without window").blocks[0].mixer
    with torch.no_grad():
        mixer.rate.fill_(5.0)
    u = torch.randn(1, 40, 16, generator=torch.Generator().manual_seed(4))
    return mixer, u, Timeline.build(torch.ones(1, 40))


@torch.no_grad()
def test_tokens_that_are_not_active_neither_look_back_nor_are_looked_back_at():
    mixer, u, timeline = boat()
    before = mixer(u, timeline, mixer.initial_state(1), keep=True)
    active = before.reads[0]
    assert 5 < active.sum() < 35
    assert torch.equal(before.reads, before.writes)
    own = mixer.average(torch.nn.functional.silu(u))
    torch.testing.assert_close(before.value[0, ~active], own[0, ~active], atol=1e-5, rtol=1e-5)

    idle, busy = (~active).nonzero().flatten(), active.nonzero().flatten()
    other = u.clone()
    other[0, idle] = u[0, idle.flip(0)]  # still not active, but all of them different
    after = mixer(other, timeline, mixer.initial_state(1), keep=True)
    assert torch.equal(after.reads, before.reads)
    torch.testing.assert_close(after.value[0, busy], before.value[0, busy], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(after.value[0, idle], before.value[0, idle], atol=1e-2)

    other = u.clone()
    other[0, busy[0]] = u[0, busy[1]]
    after = mixer(other, timeline, mixer.initial_state(1), keep=True)
    assert not torch.allclose(after.value[0, busy[2:]], before.value[0, busy[2:]], atol=1e-2)
    torch.testing.assert_close(after.value[0, idle], before.value[0, idle], atol=1e-5, rtol=1e-5)
    state = before.state.cache
    assert int((state.position >= 0).sum()) == len(busy), "nor are they kept"


def test_seqboat_has_no_loss_but_the_tasks_unless_attention_costs_something(events):
    tokens, dt = events(2, LENGTH, seed=3)
    assert make("seqboat").train()(tokens, dt=dt, keep_state=False).losses == {}
    costly = make("seqboat+cost").train()
    out = costly(tokens, dt=dt, keep_state=False)
    assert list(out.losses) == ["cost"]
    assert 0 < out.losses["cost"] < costly.config.cost * costly.config.layers


def test_a_policy_with_actions_is_refused(events):
    tokens, dt = events(1, 5, seed=1)
    with pytest.raises(ValueError, match="for models with a router"):
        make("transformer")(tokens, dt=dt, policy=RoutingPolicy(actions=torch.zeros(1, 5, 3, dtype=torch.long)))


def test_rotary_angles_keep_their_precision_far_out():
    turn = Turn(AttentionConfig(), 64).to(torch.bfloat16)
    position = torch.tensor([[0, 1, 255, 256, 131_071, 1_000_000]])
    angle = position.double().unsqueeze(-1) * 10_000 ** (-torch.arange(32).double() / 32)
    x = torch.zeros(1, 6, 1, 64)
    x[..., :32] = 1
    turned = turn(x, turn.angles(position))[0, :, 0].double()
    torch.testing.assert_close(turned, torch.cat([angle.cos(), angle.sin()], -1)[0], atol=2e-3, rtol=0)
    assert turn(x.double(), turn.angles(position)).dtype == torch.float64
    still = Turn(AttentionConfig(rotary=False), 64)
    assert still(x, still.angles(position)) is x


def test_who_is_uncertain_is_told_by_what_is_asked(events):
    """Positions that are never asked do not move the bar, and their heads learn to be sure."""
    model = make("entropy").train()
    tokens, dt = events(2, LENGTH, seed=3)
    asked = torch.zeros(2, LENGTH, dtype=torch.bool)
    asked[:, ::4] = True
    out = model(tokens, dt=dt, policy=RoutingPolicy(asked=asked), keep_state=False)
    moments = model.blocks[0].mixer.entropies
    entropy = torch.distributions.Categorical(logits=out.early[0]["tokens"]).entropy()
    torch.testing.assert_close(moments.mean, entropy[asked].mean().reshape(1))
    expected = sum(
        0.1 * torch.distributions.Categorical(logits=early["tokens"]).entropy()[~asked].sum() / asked.numel()
        for early in out.early
    )
    torch.testing.assert_close(out.losses["idle"], expected)


@pytest.mark.parametrize("name", ["mamba", "transmamba"])
def test_keys_and_queries_begin_alike(name):
    mixer = make(name).blocks[0].mixer
    sizes = mixer.sizes
    if name == "mamba":
        row, channel, size = 2 * sizes[0], sizes[0], mixer.config.size
    else:
        row, channel, size = sizes[0], 0, sizes[0]
    pair, taps = mixer.inward.weight[row : row + 2 * size], mixer.taps[:, channel : channel + 2 * size]
    assert torch.equal(*pair.chunk(2))
    assert torch.equal(*taps.chunk(2, dim=1))


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_state_made_under_autocast_is_taken_back(case, events):
    model = make(case)
    tokens, dt = events(2, 30, seed=5)
    kinds = {name: x.dtype for name, x in model.initial_state(2).named_tensors()}
    cached = {name for name in kinds if name.endswith(("cache.key", "cache.value"))}
    with torch.autocast("cpu", torch.bfloat16):
        state = model(tokens[:, :10], dt=dt[:, :10]).state
        state = model(tokens[:, 10:20], dt=dt[:, 10:20], state=state).state
    found = {name: x.dtype for name, x in state.named_tensors()}
    narrow = {name for name in cached if found[name] == torch.bfloat16}
    assert found == kinds | dict.fromkeys(narrow, torch.bfloat16), "a cache is as narrow as what it is made of"
    assert narrow == cached or case != "transformer"
    state = model(tokens[:, 20:], dt=dt[:, 20:], state=state).state
    assert {name: x.dtype for name, x in state.named_tensors()} == kinds
