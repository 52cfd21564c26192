"""The mixer in a stack and a loop like zoology's, which tell it nothing."""

import ast
import copy
import functools
import importlib
import io
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from torchcram import tasks
from torchcram.config import BlockConfig, EpisodicConfig, RouterConfig, SemanticConfig, WorkingConfig
from torchcram.consolidation import Phase
from torchcram.integrations.zoology import CramMixer
from torchcram.memory import Block, RoutingPolicy, Timeline

WIDTH, VOCABULARY = 32, 32
QUICK = {"ramp": 40, "check_every": 10, "patience": 2}
TASK = tasks.make("mqar", length=24, pairs=4, vocabulary=VOCABULARY)


class Layer(nn.Module):
    """Adds the mixer's output to the residual stream itself; nothing between mixers but norms."""

    def __init__(self, number: int, settings: dict) -> None:
        super().__init__()
        self.sequence_mixer = CramMixer(d_model=WIDTH, layer_idx=number, **settings)
        self.norm_mixer, self.norm_state = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.sequence_mixer(self.norm_mixer(x))
        return x + self.norm_state(x)


class Model(nn.Module):
    """Token embeddings, layers, and a head with the weights of the embeddings, initialised when all is there."""

    def __init__(self, layers: int = 2, *, seed: int = 0, **settings) -> None:
        super().__init__()
        torch.manual_seed(seed)
        settings = {"consolidation": QUICK, **settings}
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(Layer(number, settings) for number in range(layers)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.apply(begin_anew)
        self.head.weight = self.embedding.weight

    @property
    def mixers(self) -> list[CramMixer]:
        return [layer.sequence_mixer for layer in self.layers]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.embedding(tokens))))


