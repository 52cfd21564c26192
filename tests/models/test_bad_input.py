"""Whatever is wrong with a call is said before anything runs: what, the value seen, what is allowed."""

import pytest
import torch

from torchcram import InputConfig, RoutingPolicy, TokenField

ROWS, LENGTH, LAYERS = 2, 10, 3


@pytest.fixture
def model(lively):
    return lively()


@pytest.fixture
def channels_model(lively):
    return lively(vocabulary=None, inputs="channels", channels=3, outputs="regression", size=1)


@pytest.fixture
def mixed_model(lively):
    fields = (TokenField(name="kind", vocabulary=4), TokenField(name="place", vocabulary=6))
    return lively(vocabulary=None, inputs=InputConfig(tokens=fields, channels=3), size=16)


def ids(*shape):
    return torch.zeros(*(shape or (ROWS, LENGTH)), dtype=torch.int64)


def flags(*shape):
    return torch.zeros(*(shape or (ROWS, LENGTH)), dtype=torch.bool)


def with_value(x, where, value):
    x = x.clone()
    x[where] = value
    return x


@pytest.mark.parametrize(
    ("value", "shown"), [(torch.nan, "nan"), (torch.inf, "inf"), (-torch.inf, "-inf"), (-0.5, "-0.5")]
)
def test_gaps_must_be_finite_and_not_negative(value, shown, model):
    dt = with_value(torch.ones(ROWS, LENGTH), (1, 7), value)
    message = rf"dt = {shown} at \(row, position\) \(1, 7\); allowed: finite and ≥ 0"
    with pytest.raises(ValueError, match=message):
        model(ids(), dt=dt)
    with pytest.raises(ValueError, match=message):
        model(ids(), dt=dt.double())


def test_gaps_must_be_finite_in_time_units(lively):
    model = lively({"working.time_unit": 1e-3})
    with pytest.raises(ValueError, match=r"dt = 1e\+37"):
        model(ids(), dt=with_value(torch.ones(ROWS, LENGTH), (1, 7), 1e37))


@pytest.mark.parametrize(("value", "seen"), [(16, "0 to 16"), (-1, "-1 to 0"), (2**40, rf"0 to {2**40}")])
def test_ids_must_be_in_the_vocabulary(value, seen, model):
    with pytest.raises(ValueError, match=rf"tokens has ids from {seen}; allowed: 0 to 15 \(vocabulary 16\)"):
        model(with_value(ids(), (1, 7), value))


def test_ids_of_each_field_must_be_in_its_vocabulary(mixed_model):
    given = {"kind": ids(), "place": ids() + 5, "channels": torch.zeros(ROWS, LENGTH, 3)}
    mixed_model(given)
    with pytest.raises(ValueError, match=r"place has ids from 6 to 6; allowed: 0 to 5 \(vocabulary 6\)"):
        mixed_model(given | {"place": ids() + 6})
    with pytest.raises(ValueError, match=r"kind has ids from 5 to 5; allowed: 0 to 3 \(vocabulary 4\)"):
        mixed_model(given | {"kind": ids() + 5})


