"""The state: saved, loaded, cut, joined, moved, and gone on from."""

import dataclasses

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.models.feeding import assert_close, assert_same_state, feed, predictions
from torchcram import CramState, OutputConfig

OUTPUTS = [
    OutputConfig(name="tokens", kind="tokens", size=16),
    OutputConfig(name="label", kind="classification", size=3),
]
CHANGES = {"episodic.convolution": 3, "episodic.layers": [0, 2]}


@pytest.fixture
def model(lively):
    """Every kind of entry: pooled sums, convolution, a layer without a buffer."""
    return lively(CHANGES, seed=4, outputs=OUTPUTS)


@pytest.fixture
def data(events):
    return events(3, 60, seed=51)


@pytest.fixture
def state(model, data):
    tokens, dt = data
    return model(tokens[:, :30], dt=dt[:, :30]).state


def assert_identical(actual, expected):
    assert actual.fingerprint == expected.fingerprint
    found, wanted = dict(actual.named_tensors()), dict(expected.named_tensors())
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        assert found[name].dtype == want.dtype, name
        assert torch.equal(found[name], want), name


def test_save_and_load_are_bit_exact(state, tmp_path):
    state.save(tmp_path / "state")
    assert_identical(CramState.load(tmp_path / "state"), state)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_saving_again_replaces(model, data, state, tmp_path):
    state.save(tmp_path / "state")
    later = model(data[0][:, 30:], dt=data[1][:, 30:], state=state).state
    later.save(tmp_path / "state")
    assert_identical(CramState.load(tmp_path / "state"), later)


def test_initial_state_can_be_saved(model, tmp_path):
    model.initial_state(2).save(tmp_path / "state")
    assert_identical(CramState.load(tmp_path / "state"), model.initial_state(2))


@torch.no_grad()
def test_going_on_from_a_loaded_state_is_never_having_stopped(model, data, state, tmp_path):
    tokens, dt = data
    state.save(tmp_path / "state")
    loaded = CramState.load(tmp_path / "state")
    resumed = model(tokens[:, 30:], dt=dt[:, 30:], state=loaded)
    straight = model(tokens[:, 30:], dt=dt[:, 30:], state=state)
    assert torch.equal(resumed.logits["tokens"], straight.logits["tokens"])
    assert_identical(resumed.state, straight.state)
    assert_close(resumed.logits["tokens"], model(tokens, dt=dt).logits["tokens"][:, 30:])


@torch.no_grad()
def test_running_from_a_state_leaves_it_as_it_was(model, data, state):
    before = state.map(torch.clone)
    tokens, dt = data
    first = model(tokens[:, 30:], dt=dt[:, 30:], state=state)
    assert_identical(state, before)
    assert torch.equal(first.logits["tokens"], model(tokens[:, 30:], dt=dt[:, 30:], state=state).logits["tokens"])


def test_split_and_join_are_inverse(state):
    assert [part.batch for part in state.split()] == [1, 1, 1]
    assert [part.batch for part in state.split(2)] == [2, 1]
    assert [part.batch for part in state.split([1, 2])] == [1, 2]
    for sizes in (1, 2, 3, [1, 2]):
        assert_identical(CramState.join(state.split(sizes)), state)


def test_select_takes_rows_in_order(state):
    parts = state.split()
    assert_identical(state.select([2, 0, 2]), CramState.join([parts[2], parts[0], parts[2]]))
    assert_identical(state.select(torch.tensor([1])), parts[1])
    for rows in ([3], [-1], [[0]]):
        with pytest.raises(ValueError, match=r"rows = .* is not possible; allowed: 0 to 2"):
            state.select(rows)


