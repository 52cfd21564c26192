"""A step of a layer in kernels against the layer itself: what it returns, and every tensor of the state.

With `TRITON_INTERPRET=1`, Triton and NumPy < 2.4 they run on a CPU, slowly:
`pytest -m gpu -W ignore tests/ops/test_step.py`.
"""

import os

import pytest
import torch
from tests.conftest import lively_model
from tests.models.feeding import assert_same_state
from torch import Tensor

from torchcram import Cram
from torchcram.memory import BlockState, RoutingPolicy, Timeline
from torchcram.memory.fused import FusedLayer
from torchcram.models import Decoder
from torchcram.ops import use

pytestmark = pytest.mark.gpu
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
NARROW = [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]  # the interpreter gets others wrong
STEPS = 14


def make(changes: dict | None = None, seed: int = 2) -> Cram:
    """A model whose layers suit, and whose tokens differ in what they do."""
    size = {"contradiction.rank": 0, "layers": 1, "episodic.slots": 4}
    return lively_model(size | (changes or {}), seed=seed).to(DEVICE)


def begin(model: Cram, batch: int) -> BlockState:
    """The state before anything was seen, with all slots."""
    return Decoder(model, batch=batch)._roomy(model.initial_state(batch), whole=True).layers[0]


def copies(state: BlockState) -> BlockState:
    return state.map(lambda x: x.clone())


def compare(found: BlockState, expected: BlockState) -> None:
    for (name, mine), (_, theirs) in zip(found.named_tensors(), expected.named_tensors(), strict=True):
        if mine.is_floating_point():
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m, n=name: n + m)
        else:
            assert torch.equal(mine, theirs), name


CASES = {
    "plain": (3, {}),
    "one sequence": (1, {}),
    "many sequences": (17, {"episodic.slots": 2}),
    "in small tiles": (3, {"block.width": 48, "episodic.heads": 3, "episodic.slots": 9, "semantic.rank": 70}),
    "odd sizes in small tiles": (
        2,
        {"semantic.rank": 19, "router.hidden": 11, "block.expansion": 1.3, "episodic.slots": 1},
    ),
    "one Euler step": (2, {"working.steps": 1, "router.sharpness": 0.0}),
    "sharper further on": (3, {"episodic.trained_length": 3}),
    "a buffer that never fills in small tiles": (2, {"episodic.slots": 40}),
}


@pytest.fixture
def small_tiles(monkeypatch):
    for name, size in {"_DEPTH": 64, "_TILE": 16, "_BYTES": 1024, "_SCORES": 16}.items():
        monkeypatch.setattr(f"torchcram.ops.step.triton.{name}", size)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_step_is_what_the_layer_does(case, request):
    batch, changes = CASES[case]
    if "small" in case:
        request.getfixturevalue("small_tiles")
    model = make(changes)
    block, expected = model.blocks[0], begin(model, batch)
    found = copies(expected)
    layer = FusedLayer(block, found)
    generator = torch.Generator().manual_seed(3)
    position, time = torch.zeros(batch, dtype=torch.int64), torch.full((batch,), 1e6, dtype=torch.float64)
    position, time = position.to(DEVICE), time.to(DEVICE)
    actions: list[Tensor] = []
    admitted = 0
    for number in range(STEPS):
        x = 2 * torch.randn(batch, 1, block.working.rate.shape[0], generator=generator)
        mask = torch.rand(batch, 1, generator=generator) < 0.8
        x[~mask.squeeze(1)] = torch.nan
        dt = 3 * torch.rand(batch, 1, generator=generator)
        x, mask, dt = (each.to(DEVICE) for each in (x, mask, dt))
        timeline = Timeline.single(dt, mask if number % 3 else None, position, time)
        x = torch.where(timeline.mask.unsqueeze(-1), x.nan_to_num(), x)
        theirs = block(x, timeline, expected, RoutingPolicy(), in_place=True)
        mine = layer.step(x, timeline)
        torch.testing.assert_close(mine.x, theirs.x, rtol=1e-5, atol=1e-5)
        assert torch.equal(mine.actions, theirs.decision.actions.squeeze(1))
        assert torch.equal(mine.reads, theirs.reads.squeeze(1))
        assert torch.equal(mine.admitted, theirs.writes.squeeze(1).long())
        assert torch.equal(mine.pairs, theirs.pairs)
        compare(found, expected)
        actions.append(mine.actions[timeline.mask.squeeze(1)])
        admitted += int(mine.admitted.sum())
        position, time = timeline.position[:, -1], timeline.time[:, -1]
    every = torch.cat(actions)
    assert {*every.tolist()} == {0, 1, 2}, "all three actions"
    if "never" not in case:
        assert batch * block.episodic.config.slots < admitted < len(every), "some are kept out, some are evicted"


@torch.no_grad()
def test_who_leaves_is_who_would(small_tiles):
    """Among equals the newest; NaN and infinities; and what said nothing new."""
    model = make({"episodic.slots": 40})
    block, expected = model.blocks[0], begin(model, 6)
    episodic = expected.episodic
    generator = torch.Generator().manual_seed(3)
    episodic.position.copy_(torch.stack([torch.randperm(40, generator=generator) for _ in range(6)]))
    episodic.position[0, 3:35] = -1
    special = torch.tensor([0.0, torch.nan, -torch.inf, torch.inf, -1e30, 3.0, 3.0, 0.0])
    episodic.priority.copy_(special.repeat(5).expand(6, 40))
    for row, priority in enumerate((-100.0, 1e30, 1.0, -torch.inf, torch.nan), start=1):
        episodic.priority[row] = priority
    episodic.known[3, 2:36] = True
    found = copies(expected)
    layer = FusedLayer(block, found)
    position, time = torch.full((6,), 40, device=DEVICE), torch.full((6,), 40.0, dtype=torch.float64, device=DEVICE)
    for number in range(4):
        x = torch.randn(6, 1, 32, generator=generator).to(DEVICE)
        timeline = Timeline.single(torch.ones(6, 1, device=DEVICE), None, position + number, time + number)
        theirs = block(x, timeline, expected, in_place=True)
        mine = layer.step(x, timeline)
        assert torch.equal(mine.admitted, theirs.writes.squeeze(1).long())
        assert torch.equal(found.episodic.position, expected.episodic.position)
        torch.testing.assert_close(found.episodic.priority, expected.episodic.priority, equal_nan=True)
        assert torch.equal(found.episodic.known, expected.episodic.known)


