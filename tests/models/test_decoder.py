"""A decoder, position by position in place, gives what the model gives for the whole."""

import pytest
import torch

from tests.models.feeding import assert_same_state
from torchcram import CramConfig
from torchcram.memory import Timeline
from torchcram.models import Cram, Decoder

LENGTH = 60
CASES = {
    "plain": {},
    "a buffer that never fills": {"episodic.slots": 100},
    "one slot": {"episodic.slots": 1},
    "without semantic memory": {"semantic.rank": 0},
    "exact quality": {"router.quality": "exact"},
    "by worth": {"router.rule": "worth"},
    "after a convolution": {"episodic.convolution": 3},
    "a layer without a buffer": {"episodic.layers": [1]},
    "sharper further on": {"episodic.trained_length": 16},
}


def make(case: str = "plain", seed: int = 0, slots: int | None = None) -> Cram:
    """A model whose tokens differ in what they do."""
    config = CramConfig.preset("tiny", vocabulary=16).override(
        {"block.width": 16, "episodic.heads": 2, "episodic.slots": 8, "contradiction.rank": 0, **CASES[case]}
    )
    config = config if slots is None else config.override({"episodic.slots": slots})
    torch.manual_seed(seed)
    model = Cram(config).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter *= 2
            if name.endswith("semantic.up.weight"):
                parameter.normal_()
    return model.eval()


@pytest.mark.parametrize("prompt", [0, 1, 25])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_steps_give_what_the_whole_gives(case, prompt, events):
    model = make(case)
    tokens, dt = events(3, LENGTH, seed=2)
    dt = dt.double()
    whole = model(tokens, dt=dt)
    actions = whole.routing
    if case == "plain":
        assert 0 < (actions == 1).double().mean() < 1, "some read, some do not"
        assert 0 < whole.layers[0].writes.double().mean() < 1, "some are kept out"
    begun = model(tokens[:, :prompt], dt=dt[:, :prompt]).state if prompt else None
    decoder = Decoder(model, begun) if prompt else Decoder(model, batch=3)
    for t in range(prompt, LENGTH):
        found = decoder.step(tokens[:, t], dt[:, t])
        torch.testing.assert_close(found["tokens"], whole.predictions["tokens"][:, t])
    assert_same_state(decoder.snapshot(), whole.state, rtol=1e-9)
    total = decoder.ledger()
    if prompt:
        total = total + model(tokens[:, :prompt], dt=dt[:, :prompt]).ledger()
    assert total == whole.ledger()


@torch.no_grad()
def test_a_sequence_that_is_left_out_stays_where_it_is(events):
    model = make()
    tokens, dt = events(2, 20, seed=2)
    dt = dt.double()
    decoder, alone = Decoder(model, batch=2), Decoder(model, batch=1)
    for t in range(20):
        mask = torch.tensor([True, t % 3 == 0])
        both = decoder.step(tokens[:, t], dt[:, t], mask)["tokens"]
        one = alone.step(tokens[:1, t], dt[:1, t])["tokens"]
        torch.testing.assert_close(both[:1], one)
        assert mask[1] or (both[1] == 0).all()
    rest = model(tokens[1:, ::3], dt=dt[1:, ::3])
    assert decoder.state.position.tolist() == [20, 7]
    assert_same_state(decoder.snapshot().select([1]), rest.state, rtol=1e-9)
    assert decoder.ledger().positions == 27


def test_states_are_copied_and_memory_does_not_grow(events):
    model = make()
    tokens, dt = events(2, 40, seed=2)
    begun = model(tokens, dt=dt.double()).state
    kept = begun.map(torch.clone)
    decoder = Decoder(model, begun)
    now, size = decoder.state, decoder.state.nbytes
    for t in range(40):
        decoder.step(tokens[:, t])
    assert decoder.state is now
    assert decoder.state.nbytes == size
    assert_same_state(begun, kept, rtol=0)
    assert not any(x.requires_grad for _, x in (*decoder.state.named_tensors(), *decoder.snapshot().named_tensors()))


@torch.no_grad()
def test_room_is_made_as_it_is_needed(events):
    """On a CPU: a large buffer that holds little takes little memory."""
    model = make("a buffer that never fills", slots=300)
    tokens, dt = events(2, 200, seed=2)
    decoder, whole = Decoder(model, batch=2), model(tokens, dt=dt.double())
    sizes = set()
    for t in range(200):
        found = decoder.step(tokens[:, t], dt[:, t].double())
        torch.testing.assert_close(found["tokens"], whole.predictions["tokens"][:, t])
        sizes.add(decoder.state.layers[0].episodic.slots)
    assert sorted(sizes) == [64, 128, 256]
    assert decoder.snapshot().layers[0].episodic.slots == whole.state.layers[0].episodic.slots == 200
    assert_same_state(decoder.snapshot(), whole.state, rtol=1e-9)


