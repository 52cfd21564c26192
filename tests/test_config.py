"""Configs: presets, strict conversion, and an error for every impossible value."""

import dataclasses
import json
import math
import typing

import pytest
import torch

from torchcram import (
    PRESETS,
    BlockConfig,
    ContradictionConfig,
    Cram,
    CramConfig,
    EpisodicConfig,
    InputConfig,
    OutputConfig,
    RouterConfig,
    SemanticConfig,
    TokenField,
    WorkingConfig,
)

INFINITE, NAN = math.inf, math.nan
COUNT = [0, -1, 2.0, True, "3", None]
POSITIVE = [0, -1.0, INFINITE, NAN, True, "1", None]

# Field to values it must refuse; every field of every part is here.
IMPOSSIBLE = {
    "layers": COUNT,
    "block.width": COUNT,
    "block.expansion": POSITIVE[1:],
    "working.steps": COUNT,
    "working.carry": ["both", None, 1],
    "working.time_unit": POSITIVE,
    "working.fastest": POSITIVE,
    "working.slowest": [0.01, -1.0, INFINITE, NAN, "1", None],
    "episodic.slots": [0, -1, 8.0, True, "8"],
    "episodic.heads": [*COUNT, 3],
    "episodic.layers": ["0", 1, [-1], [2], [0.5], [1, 0], [0, 0], ["0"]],
    "episodic.convolution": COUNT,
    "episodic.recency": [0, 1, None, "yes"],
    "episodic.trained_length": [0, 1, 2.0, True, "8"],
    "semantic.rank": COUNT[1:],
    "contradiction.rank": COUNT[1:],
    "contradiction.entries": COUNT,
    "router.rule": ["price", None, 0],
    "router.quality": ["oracle", None, 0],
    "router.features": ["all", None],
    "router.informed": [0, None],
    "router.hidden": COUNT,
    "router.threshold": [-0.1, 1.1, NAN, True, "0.5", None],
    "router.sharpness": [-1, INFINITE, NAN, "8", None],
    "router.scale": POSITIVE,
    "inputs.tokens": ["abc", 3, [5], [{"name": "a", "vocabulary": 4}, {"name": "a", "vocabulary": 5}]],
    "inputs.channels": [-1, 1.0, True, None],
    "inputs.missing": ["zero", None],
    "inputs.frequencies": [-1, 2.0, None],
    "outputs": [[], "tokens", 3, [5]],
}
NESTED = {
    (TokenField, "name"): ["", "two words", "1st", "channels", 5, None],
    (TokenField, "vocabulary"): COUNT,
    (OutputConfig, "name"): ["", "two words", "1st", 5, None],
    (OutputConfig, "kind"): ["token", None],
    (OutputConfig, "size"): COUNT,
}
PARTS = {
    "block": BlockConfig,
    "working": WorkingConfig,
    "episodic": EpisodicConfig,
    "semantic": SemanticConfig,
    "contradiction": ContradictionConfig,
    "router": RouterConfig,
    "inputs": InputConfig,
}


@pytest.fixture
def config():
    return CramConfig.preset("tiny", vocabulary=16)


def _cases():
    return [pytest.param(name, value, id=f"{name}={value!r}") for name in IMPOSSIBLE for value in IMPOSSIBLE[name]]


@pytest.mark.parametrize(("name", "value"), _cases())
def test_impossible_values_are_refused_by_name(name, value, config):
    with pytest.raises(ValueError, match=r"is not possible; allowed: ") as error:
        config.override({name: value})
    assert str(error.value).startswith(name)
    shown = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(shown, list):
        assert repr(shown) in str(error.value)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [pytest.param(*key, value, id=f"{key[0].__name__}.{key[1]}={value!r}") for key in NESTED for value in NESTED[key]],
)
def test_impossible_values_of_fields_and_heads(part, name, value):
    good = {TokenField: {"name": "a", "vocabulary": 4}, OutputConfig: {"name": "a", "kind": "labels", "size": 4}}[part]
    with pytest.raises(ValueError, match=rf"{name} = .* is not possible; allowed: ") as error:
        part(**(good | {name: value}))
    assert repr(value) in str(error.value)