def begin_anew(module: nn.Module) -> None:
    """By kind of module, and for what writes to the residual stream by name."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    for name, weight in module.named_parameters():
        if any(ending in name for ending in ("out_proj.weight", "fc2.weight", "output_linear.0.weight")):
            nn.init.normal_(weight, std=0.01)


def batch(step: int, rows: int = 32) -> tuple[Tensor, Tensor]:
    """Keys and values, then questions among blanks."""
    examples = TASK.batch(seed=0, step=step, rows=range(rows))
    blank = examples.kind == TASK.kinds.index("filler")
    return examples.inputs["token"].masked_fill(blank, 0), examples.targets["token"]


def optimizer_of(model: Model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def train(model: Model, optimizer: torch.optim.Optimizer, steps: range) -> Iterator[float]:
    """A loop that knows of mixers only that they may have losses of their own."""
    model.train()
    for step in steps:
        tokens, targets = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        own: list[Tensor] = []
        model.apply(lambda m, own=own: own.append(m.get_auxiliary_loss()) if hasattr(m, "get_auxiliary_loss") else None)
        assert len(own) == len(model.mixers)
        (loss + sum(own)).backward()
        optimizer.step()
        yield loss.item()


@torch.no_grad()
def accuracy(model: Model) -> float:
    model.eval()
    tokens, targets = batch(10**6, rows=128)
    asked = targets >= 0
    return (model(tokens).argmax(-1) == targets)[asked].double().mean().item()


@functools.cache
@torch.enable_grad()
def trained() -> tuple[Model, torch.optim.Optimizer, int]:
    """A model that has released its reads; not to be changed."""
    model = Model()
    optimizer = optimizer_of(model)
    steps = 450  # long enough after the release at 90 for reads to have settled
    for _ in train(model, optimizer, range(steps)):
        pass
    return model, optimizer, steps


def tokens_of(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def test_it_learns_to_recall_and_then_to_read_less():
    model, _, steps = trained()
    lowest, highest = model.mixers
    assert lowest.phase is Phase.CONSOLIDATE
    assert 20 < lowest.consolidator.released_at < 150
    assert lowest.consolidator.steps == steps
    assert accuracy(model) >= 0.98
    reading = torch.stack([mixer._reads for mixer in model.mixers])
    # Bound or asked for, a key looks the same: 8 of 24 positions at least.
    assert 0.3 < reading.any(0).double().mean().item() < 0.5
    assert (lowest.reads + highest.reads) / 2 < 0.25


def test_nothing_is_released_before_anything_is_recalled():
    model = Model()
    for _ in train(model, torch.optim.AdamW(model.parameters(), lr=1e-5), range(45)):
        pass
    assert accuracy(model) < 0.5
    assert all(mixer.phase is Phase.ACQUIRE and mixer.reads == 1 for mixer in model.mixers)


def test_a_fresh_mixer_reads_densely_and_returns_what_it_adds():
    torch.manual_seed(0)
    mixer = CramMixer(16, heads=2, slots=3, rank=4).eval()
    torch.manual_seed(0)
    block = Block(
        block=BlockConfig(width=16, expansion=0),
        working=WorkingConfig(),
        episodic=EpisodicConfig(slots=3, heads=2, convolution=2),
        semantic=SemanticConfig(rank=4),
        router=RouterConfig(rule="worth"),
    ).eval()
    x = tokens_of(2, 9, 16)
    clock = Timeline.build(torch.ones(2, 9))
    with torch.no_grad():
        # From all that was written, however few slots there will be.
        policy = RoutingPolicy(reads="dense", keep_all=True)
        expected = block(x, clock, policy=policy, keep_state=False).x - x
        torch.testing.assert_close(mixer(x), expected)
        assert mixer.reads == 1
        assert torch.equal(mixer(x, dt=torch.ones(2, 9)), mixer(x))
        assert not torch.allclose(mixer(x, dt=torch.full((2, 9), 5.0)), mixer(x), atol=1e-3)


def test_gradients_reach_tokens_and_weights():
    model = copy.deepcopy(trained()[0]).train()
    tokens, targets = batch(0)
    x = tokens_of(4, 24, WIDTH).requires_grad_()
    out = model.mixers[0](x)
    assert out.shape == x.shape
    out.square().mean().backward()
    assert x.grad.abs().sum() > 0
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    (loss + sum(mixer.get_auxiliary_loss() for mixer in model.mixers)).backward()
    idle = {name for name, p in model.mixers[0].block.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle == {"router.worth.on_hit"}, "of an index, which there is not"


def test_the_auxiliary_loss_is_that_of_the_last_training_forward():
    mixer, x = CramMixer(16, rank=4), tokens_of(2, 9, 16)
    assert mixer.get_auxiliary_loss().item() == 0
    mixer(x)
    loss = mixer.get_auxiliary_loss()
    assert loss.shape == ()
    assert loss.item() > 0
    loss.backward()
    assert mixer.block.semantic.up.weight.grad.abs().sum() > 0
    for other in ("evaluation", "no gradients"):
        mixer(x)
        assert mixer.get_auxiliary_loss().item() > 0
        mixer.train(other == "no gradients")
        with torch.set_grad_enabled(other == "evaluation"):
            mixer(x)
        assert mixer.get_auxiliary_loss().item() == 0, other
        mixer.train()
    assert mixer.consolidator.steps == 3, "training forwards are counted, no others"


def test_a_stack_that_begins_anew_leaves_its_weights_alone():
    torch.manual_seed(3)
    mixer = CramMixer(16, 1, rank=4)
    before = {name: p.clone() for name, p in mixer.named_parameters()}
    stack = nn.Sequential(nn.Linear(16, 16), mixer, nn.Linear(16, 16))
    kept = stack[0].weight.clone()
    stack.apply(begin_anew)
    assert not torch.equal(stack[0].weight, kept)
    for name, p in mixer.named_parameters():
        assert torch.equal(p, before[name]), name
    assert torch.equal(mixer.block.episodic.query.weight, mixer.block.episodic.key.weight)


def test_settings_are_plain_data():
    settings = {
        "heads": 4,
        "slots": None,
        "rank": 0,
        "convolution": 1,
        "trained_length": 64,
        "price": 0.1,
        "tolerance": 0.1,
        "consolidation": {"ramp": 5},
    }
    mixer = CramMixer(d_model=16, layer_idx=2, **json.loads(json.dumps(settings)))
    assert mixer(tokens_of(2, 9, 16)).shape == (2, 9, 16)
    assert (mixer.consolidator.config.ramp, mixer.consolidator.config.price) == (5, 0.1)


def test_the_documents_example_is_accepted():
    text = (Path(__file__).parent.parent.parent / "docs" / "usage.md").read_text()
    name, settings = re.search(r'name="(torchcram[^"]*)",\s*kwargs=(\{.*?\})', text, re.DOTALL).groups()
    module, _, kind = name.rpartition(".")
    mixer = getattr(importlib.import_module(module), kind)
    assert mixer(d_model=64, layer_idx=1, **ast.literal_eval(settings)).layer_idx == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "heads = 3 is not possible; allowed: a divisor of d_model = 16"),
        ({"heads": 0}, "episodic.heads = 0"),
        ({"consolidation": {"signal": "quality"}}, "consolidation.signal = 'quality'"),
        ({"consolidation": {"rump": 5}}, "ConsolidationConfig has no field 'rump'"),
    ],
)
def test_settings_that_make_no_sense_are_told(settings, message):
    with pytest.raises(ValueError, match=message):
        CramMixer(16, 0, **settings)


def test_tokens_of_another_width_are_told():
    for shape in ((9, 16), (2, 9, 8)):
        with pytest.raises(ValueError, match=r"expected \[B, L, 16\]"):
            CramMixer(16)(torch.zeros(*shape))


@pytest.mark.parametrize(
    ("dt", "message"),
    [
        (torch.ones(9), r"dt has shape \(9,\); expected \(2, 9\)"),
        (torch.ones(2, 5), r"dt has shape \(2, 5\); expected \(2, 9\)"),
        (-torch.ones(2, 9), "dt has a gap of -1; expected none below 0"),
    ],
)
def test_gaps_of_another_shape_or_below_zero_are_told(dt, message):
    with pytest.raises(ValueError, match=message):
        CramMixer(16)(torch.zeros(2, 9, 16), dt)


def test_mixers_of_one_model_must_agree_on_their_settings():
    lower, upper = CramMixer(WIDTH, 0, price=0.2), CramMixer(WIDTH, 1, price=0.9)
    with pytest.raises(ValueError, match="layer 1 has other settings of consolidation"):
        upper(lower(tokens_of(2, 9, WIDTH)))


@torch.no_grad()
@pytest.mark.parametrize("released", [False, True])
def test_the_future_does_not_change_the_past(released):
    model = (trained()[0] if released else Model()).eval()
    tokens, _ = batch(5)
    other = tokens.clone()
    other[:, 15:] = tokens[:, 15:].flip(1)
    assert not torch.equal(tokens, other)
    now, then = model(tokens), model(other)
    torch.testing.assert_close(now[:, :15], then[:, :15])
    assert not torch.allclose(now[:, 15:], then[:, 15:])


def test_saved_and_loaded_training_goes_on_as_it_would_have():
    """Phase, counts, price and what trials have told included; also through a file that is not trusted."""
    model, optimizer, steps = trained()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = Model(seed=1)
    again.load_state_dict(saved["model"])
    assert [mixer.phase for mixer in again.mixers] == [Phase.CONSOLIDATE] * 2
    assert again.mixers[1].consolidator.price == model.mixers[1].consolidator.price > 0
    assert accuracy(again) == accuracy(model)
    assert [mixer.reads for mixer in again.mixers] == [mixer.reads for mixer in model.mixers]
    torch.manual_seed(0)
    other = optimizer_of(again)
    other.load_state_dict(saved["optimizer"])
    uninterrupted = copy.deepcopy(model)
    going_on = optimizer_of(uninterrupted)
    going_on.load_state_dict(optimizer.state_dict())
    following = range(steps, steps + 12)
    assert list(train(again, other, following)) == list(train(uninterrupted, going_on, following))
    state = uninterrupted.mixers[0].consolidator.state_dict()
    assert again.mixers[1].consolidator.state_dict() == state
    assert len(state["controller"]["excesses"]) == 3


def test_layers_of_one_model_share_their_phase_and_no_others_do():
    one, two = Model(layers=3), Model(layers=2)
    alone = CramMixer(WIDTH, layer_idx=1)
    for model in (one, two):
        for _ in train(model, optimizer_of(model), range(2)):
            pass
    alone(tokens_of(2, 9, WIDTH))
    shared = {id(mixer.consolidator) for mixer in one.mixers}
    assert len(shared) == 1
    assert len({id(mixer.consolidator) for mixer in two.mixers}) == 1
    assert len(shared | {id(two.mixers[0].consolidator), id(alone.consolidator)}) == 3
    assert [model.mixers[-1].consolidator.steps for model in (one, two)] == [2, 2]
    assert alone.consolidator.steps == 1


def test_a_token_skips_in_all_layers_at_once_while_all_read():
    model = Model(layers=2).train()
    model(batch(0)[0])
    first, second = (mixer._reads for mixer in model.mixers)
    assert torch.equal(first, second)
    assert 0.8 < first.double().mean() < 0.95
    model = copy.deepcopy(trained()[0]).train()
    audited: list[Tensor] = []
    for mixer in model.mixers:
        mixer.block.register_forward_hook(lambda _module, _inputs, out: audited.append(out.audits))
    model(batch(0)[0])
    assert audited[0].sum() > 4
    assert (audited[0] & audited[1]).sum() < audited[0].sum() / 2, "later by chance alone"


def test_copies_in_the_midst_of_training():
    model, _, _ = trained()
    model.train()
    model(batch(0)[0])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert other.mixers[0].consolidator is other.mixers[1].consolidator
        assert other.mixers[0].consolidator is not model.mixers[0].consolidator
        assert accuracy(other) == accuracy(model)


@pytest.mark.parametrize("released", [False, True])
def test_matrix_products_in_bfloat16(released):
    model = copy.deepcopy(trained()[0] if released else Model()).train()
    tokens, targets = batch(3)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss = loss + sum(mixer.get_auxiliary_loss() for mixer in model.mixers)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@torch.no_grad()
@pytest.mark.parametrize("length", [3, 20])
def test_state_size_is_in_numbers_of_four_bytes(length):
    mixer = CramMixer(16, slots=8, rank=4)
    out = mixer.block.eval()(tokens_of(1, length, 16), Timeline.build(torch.ones(1, length)))
    assert 0 <= 4 * mixer.state_size(sequence_length=length) - out.state.nbytes < 4
    assert mixer.state_size(sequence_length=100) == mixer.state_size(sequence_length=8)