@torch.no_grad()
def test_joined_states_of_different_slot_counts_go_on_as_each_alone(model, data):
    tokens, dt = data
    short = model(tokens[:1, :3], dt=dt[:1, :3]).state
    long = model(tokens[1:, :30], dt=dt[1:, :30]).state
    fresh = model.initial_state(1)
    slots = [state.layers[0].episodic.slots for state in (short, long, fresh)]
    assert slots == [3, 8, 0]
    joined = CramState.join([short, long, fresh])
    assert joined.batch == 4
    assert joined.layers[0].episodic.position[0].tolist() == [0, 1, 2, -1, -1, -1, -1, -1]
    assert joined.layers[1].episodic is None
    more = slice(30, 60)
    rows = [0, 1, 2, 0]
    together = model(tokens[rows, more], dt=dt[rows, more], state=joined)
    parts = [
        model(tokens[:1, more], dt=dt[:1, more], state=short),
        model(tokens[1:, more], dt=dt[1:, more], state=long),
        model(tokens[:1, more], dt=dt[:1, more]),
    ]
    assert_close(together.logits["tokens"], torch.cat([part.logits["tokens"] for part in parts]))
    assert_same_state(together.state, CramState.join([part.state for part in parts]))


def test_join_refuses_what_does_not_belong_together(state, lively):
    with pytest.raises(ValueError, match="there is no state to join"):
        CramState.join([])
    with pytest.raises(ValueError, match="different configs and cannot be joined"):
        CramState.join([state, lively().initial_state(1)])


def test_widen_adds_empty_slots(model, data):
    buffer = model(data[0][:, :3]).state.layers[0].episodic
    wide = buffer.widen(5)
    assert wide.slots == 5
    assert wide.position.tolist() == [[0, 1, 2, -1, -1]] * 3
    assert torch.equal(wide.key[:, :3], buffer.key)
    assert wide.widen(4) is wide


def test_to_another_device(state):
    assert_identical(state.to("cpu"), state)
    moved = state.to("meta")
    assert moved.fingerprint == state.fingerprint
    for (name, there), (_, here) in zip(moved.named_tensors(), state.named_tensors(), strict=True):
        assert there.device.type == "meta", name
        assert there.shape == here.shape, name
        assert there.dtype == here.dtype, name


def test_nbytes_is_the_size_of_all_tensors(state):
    width, slots = 32, 8
    buffer = 2 * 4 * slots * width + slots * (4 + 1 + 8 + 8 + 4)  # keys, values; priority, known, time, position, mass
    index = state.layers[0].index.slots * (4 * 32 + 8 + 1)  # codes, positions, dead or alive
    layer = 4 * (width + state.layers[0].prediction.shape[-1])  # working memory and what it predicts from
    taps = 2 * 4 * width
    pooled, clock = 4 * width, 8 + 8
    assert state.nbytes == 3 * (3 * layer + 2 * (buffer + taps) + index + pooled + clock)


def test_state_keeps_no_more_memory_than_it_says(state):
    """A view of a whole sequence's activations would keep all of them alive for as long as the state lives."""
    held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for _, x in state.named_tensors()}
    assert sum(held.values()) == state.nbytes


def test_gradients_flow_through_a_state(lively):
    """The same gradient as if both chunks had been one call."""
    model = lively(CHANGES, seed=4, vocabulary=None, inputs="channels", channels=2, size=16)
    channels = torch.randn(2, 40, 2, generator=torch.Generator().manual_seed(52))

    def gradient(cut):
        x = channels.clone().requires_grad_()
        sizes = [40] if cut is None else [25, 15]
        outs = feed(model, x, sizes) if cut != "detached" else _detached(x)
        predictions(outs)[:, 25:].square().sum().backward()
        return x.grad

    def _detached(x):
        first = model(x[:, :25])
        return [first, model(x[:, 25:], state=first.state.detach())]

    whole, chunked, detached = gradient(None), gradient("chunked"), gradient("detached")
    assert whole[:, :25].abs().max() > 1e-3
    torch.testing.assert_close(chunked, whole, rtol=1e-3, atol=1e-5)
    assert (detached[:, :25] == 0).all()
    assert (detached[:, 25:] != 0).any()


def test_detached_state_needs_no_gradient(state):
    assert any(x.requires_grad for _, x in state.named_tensors())
    assert not any(x.requires_grad for _, x in state.detach().named_tensors())
    assert_identical(state.detach(), state)