def test_no_field_is_forgotten_above():
    names = {f"{part}.{f.name}" for part, kind in PARTS.items() for f in dataclasses.fields(kind)}
    names |= {f.name for f in dataclasses.fields(CramConfig)} - PARTS.keys()
    assert set(IMPOSSIBLE) == names
    assert set(NESTED) == {(kind, f.name) for kind in (TokenField, OutputConfig) for f in dataclasses.fields(kind)}


@pytest.mark.parametrize("part", [*PARTS, "inputs"])
def test_parts_must_be_of_their_type(part, config):
    with pytest.raises(ValueError, match=rf"^{part} = 5 is not possible; allowed: a {PARTS[part].__name__}"):
        dataclasses.replace(config, **{part: 5})


def test_other_impossible_combinations(config):
    with pytest.raises(ValueError, match=r"inputs = 'nothing' is not possible; allowed: at least one token field"):
        InputConfig()
    with pytest.raises(ValueError, match=r"episodic.heads = 5 is not possible; allowed: a divisor of block.width = 64"):
        config.override({"episodic.heads": 5})
    head = OutputConfig(name="a", kind="labels", size=2)
    with pytest.raises(ValueError, match=r"outputs = \['a', 'a'\] is not possible; .* names that differ"):
        CramConfig.preset("tiny", vocabulary=4, outputs=[head, head])
    with pytest.raises(ValueError, match=r"episodic.layers = \[0\] is not possible; allowed: a tuple"):
        EpisodicConfig(layers=[0])
    with pytest.raises(ValueError, match=r"inputs.tokens = \['a'\] is not possible; allowed: a tuple of TokenField"):
        InputConfig(tokens=["a"])


def test_numbers_too_large_for_a_float(config):
    with pytest.raises(ValueError, match=r"working.time_unit = 1000.* is not possible"):
        config.override({"working.time_unit": 10**400})


@pytest.mark.parametrize("frequencies", [0, 1, 40])
def test_any_number_of_frequencies_gives_finite_outputs(frequencies, config):
    model = Cram(config.override({"inputs.frequencies": frequencies}))
    assert model(torch.zeros(1, 3, dtype=torch.int64)).logits.isfinite().all()


def test_frequencies_beyond_float_range(config):
    with pytest.raises(ValueError, match=r"inputs.frequencies = 300 is not possible"):
        config.override({"inputs.frequencies": 300})


# Width, layers and rank of each size.
SIZES = {
    "tiny": (64, 2, 32),
    "small": (128, 4, 32),
    "medium": (256, 4, 64),
    "paper": (512, 8, 32),
    "large": (512, 8, 128),
}


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_every_preset_builds_and_runs(name):
    config = CramConfig.preset(name, inputs="tokens", vocabulary=32, outputs="tokens")
    assert (config.block.width, config.layers, config.semantic.rank) == SIZES[name]
    assert (config.episodic.slots, config.working.steps) == (512, 3)
    assert config.episodic_layers == tuple(range(config.layers))
    out = Cram(config).eval()(torch.arange(4)[None], dt=torch.tensor([[0.0, 0.5, 3.0, 100.0]]))
    assert out.logits.shape == (1, 4, 32)
    assert out.logits.isfinite().all()


def test_presets_are_the_known_ones_and_read_only():
    assert set(PRESETS) == set(SIZES)
    with pytest.raises(TypeError):
        PRESETS["tiny"] = {}
    with pytest.raises(
        ValueError, match=r"preset = 'huge' is not possible; allowed: tiny, small, medium, paper, large"
    ):
        CramConfig.preset("huge", vocabulary=4)