@torch.no_grad()
def test_in_bfloat16_a_step_is_as_exact_as_a_call(events):
    exact = make()
    model = make().to(torch.bfloat16)
    tokens, dt = events(2, 40, seed=2)
    states = [model(tokens, dt=dt).state, exact(tokens, dt=dt.double()).state]
    decoder = Decoder(model, states[0])
    for t in range(10):
        mine = decoder.step(tokens[:, t])["tokens"].double()
        call = model(tokens[:, t : t + 1], state=states[0])
        states[0] = call.state
        theirs = call.predictions["tokens"][:, -1].double()
        assert (mine - theirs).norm() < 0.02 * theirs.norm()
        mine.zero_()


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [False, True])
@torch.no_grad()
def test_a_recorded_step_is_the_step(autocast, events):
    """On a GPU, from a state, with sequences that are left out, and under autocast, entered anew for each step."""
    model = make().float().cuda()
    tokens, dt = (x.cuda() for x in events(3, 60, seed=2))
    state = model(tokens[:, :20], dt=dt[:, :20]).state
    decoder = Decoder(model, state)
    for t in range(20, 60):
        mask = torch.tensor([True, t % 3 > 0, t % 2 > 0], device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            found = decoder.step(tokens[:, t], dt[:, t], mask)["tokens"].float()
            out = model(tokens[:, t : t + 1], dt=dt[:, t : t + 1], mask=mask.unsqueeze(1), state=state)
        state = out.state
        torch.cuda.empty_cache()
        expected = out.predictions["tokens"][:, -1].float()
        assert (found - expected).norm() < (0.1 if autocast else 1e-4) * expected.norm(), t


@pytest.mark.gpu
@torch.no_grad()
def test_steps_that_are_given_tokens_alone_are_steps_all_the_same(events):
    """On a GPU they skip what a host does for others; in between, gaps and masks are given and then not any more."""
    model = make().float().cuda()
    model.check_values = False
    tokens = events(3, 30, seed=3)[0].cuda()
    short, long = (Decoder(model, batch=3) for _ in range(2))
    ones = torch.ones(3, device="cuda")
    for t in range(30):
        odd = t % 7 == 6
        gap, mask = (2 * ones if odd else ones), torch.tensor([True, not odd, True], device="cuda")
        mine = short.step(tokens[:, t], gap, mask) if odd else short.step(tokens[:, t])
        torch.testing.assert_close(mine["tokens"], long.step(tokens[:, t], gap, mask)["tokens"])
    assert torch.equal(short.state.position, long.state.position)


def test_what_a_decoder_is_not_for():
    model = make()
    with pytest.raises(ValueError, match="either a state to go on from, or how many"):
        Decoder(model)
    with pytest.raises(ValueError, match="training mode"):
        Decoder(make().train(), batch=1)
    with pytest.raises(ValueError, match="bounded buffers and without a contradiction index"):
        Decoder(Cram(model.config.override({"episodic.slots": None})).eval(), batch=1)
    with pytest.raises(ValueError, match="bounded buffers and without a contradiction index"):
        Decoder(Cram(model.config.override({"contradiction.rank": 4})).eval(), batch=1)
    with pytest.raises(ValueError, match="inputs are of 2 sequences, the state of 1"):
        Decoder(model, batch=1).step(torch.zeros(2, dtype=torch.int64))
    other = Cram(model.config.override({"working.steps": 1})).eval().double()
    with pytest.raises(ValueError, match="state"):
        Decoder(model, other.initial_state(1))
    block = model.blocks[0]
    with pytest.raises(ValueError, match="in_place is for one position"):
        block(torch.zeros(1, 2, 16).double(), Timeline.build(torch.ones(1, 2)), block.initial_state(1), in_place=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_what_is_around_the_layers_can_be_compiled(events):
    model = make().float()
    tokens, dt = events(2, 12, seed=2)
    plain, compiled = Decoder(model, batch=2), Decoder(model, batch=2, compile=True)
    for t in range(12):
        steps = [each.step(tokens[:, t], dt[:, t].float())["tokens"] for each in (plain, compiled)]
        torch.testing.assert_close(steps[1], steps[0], rtol=1e-4, atol=1e-4)
    assert compiled.ledger() == plain.ledger()
    assert_same_state(compiled.snapshot(), plain.snapshot(), rtol=1e-4)
