"""What goes in: token fields, channels, missing values, gaps."""

import pytest
import torch

from tests.models.feeding import assert_close, assert_same_state
from torchcram import Cram, InputConfig, TokenField

SIZE = 16
FIELDS = (TokenField(name="kind", vocabulary=4), TokenField(name="place", vocabulary=6))


@pytest.fixture
def noise():
    return lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(81))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_ids_of_any_integer_type(dtype, lively, events):
    model = lively()
    tokens, dt = events(2, 20, seed=82)
    assert torch.equal(model(tokens.to(dtype), dt=dt).logits, model(tokens, dt=dt).logits)


@torch.no_grad()
def test_a_mapping_is_the_same_as_its_only_entry(lively, events):
    model = lively()
    tokens, dt = events(2, 20, seed=82)
    assert torch.equal(model({"tokens": tokens}, dt=dt).logits, model(tokens, dt=dt).logits)


@torch.no_grad()
def test_fields_stacked_or_by_name(lively, events):
    model = lively(vocabulary={"kind": 16, "place": 16}, size=SIZE)
    (kind, dt), (place, _) = events(2, 20, seed=83), events(2, 20, seed=84)
    by_name = model({"place": place, "kind": kind}, dt=dt).logits
    assert torch.equal(model(torch.stack([kind, place], dim=2), dt=dt).logits, by_name)
    assert not torch.equal(model(torch.stack([place, kind], dim=2), dt=dt).logits, by_name)


@torch.no_grad()
def test_every_part_of_a_mixed_input_matters(lively, events, noise):
    model = lively(vocabulary=None, inputs=InputConfig(tokens=FIELDS, channels=3), size=SIZE)
    tokens, dt = events(2, 20, seed=85)
    given = {"kind": tokens % 4, "place": tokens % 6, "channels": noise(2, 20, 3)}
    before = model(given, dt=dt).logits
    changed = {"kind": (tokens + 1) % 4, "place": (tokens + 1) % 6, "channels": given["channels"] + 1}
    for name, value in changed.items():
        assert (model(given | {name: value}, dt=dt).logits - before).abs().max() > 1e-2
    assert (model(given, dt=dt + 1).logits - before).abs().max() > 1e-2


@pytest.mark.parametrize(
    "names", [("keys", "values"), ("type", "forward"), ("items", "training")], ids=lambda names: " ".join(names)
)
def test_fields_may_have_any_name(names, tiny):
    model = Cram(tiny(vocabulary=dict.fromkeys(names, 4), outputs="regression", size=1))
    ids = torch.zeros(1, 3, dtype=torch.int64)
    assert model(dict.fromkeys(names, ids)).logits.shape == (1, 3, 1)


@torch.no_grad()
def test_missing_values_give_finite_outputs(lively, noise):
    model = lively(vocabulary=None, inputs="channels", channels=3, missing="nan", outputs="regression", size=2)
    values = noise(3, 30, 3)
    values[0] = torch.nan
    values[1, ::2, 1] = torch.nan
    values[2, 4] = torch.nan
    out = model(values)
    assert out.logits.isfinite().all()
    assert all(x.isfinite().all() for _, x in out.state.named_tensors())
    assert_same_state(model(values[:, 17:], state=model(values[:, :17]).state).state, out.state)


@torch.no_grad()
def test_missing_is_not_zero(lively, noise):
    model = lively(vocabulary=None, inputs="channels", channels=3, missing="nan", outputs="regression", size=2)
    values = noise(2, 10, 3)
    values[:, 5, 1] = 0.0
    missing = values.clone()
    missing[:, 5, 1] = torch.nan
    assert (model(values).logits[:, 5] - model(missing).logits[:, 5]).abs().max() > 1e-3


def test_gradients_with_missing_values_are_finite(lively, noise):
    model = lively(vocabulary=None, inputs="channels", channels=3, missing="nan", outputs="regression", size=2)
    values = noise(2, 10, 3)
    values[0] = torch.nan
    values.requires_grad_()
    model(values).logits.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert (values.grad[0] == 0).all()
    assert (values.grad[1] != 0).all()


@torch.no_grad()
def test_channels_take_the_precision_of_the_model(lively, noise):
    model = lively(vocabulary=None, inputs="channels", channels=3, outputs="regression", size=2)
    values = noise(2, 10, 3)
    assert model(values.double()).logits.dtype == torch.float32
    assert torch.equal(model(values.double()).logits, model(values).logits)


@torch.no_grad()
def test_gaps_may_be_integers_or_of_other_precision(lively, events):
    model = lively()
    tokens, _ = events(2, 20, seed=86)
    dt = torch.arange(20).expand(2, 20)
    for dtype in (torch.float16, torch.float32, torch.float64, torch.int32):
        assert torch.equal(model(tokens, dt=dt.to(dtype)).logits, model(tokens, dt=dt).logits)


@torch.no_grad()
def test_only_gaps_in_time_units_matter(lively, events):
    """A clock in milliseconds with a unit of 1000 is a clock in seconds."""
    seconds, milliseconds = lively(seed=4), lively({"working.time_unit": 1024.0}, seed=4)
    tokens, dt = events(2, 50, seed=87)
    slow, fast = seconds(tokens, dt=dt), milliseconds(tokens, dt=dt * 1024)
    assert torch.equal(slow.routing, fast.routing)
    assert_close(fast.logits, slow.logits)


@torch.no_grad()
def test_enormous_gaps_give_finite_outputs(lively, events):
    model = lively({"working.time_unit": 1e-3})
    tokens, dt = events(2, 20, seed=88)
    for largest in (1e6, 1e20, 1e34):
        dt[:, 7] = largest
        assert model(tokens, dt=dt).logits.isfinite().all(), largest


@torch.no_grad()
def test_inputs_are_left_as_they_were(lively, events):
    model = lively()
    tokens, dt = events(2, 20, seed=89)
    mask = torch.arange(20).expand(2, 20) < 15
    kept = [x.clone() for x in (tokens, dt, mask)]
    model(tokens, dt=dt, mask=mask)
    assert all(torch.equal(x, y) for x, y in zip((tokens, dt, mask), kept, strict=True))