def test_presets_with_words():
    mixed = CramConfig.preset("tiny", vocabulary={"a": 3, "b": 5}, channels=2, missing="nan", outputs="labels", size=7)
    assert mixed.inputs == InputConfig(
        tokens=(TokenField(name="a", vocabulary=3), TokenField(name="b", vocabulary=5)), channels=2, missing="nan"
    )
    assert mixed.outputs == (OutputConfig(name="labels", kind="labels", size=7),)
    plain = CramConfig.preset("tiny", inputs="channels", channels=3, outputs="classification", size=2)
    assert plain.inputs == InputConfig(channels=3)
    own = CramConfig.preset("tiny", inputs=plain.inputs, outputs=mixed.outputs[0])
    assert (own.inputs, own.outputs) == (plain.inputs, mixed.outputs)
    assert CramConfig.preset("tiny", vocabulary=9).outputs == (OutputConfig(name="tokens", kind="tokens", size=9),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"inputs='tokens' needs vocabulary="),
        ({"inputs": "channels", "size": 1}, r"inputs='channels' needs channels="),
        ({"inputs": "channels", "channels": 2, "vocabulary": 3, "size": 1}, r"inputs='channels' takes no vocabulary="),
        (
            {"inputs": "words", "vocabulary": 3},
            r"inputs = 'words' is not possible; allowed: 'tokens', 'channels' or an",
        ),
        ({"inputs": 5}, r"inputs = 5 is not possible; allowed: 'tokens', 'channels' or an InputConfig"),
        ({"inputs": InputConfig(channels=2), "vocabulary": 3, "size": 1}, r"either in the InputConfig or beside it"),
        ({"inputs": InputConfig(channels=2), "channels": 3, "size": 1}, r"either in the InputConfig or beside it"),
        ({"vocabulary": 3, "outputs": "labels"}, r"outputs='labels' needs size="),
        ({"vocabulary": {"a": 3, "b": 4}}, r"outputs='tokens' predicts .* one stream, and the input has 2; give size="),
        ({"vocabulary": 3, "outputs": "words"}, r"outputs = 'words' is not possible; allowed: 'tokens', 'labels'"),
        ({"vocabulary": 3, "outputs": 5}, r"outputs = 5 is not possible"),
        ({"vocabulary": 3, "outputs": []}, r"outputs = \[\] is not possible; allowed: at least one head"),
        ({"vocabulary": "many"}, r"inputs.tokens.vocabulary = 'many' is not possible"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_presets_say_what_they_need(arguments, message):
    with pytest.raises(ValueError, match=message):
        CramConfig.preset("tiny", **arguments)


def everything():
    """A config in which no field has its default."""
    return CramConfig(
        layers=3,
        inputs=InputConfig(
            tokens=(TokenField(name="a", vocabulary=3), TokenField(name="b", vocabulary=5)),
            channels=2,
            missing="nan",
            frequencies=4,
        ),
        outputs=(
            OutputConfig(name="tag", kind="labels", size=2),
            OutputConfig(name="kind", kind="classification", size=3),
        ),
        block=BlockConfig(width=24, expansion=1.5),
        working=WorkingConfig(steps=2, carry="none", time_unit=2.5, fastest=0.5, slowest=50.0),
        episodic=EpisodicConfig(slots=None, heads=2, layers=(0, 2), convolution=3, recency=False, trained_length=64),
        semantic=SemanticConfig(rank=5),
        contradiction=ContradictionConfig(rank=6, entries=9),
        router=RouterConfig(
            rule="worth",
            quality="exact",
            features="scalars",
            informed=False,
            hidden=7,
            threshold=0.5,
            sharpness=0.0,
            scale=2.0,
        ),
    )


def test_round_trips():
    config = everything()
    for part, kind in PARTS.items():
        for f in dataclasses.fields(kind):
            assert getattr(getattr(config, part), f.name) != f.default, f"{part}.{f.name}"
    assert CramConfig.from_dict(config.to_dict()) == config
    assert CramConfig.from_json(config.to_json()) == config
    assert CramConfig.from_dict(json.loads(json.dumps(config.to_dict()))).fingerprint == config.fingerprint
    assert config.to_json().endswith("}\n")
    for kind, part in [(EpisodicConfig, config.episodic), (TokenField, config.inputs.tokens[0])]:
        assert kind.from_dict(part.to_dict()) == part
    Cram(config)


def test_absent_keys_take_their_defaults():
    data = everything().to_dict()
    for part in ("block", "working", "semantic", "router"):
        del data[part]
    data["episodic"] = {"heads": 4}
    config = CramConfig.from_dict(data)
    assert config.block == BlockConfig()
    assert config.episodic == EpisodicConfig(heads=4)


def test_unknown_and_missing_keys():
    data = everything().to_dict()
    with pytest.raises(ValueError, match=r"CramConfig has no field 'depth', 'size'; fields: layers, inputs, outputs"):
        CramConfig.from_dict(data | {"size": 1, "depth": 2})
    with pytest.raises(ValueError, match=r"episodic has no field 'slot'; fields: slots, heads"):
        CramConfig.from_dict(data | {"episodic": {"slot": 3}})
    with pytest.raises(ValueError, match=r"outputs\[0\] has no field 'width'; fields: name, kind, size"):
        CramConfig.from_dict(data | {"outputs": [{"width": 3}]})
    with pytest.raises(ValueError, match=r"inputs.tokens\[0\] needs 'vocabulary'"):
        CramConfig.from_dict(data | {"inputs": {"tokens": [{"name": "a"}]}})
    with pytest.raises(ValueError, match=r"CramConfig needs 'layers', 'inputs', 'outputs'"):
        CramConfig.from_dict({})
    with pytest.raises(ValueError, match=r"episodic = 3 is not possible; allowed: a mapping of field names to values"):
        CramConfig.from_dict(data | {"episodic": 3})


def test_text_that_is_no_config():
    with pytest.raises(ValueError, match=r"the config is not valid JSON: "):
        CramConfig.from_json("{")
    with pytest.raises(ValueError, match=r"CramConfig = \[1\] is not possible; allowed: a mapping"):
        CramConfig.from_json("[1]")


def test_override_by_dotted_name(config):
    changed = config.override({"episodic.slots": 64, "layers": 3, "router.quality": "exact", "episodic.layers": [0, 2]})
    assert changed.episodic == dataclasses.replace(config.episodic, slots=64, layers=(0, 2))
    assert (changed.layers, changed.router.quality) == (3, "exact")
    assert changed.block == config.block
    assert config.episodic.slots == 512, "the original is left as it was"
    assert config.override({}) == config
    assert config.override({"episodic.slots": None}).episodic.slots is None
    assert config.override({"semantic": {"rank": 3}}).semantic.rank == 3


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("depth", "top-level fields: layers, inputs"),
        ("nothing.slots", "top-level fields: layers, inputs"),
        ("", "top-level fields: layers, inputs"),
        ("episodic.slot", "episodic has fields: slots, heads"),
        ("episodic.slots.more", "episodic.slots has fields: none"),
    ],
)
def test_override_of_what_is_not_there(path, fields, config):
    with pytest.raises(ValueError, match=rf"the config has no field '{path}'; {fields}"):
        config.override({path: 3})


