"""Baselines and controls as large as CRAM, from a name."""

import pytest
import torch

from tests.models.feeding import assert_close, assert_same_state, routing, total
from torchcram.config import BASELINES, CONTROLS, PRESETS, CramConfig, OutputConfig
from torchcram.models import Baseline, Cram, baseline, build, load, matched, parameters
from torchcram.tasks import Srcd, make


def cram(preset: str) -> CramConfig:
    task = Srcd()
    config = CramConfig.preset(preset, inputs=task.inputs, outputs=task.outputs)
    return config.override({"contradiction.rank": 64})


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", [*CONTROLS, *BASELINES])
def test_all_have_as_many_parameters(name, preset):
    like = cram(preset)
    config = baseline(name, like)
    wide = config.block.width >= 512
    assert parameters(config) == pytest.approx(parameters(like), rel=0.01 if wide else 0.003)
    together = 64 if wide else 8
    assert config.block.feed_forward % together == 0 or config.block.width < 128, "a size that GPUs are made for"
    assert (config.layers, config.block.width) == (like.layers, like.block.width)
    assert (config.inputs, config.outputs) == (like.inputs, like.outputs)


def test_parameters_are_those_of_the_model():
    config = baseline("jamba", cram("tiny"))
    assert parameters(config) == sum(p.numel() for p in build(config).parameters())


@torch.no_grad()
@pytest.mark.parametrize("config", [cram("tiny"), baseline("mamba", cram("tiny"))], ids=["cram", "mamba"])
def test_layers_can_do_without_feed_forward_parts(config):
    without = config.override({"block.expansion": 0})
    hidden, width = config.block.feed_forward, config.block.width
    assert parameters(config) - parameters(without) == config.layers * (2 * hidden * width + hidden + 2 * width)
    inputs = Srcd().batch(seed=0, step=0, rows=range(1)).inputs
    assert build(without).eval()(inputs).predictions["value"].isfinite().all()


def test_a_mixer_can_be_too_large():
    with pytest.raises(ValueError, match=r"model = 'mamba' .* leaves some of 1,000 parameters"):
        matched(baseline("mamba", cram("tiny")), 1000, "mamba")
    task = make("mqar")
    like = CramConfig.preset("small", inputs=task.inputs, outputs=task.outputs)
    with pytest.raises(ValueError, match=r"model = 'entropy' .* in early heads, .* for 8,192 possible answers"):
        baseline("entropy", like)


def test_who_looks_back_where_it_is_uncertain_needs_something_to_be_uncertain_of():
    heads = [OutputConfig(name=kind, kind=kind, size=3) for kind in ("regression", "classification", "labels")]
    like = CramConfig.preset("tiny", inputs="channels", channels=2, outputs=heads[:2])
    told = r"outputs = \['regression', 'classification'\] is not possible; allowed: with mixer='entropy' at least one"
    with pytest.raises(ValueError, match=told):
        baseline("entropy", like)
    assert build(baseline("entropy", like.override({"outputs": heads}))).config.mixer == "entropy"


def test_an_unknown_baseline_is_told():
    with pytest.raises(ValueError, match="model = 'rnn' is not possible; allowed: gate, working, transformer, "):
        baseline("rnn", cram("tiny"))


@torch.no_grad()
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", CONTROLS)
def test_controls_fed_token_by_token_give_the_same(name, preset):
    config = baseline(name, cram(preset))
    torch.manual_seed(0)
    model = build(config).eval()
    length = 12
    examples = Srcd().batch(seed=0, step=0, rows=range(2))
    inputs, dt = {name: x[:, :length] for name, x in examples.inputs.items()}, examples.dt[:, :length]
    whole = model(inputs, dt=dt)
    outs, state = [], None
    for t in range(length):
        outs.append(model({k: x[:, t : t + 1] for k, x in inputs.items()}, dt=dt[:, t : t + 1], state=state))
        state = outs[-1].state
    assert torch.equal(routing(outs), whole.routing)
    for head, expected in whole.predictions.items():
        assert_close(torch.cat([out.predictions[head] for out in outs], dim=1), expected, atol=2e-5)
    assert_same_state(state, whole.state)
    assert total(outs) == whole.ledger()
    assert (whole.ledger().reads > 0) == (name == "gate")


@pytest.mark.parametrize("layers", [1, 2, 4, 8, 12])
def test_jamba_attends_in_one_layer_of_each_group(layers):
    config = baseline("jamba", cram("tiny")).override({"layers": layers})
    attending = [layer for layer in range(layers) if config.attends(layer)]
    assert attending == {1: [0], 2: [1], 4: [2], 8: [4], 12: [4]}[layers]


def test_a_folder_knows_which_model_it_holds(tmp_path):
    config = baseline("seqboat", cram("tiny"))
    model = build(config)
    model.save_pretrained(tmp_path / "boat")
    again = load(tmp_path / "boat")
    assert isinstance(again, Baseline)
    assert again.config == config
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    with pytest.raises(ValueError, match="another kind of model"):
        Cram.from_pretrained(tmp_path / "boat")
    Cram(cram("tiny")).save_pretrained(tmp_path / "cram")
    assert isinstance(load(tmp_path / "cram"), Cram)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.heads": 5}, "attention.heads = 5"),
        ({"attention.slots": 4, "attention.window": 4}, "attention.slots = 4"),
        ({"every": 2}, "every = 2 is not possible; allowed: None but with mixer='space'"),
        ({"mixer": "space", "attention.slots": 4}, "attention.slots = 4"),
        ({"space.head": 7}, "space.head = 7"),
        ({"mixer": "recurrent"}, "mixer = 'recurrent'"),
        ({"capacity": 0.0}, "capacity = 0.0"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_told(changes, message):
    config = baseline("transformer", cram("tiny"))
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        config.override(changes)


def test_queries_and_keys_begin_alike():
    """As in CRAM: the same head start."""
    for name in ("transformer", "mod"):
        mixer = build(baseline(name, cram("tiny"))).blocks[0].mixer
        query, key, _ = getattr(mixer, "attention", mixer).inward.weight.chunk(3)
        assert torch.equal(query, key)
    query, key = build(baseline("seqboat", cram("tiny"))).blocks[0].mixer.pair.weight.chunk(2)
    assert torch.equal(query, key)