@pytest.mark.parametrize("dtype", NARROW)
@torch.no_grad()
def test_in_narrow_numbers_a_step_is_nearly_the_layer(dtype):
    batch, limit = 20, 6e-3 if dtype == torch.float16 else 4e-2
    exact, model = (make({"episodic.slots": 9, "block.width": 64}).to(dtype) for _ in range(2))
    exact.float()
    block, expected, found = exact.blocks[0], begin(exact, batch), begin(model, batch)
    layer = FusedLayer(model.blocks[0], found)
    position, time = (
        torch.zeros(batch, dtype=torch.int64, device=DEVICE),
        torch.zeros(batch, dtype=torch.float64, device=DEVICE),
    )
    generator, same = torch.Generator().manual_seed(3), 0
    for _ in range(STEPS):
        for (_, mine), (_, theirs) in zip(found.named_tensors(), expected.named_tensors(), strict=True):
            mine.copy_(theirs)
        x = torch.randn(batch, 1, 64, generator=generator).to(DEVICE, dtype)
        timeline = Timeline.single(torch.ones(batch, 1, device=DEVICE), None, position, time)
        theirs = block(x.float(), timeline, expected, in_place=True)
        mine = layer.step(x, timeline)
        alike = mine.actions == theirs.decision.actions.squeeze(1)  # others were close to another choice
        same += int(alike.sum())
        assert (mine.x[alike] - theirs.x[alike]).norm() < limit * theirs.x[alike].norm()
        position, time = timeline.position[:, -1], timeline.time[:, -1]
    assert same > 0.8 * batch * STEPS


@torch.no_grad()
def test_a_decoder_of_kernels_gives_what_the_model_gives(events):
    model = make({"layers": 2, "episodic.slots": 8})
    tokens, dt = (x.to(DEVICE) for x in events(3, 24, seed=2))
    whole = model(tokens, dt=dt)
    assert 0 < (whole.routing == 1).double().mean() < 1, "some read, some do not"
    begun = model(tokens[:, :8], dt=dt[:, :8])
    with use("triton"):
        decoder = Decoder(model, begun.state)
    assert decoder._fused
    assert decoder._ends
    for t in range(8, 24):
        found = decoder.step(tokens[:, t], dt[:, t])
        torch.testing.assert_close(found["tokens"], whole.predictions["tokens"][:, t], rtol=1e-4, atol=1e-4)
    assert_same_state(decoder.snapshot(), whole.state, rtol=1e-4)
    assert decoder.ledger() + begun.ledger() == whole.ledger()


@torch.no_grad()
def test_a_decoder_of_kernels_leaves_sequences_where_they_are(events):
    model = make({"layers": 2})
    tokens, dt = (x.to(DEVICE) for x in events(2, 12, seed=2))
    with use("triton"):
        decoder = Decoder(model, batch=2)
    with use("fast"):
        plain = Decoder(model, batch=2)
    assert decoder._fused
    assert not plain._fused
    for t in range(12):
        mask = torch.tensor([True, t % 3 == 0], device=DEVICE)
        found, expected = (each.step(tokens[:, t], dt[:, t], mask)["tokens"] for each in (decoder, plain))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert decoder.state.position.tolist() == [12, 4]
    assert_same_state(decoder.snapshot(), plain.snapshot(), rtol=1e-4)
    assert decoder.ledger() == plain.ledger()


def test_what_there_are_no_kernels_for():
    for changes in (
        {"semantic.rank": 0},
        {"episodic.layers": []},
        {"episodic.slots": None},
        {"episodic.convolution": 3},
        {"episodic.heads": 4},
        {"router.quality": "exact"},
        {"router.rule": "worth"},
        {"router.features": "scalars"},
        {"router.informed": False},
        {"working.carry": "none"},
        {"block.expansion": 0.0},
        {"contradiction.rank": 8},
    ):
        assert not FusedLayer.suits(make(changes).blocks[0]), changes
    model = make()
    assert FusedLayer.suits(model.blocks[0])
    assert not FusedLayer.suits(make().double().blocks[0])
    layer = FusedLayer(model.blocks[0], begin(model, 2))
    with pytest.raises(ValueError, match=r"expected torch\.float32"):
        layer.step(torch.zeros(1, 1, 32, device=DEVICE), Timeline.build(torch.ones(1, 1, device=DEVICE)))
    with pytest.raises(ValueError, match="no kernels"):
        FusedLayer(make({"semantic.rank": 0}).blocks[0], begin(model, 2))
    with pytest.raises(ValueError, match="training mode"):
        FusedLayer(make().train().blocks[0], begin(model, 2))
    with pytest.raises(ValueError, match="0 slots; expected all 4"):
        FusedLayer(model.blocks[0], model.blocks[0].initial_state(2))
    with pytest.raises(ValueError, match="not contiguous"):
        FusedLayer(model.blocks[0], begin(model, 2).map(lambda x: x.repeat_interleave(2, -1)[..., ::2]))