def test_channels_must_be_numbers(channels_model, lively):
    values = torch.zeros(ROWS, LENGTH, 3)
    with pytest.raises(ValueError, match=r"NaN, first at \(row, position, channel\) \(1, 7, 2\); set missing='nan'"):
        channels_model(with_value(values, (1, 7, 2), torch.nan))
    with pytest.raises(ValueError, match=r"channels holds infinite values; allowed: finite numbers$"):
        channels_model(with_value(values, (1, 7, 2), torch.inf))
    tolerant = lively(vocabulary=None, inputs="channels", channels=3, missing="nan", outputs="regression", size=1)
    with pytest.raises(ValueError, match=r"infinite values; allowed: finite numbers, or NaN for 'not measured'"):
        tolerant(with_value(values, (1, 7, 2), -torch.inf))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ids(LENGTH), r"tokens has shape \(10,\); expected \[batch, length\]"),
        (ids(ROWS, LENGTH, 1), r"tokens has shape \(2, 10, 1\); expected \[batch, length\]"),
        (ids(0, LENGTH), r"the input is empty \(batch 0, length 10\); at least one of each is needed"),
        (ids(ROWS, 0), r"the input is empty \(batch 2, length 0\)"),
        (ids().float(), r"tokens has dtype torch.float32; expected integer token ids"),
        (flags(), r"tokens has dtype torch.bool; expected integer token ids"),
        ({"words": ids()}, r"the input has words; expected tokens"),
        ({"tokens": ids(), "channels": ids()}, r"the input has tokens, channels; expected tokens"),
        ({}, r"the input has ; expected tokens"),
        ([[1, 2]], r"the input is a list; expected a torch.Tensor"),
        (None, r"the input is a NoneType; expected a torch.Tensor"),
        ({"tokens": [[1, 2]]}, r"tokens is a list; expected a tensor"),
        (ids().to("meta"), r"tokens is on meta, the model on cpu; move one of them"),
    ],
    ids=[
        "one dimension",
        "three dimensions",
        "no rows",
        "no positions",
        "float ids",
        "bool ids",
        "another name",
        "a name too many",
        "empty mapping",
        "a list",
        "nothing",
        "a list by name",
        "another device",
    ],
)
def test_tokens(given, message, model):
    with pytest.raises(ValueError, match=message):
        model(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(ROWS, LENGTH), r"channels has shape \(2, 10\); expected \[batch, length, 3\]"),
        (torch.zeros(ROWS, LENGTH, 2), r"channels has shape \(2, 10, 2\); expected \[batch, length, 3\]"),
        (torch.zeros(0, LENGTH, 3), r"the input is empty \(batch 0, length 10\)"),
        (torch.zeros(ROWS, 0, 3), r"the input is empty \(batch 2, length 0\)"),
        (ids(ROWS, LENGTH, 3), r"channels has dtype torch.int64; expected floating-point values"),
        (torch.zeros(ROWS, LENGTH, 3, dtype=torch.complex64), r"channels has dtype torch.complex64"),
    ],
    ids=["two dimensions", "channel count", "no rows", "no positions", "integers", "complex"],
)
def test_channels(given, message, channels_model):
    with pytest.raises(ValueError, match=message):
        channels_model(given)


def test_parts_of_a_mapping_must_agree(mixed_model):
    given = {"kind": ids(), "place": ids(), "channels": torch.zeros(ROWS, LENGTH, 3)}
    with pytest.raises(ValueError, match=r"place has shape \(2, 9\); expected it to start with \(2, 10\)"):
        mixed_model(given | {"place": ids(ROWS, LENGTH - 1)})
    with pytest.raises(ValueError, match=r"channels has shape \(3, 10, 3\); expected it to start with \(2, 10\)"):
        mixed_model(given | {"channels": torch.zeros(ROWS + 1, LENGTH, 3)})
    with pytest.raises(ValueError, match=r"the input has kind, channels; expected kind, place, channels"):
        mixed_model({name: given[name] for name in ("kind", "channels")})
    with pytest.raises(ValueError, match=r"takes several inputs: pass a mapping with kind, place, channels"):
        mixed_model(ids())


def test_stacked_fields_must_be_as_many_as_the_model_has(lively):
    model = lively(vocabulary={"a": 4, "b": 4}, size=4)
    model(ids(ROWS, LENGTH, 2))
    for shape in [(ROWS, LENGTH), (ROWS, LENGTH, 3)]:
        with pytest.raises(ValueError, match=r"expected \[batch, length, 2\], or a mapping with a, b"):
            model(ids(*shape))


@pytest.mark.parametrize("name", ["dt", "mask", "start"])
def test_what_comes_along_must_have_the_shape_of_the_input(name, model):
    make = torch.ones if name == "dt" else flags
    for shape in [(LENGTH,), (ROWS, LENGTH, 1)]:
        with pytest.raises(ValueError, match=rf"{name} has shape \(.*\); expected \[batch, length\]"):
            model(ids(), **{name: make(*shape)})
    for shape in [(ROWS, LENGTH + 1), (1, LENGTH)]:
        with pytest.raises(ValueError, match=rf"{name} has shape \(.*\); expected it to start with \(2, 10\)"):
            model(ids(), **{name: make(*shape)})
    with pytest.raises(ValueError, match=rf"{name} is on meta, the model on cpu"):
        model(ids(), **{name: make(ROWS, LENGTH).to("meta")})


@pytest.mark.parametrize("name", ["mask", "start"])
def test_flags_must_be_bool(name, model):
    with pytest.raises(ValueError, match=rf"{name} has dtype torch.int64; expected torch.bool"):
        model(ids(), **{name: ids()})


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64], ids=str)
def test_gaps_must_be_numbers(dtype, model):
    with pytest.raises(ValueError, match=rf"dt has dtype {dtype}; expected numbers"):
        model(ids(), dt=torch.ones(ROWS, LENGTH, dtype=dtype))


@pytest.mark.parametrize("name", ["dt", "mask", "start"])
def test_what_comes_along_must_be_tensors(name, model):
    with pytest.raises(ValueError, match=rf"{name} is a float; expected a tensor"):
        model(ids(), **{name: 1.0})