def test_fingerprint_tells_every_field_apart():
    """Each field changed in turn, one at a time."""
    config = everything()
    others = [
        dataclasses.replace(config, layers=4),
        dataclasses.replace(config, outputs=config.outputs[:1]),
        *(
            dataclasses.replace(config, **{part: dataclasses.replace(getattr(config, part), **{f.name: f.default})})
            for part, kind in PARTS.items()
            for f in dataclasses.fields(kind)
        ),
    ]
    prints = {c.fingerprint for c in [config, *others]}
    assert len(prints) == 1 + len(others)
    assert config.fingerprint == everything().fingerprint
    assert all(len(print_) == 16 for print_ in prints)


def test_equal_configs_have_equal_fingerprints(config):
    """Or a state would be refused by a model that it fits: 1 and 1.0 are the same unit of time."""
    other = config.override({"working.time_unit": 1, "router.sharpness": 8})
    assert other == config
    assert other.fingerprint == config.fingerprint


def test_configs_are_frozen_and_keyword_only(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.layers = 3
    with pytest.raises(TypeError):
        SemanticConfig(3)


def test_choices_are_those_of_the_types():
    for kind, name in [(WorkingConfig, "carry"), (RouterConfig, "quality"), (RouterConfig, "features")]:
        for choice in typing.get_args(typing.get_type_hints(kind)[name]):
            assert getattr(kind(**{name: choice}), name) == choice