def test_no_state_if_none_is_kept(model, data):
    out = model(data[0], dt=data[1], keep_state=False)
    assert out.state is None
    assert all(layer.state is None for layer in out.layers)
    assert torch.equal(out.logits["tokens"], model(data[0], dt=data[1]).logits["tokens"])


@torch.no_grad()
def test_initial_state_is_what_none_means(model, data):
    tokens, dt = data
    given = model(tokens, dt=dt, state=model.initial_state(3))
    assert torch.equal(given.logits["tokens"], model(tokens, dt=dt).logits["tokens"])
    assert given.state.position.tolist() == [60, 60, 60]
    torch.testing.assert_close(given.state.time, dt.double().sum(1))


def test_unreadable_file(tmp_path):
    with pytest.raises(ValueError, match=r"missing is not a readable state file"):
        CramState.load(tmp_path / "missing")
    (tmp_path / "text").write_text("not a state")
    with pytest.raises(ValueError, match=r"text is not a readable state file"):
        CramState.load(tmp_path / "text")


def test_truncated_file(state, tmp_path):
    state.save(tmp_path / "state")
    whole = (tmp_path / "state").read_bytes()
    for keep in (0, 7, len(whole) // 2, len(whole) - 1):
        (tmp_path / "state").write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"is not a readable state file"):
            CramState.load(tmp_path / "state")


def rewritten(state, path, change):
    """Save a state after `change` had its way with the tensors and the metadata."""
    state.save(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    return path


def test_file_of_something_else(state, tmp_path):
    path = rewritten(state, tmp_path / "state", lambda _, metadata: metadata.update(format="other"))
    with pytest.raises(ValueError, match=r"is not a torchcram state \(format = 'other'\)"):
        CramState.load(path)
    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    with pytest.raises(ValueError, match=r"is not a torchcram state \(format = None\)"):
        CramState.load(tmp_path / "plain")


def test_file_of_a_newer_version(state, tmp_path):
    path = rewritten(state, tmp_path / "state", lambda _, metadata: metadata.update(version="2"))
    with pytest.raises(ValueError, match=r"has state format 2, this torchcram reads 1; upgrade torchcram"):
        CramState.load(path)


def test_file_without_fingerprint(state, tmp_path):
    path = rewritten(state, tmp_path / "state", lambda _, metadata: metadata.pop("fingerprint"))
    with pytest.raises(ValueError, match=r"lacks the entry 'fingerprint'; the file is damaged"):
        CramState.load(path)


@pytest.mark.parametrize(
    "name",
    [
        "position",
        "time",
        "pooled",
        "layers.0.working",
        "layers.0.prediction",
        "layers.0.recent",
        "layers.1.working",
        "layers.2.working",
        *(f"layers.0.episodic.{part}" for part in ("key", "value", "priority", "time", "position", "mass")),
    ],
)
def test_file_that_lost_an_entry_is_refused(name, model, data, state, tmp_path):
    """When it is read or, for what only the model can know, when it is used."""
    path = rewritten(state, tmp_path / "state", lambda tensors, _: tensors.pop(name))
    with pytest.raises(ValueError, match=r"damaged|does not fit"):
        model(data[0], dt=data[1], state=CramState.load(path))


@pytest.mark.parametrize("name", ["position", "layers.0.working", "layers.0.recent", "layers.2.episodic.key"])
@pytest.mark.parametrize("damage", ["shape", "dtype"])
def test_file_with_a_wrong_tensor_is_refused(name, damage, model, data, state, tmp_path):
    def change(tensors, _):
        x = tensors[name]
        tensors[name] = x[..., None].contiguous() if damage == "shape" else x.to(torch.uint8)

    path = rewritten(state, tmp_path / "state", change)
    with pytest.raises(ValueError, match=r"damaged|does not fit"):
        model(data[0], dt=data[1], state=CramState.load(path))


def test_states_are_plain_frozen_data(state):
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.position = None


def test_select_by_mask(state):
    mask = torch.tensor([False, False, True])
    assert_identical(state.select(mask), state.select([2]))