def test_start_must_be_real(model):
    start, mask = with_value(flags(), (0, 4), True), ~with_value(flags(), (0, 4), True)
    with pytest.raises(ValueError, match=r"start is True at a padded position; a sequence must begin at a real one"):
        model(ids(), start=start, mask=mask)
    model(ids(), start=start)


def test_state_of_another_model(model, lively):
    state = lively({"episodic.slots": 9}).initial_state(ROWS)
    with pytest.raises(ValueError, match="the state belongs to a model of another config"):
        model(ids(), state=state)


def test_state_of_another_batch(model):
    state = model(ids()).state
    with pytest.raises(ValueError, match="the state is of 2 sequences, the input of 3"):
        model(ids(3, LENGTH), state=state)


def test_state_on_another_device(model):
    with pytest.raises(ValueError, match=r"the state is on meta, the model on cpu; use state.to"):
        model(ids(), state=model.initial_state(ROWS).to("meta"))


def test_state_that_is_none(model):
    with pytest.raises(ValueError, match="state is a dict; expected the state of an earlier output"):
        model(ids(), state={})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reads": "all"}, r"reads = 'all' is not possible; allowed: 'routed', 'dense', 'off'"),
        ({"skip": -0.1}, r"skip = -0.1 is not possible; allowed: a share from 0 to 1"),
        ({"skip": 1.1}, r"skip = 1.1 is not possible"),
        ({"temperature": 0.0}, r"temperature = 0.0 is not possible; allowed: a number above 0"),
        ({"temperature": -1.0}, r"temperature = -1.0 is not possible"),
        ({"temperature": float("nan")}, r"temperature = nan is not possible"),
        ({"most": 0.0}, r"most = 0.0 is not possible; allowed: a number above 0"),
        ({"audit": -0.1}, r"audit = -0.1 is not possible; allowed: a share from 0 to 1"),
        ({"audit": 1.1}, r"audit = 1.1 is not possible"),
        ({"audit": float("nan")}, r"audit = nan is not possible"),
    ],
    ids=str,
)
def test_policies(values, message):
    with pytest.raises(ValueError, match=message):
        RoutingPolicy(**values)


@pytest.mark.parametrize("answered", [torch.ones(ROWS, LENGTH), torch.ones(1, LENGTH, dtype=torch.bool)])
def test_answered_positions(model, answered):
    with pytest.raises(ValueError, match=r"policy.answered has shape .* expected \(2, 10\) and torch.bool"):
        model(ids(), policy=RoutingPolicy(answered=answered))


def test_forced_actions(model):
    for actions, message in [
        (ids(), r"policy.actions has shape \(2, 10\) and dtype torch.int64; expected integers \(2, 10, 3\)"),
        (ids(ROWS, LENGTH, LAYERS + 1), r"policy.actions has shape \(2, 10, 4\)"),
        (torch.zeros(ROWS, LENGTH, LAYERS), r"and dtype torch.float32; expected integers"),
        (ids(ROWS, LENGTH, LAYERS) + 3, r"values other than 0 \(none\), 1 \(episodic\), 2 \(semantic\)"),
        (ids(ROWS, LENGTH, LAYERS) - 1, r"values other than 0 \(none\), 1 \(episodic\), 2 \(semantic\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            model(ids(), policy=RoutingPolicy(actions=actions))
    model(ids(), policy=RoutingPolicy(actions=ids(ROWS, LENGTH, LAYERS).to(torch.int8) + 1))


def test_forced_priorities(model):
    with pytest.raises(ValueError, match=r"policy.priorities has shape \(2, 10\); expected \(2, 10, 3\)"):
        model(ids(), policy=RoutingPolicy(priorities=torch.zeros(ROWS, LENGTH)))


def test_forced_read_in_a_layer_without_a_buffer(lively):
    model = lively({"episodic.layers": [0, 2]})
    actions = torch.zeros(ROWS, LENGTH, LAYERS, dtype=torch.int64)
    actions[..., 1] = 1
    with pytest.raises(ValueError, match=r"policy.actions .* layer 1"):
        model(ids(), policy=RoutingPolicy(actions=actions))


def test_values_are_not_looked_at_if_not_asked_for(model):
    """So that a GPU need not wait; shapes still are."""
    dt = with_value(torch.ones(ROWS, LENGTH), (0, 0), -1e-3)
    with pytest.raises(ValueError, match=r"dt = -0.001"):
        model(ids(), dt=dt)
    model.check_values = False
    model(ids(), dt=dt)
    with pytest.raises(ValueError, match="dt has shape"):
        model(ids(), dt=dt[:, 1:])
