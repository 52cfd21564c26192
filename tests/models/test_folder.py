"""A model as a folder: what is written comes back, and damage is noticed."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.feeding import assert_same_state
from torchcram import Cram, CramState


@pytest.fixture
def model(lively):
    return lively({"episodic.convolution": 3, "episodic.layers": [0, 2]}, seed=4)


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "deep" / "model")
    return tmp_path / "deep" / "model"


def edit(folder, change):
    """Let `change` alter the data of config.json."""
    path = folder / "config.json"
    data = json.loads(path.read_text())
    data = change(data) or data
    path.write_text(json.dumps(data))


def edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def test_round_trip_is_bit_exact(model, folder, events):
    loaded = Cram.from_pretrained(folder)
    assert loaded.config == model.config
    assert not loaded.training
    wanted, found = model.state_dict(), loaded.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    tokens, dt = events(2, 30, seed=71)
    assert torch.equal(loaded(tokens, dt=dt).logits, model(tokens, dt=dt).logits)


def test_running_statistics_come_back(model, tmp_path, events):
    tokens, dt = events(2, 30, seed=72)
    model.train()(tokens, dt=dt)
    model.eval().save_pretrained(tmp_path)
    assert model.blocks[0].quality.reads.seen == 1
    loaded = Cram.from_pretrained(str(tmp_path))
    assert torch.equal(loaded.blocks[0].quality.reads.variance, model.blocks[0].quality.reads.variance)
    assert loaded.blocks[0].quality.reads.seen == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_precision_comes_back(dtype, model, tmp_path):
    torch.nn.init.normal_(model.to(dtype).norm.weight)
    model.save_pretrained(tmp_path)
    loaded = Cram.from_pretrained(tmp_path).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(loaded[name].to(torch.float64), value.to(torch.float64)), name


def test_folder_holds_two_files(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    data = json.loads((folder / "config.json").read_text())
    assert data["format"] == "torchcram"
    assert data["format_version"] == 1


def test_saving_again_replaces(folder, lively):
    other = lively(seed=5)
    other.save_pretrained(folder)
    loaded = Cram.from_pretrained(folder)
    assert loaded.config == other.config
    assert torch.equal(loaded.norm.weight, other.norm.weight)


def test_state_of_one_goes_to_the_other(model, folder, events, tmp_path):
    tokens, dt = events(2, 40, seed=73)
    model(tokens[:, :20], dt=dt[:, :20]).state.save(tmp_path / "state")
    out = Cram.from_pretrained(folder)(tokens[:, 20:], dt=dt[:, 20:], state=CramState.load(tmp_path / "state"))
    assert_same_state(out.state, model(tokens, dt=dt).state)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file(name, folder):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=rf"is not a torchcram model folder: it has no {name}"):
        Cram.from_pretrained(folder)


def test_missing_folder(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere is not a torchcram model folder: it has no config.json"):
        Cram.from_pretrained(tmp_path / "nowhere")


def test_truncated_weights(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for keep in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"model.safetensors is damaged: "):
            Cram.from_pretrained(folder)


def test_truncated_config(folder):
    path = folder / "config.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match=r"config.json is damaged: "):
        Cram.from_pretrained(folder)


def test_config_that_is_no_text(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ValueError, match=r"config.json is damaged: "):
        Cram.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: [data], r"config.json does not describe a torchcram model"),
        (lambda data: data.update(format="other"), r"config.json does not describe a torchcram model"),
        (
            lambda data: data.update(format_version=2),
            r"has format version 2, this torchcram reads 1; upgrade torchcram",
        ),
        (lambda data: data.pop("format_version"), r"has format version None, this torchcram reads 1"),
        (lambda data: data.pop("model"), r"CramConfig needs 'layers', 'inputs', 'outputs'"),
        (lambda data: data.update(model=[1]), r"CramConfig = \[1\] is not possible; allowed: a mapping"),
        (lambda data: data["model"].update(depth=3), r"CramConfig has no field 'depth'; fields: layers, inputs"),
        (lambda data: data["model"]["episodic"].update(size=3), r"episodic has no field 'size'; fields: slots, heads"),
        (lambda data: data["model"]["episodic"].update(slots=-1), r"episodic.slots = -1 is not possible"),
        (
            lambda data: data["model"]["working"].update(time_unit=float("nan")),
            r"working.time_unit = nan is not possible",
        ),
        (lambda data: data["model"].update(outputs={}), r"outputs = \{\} is not possible; allowed: a list"),
    ],
    ids=[
        "a list",
        "another format",
        "newer version",
        "no version",
        "no model",
        "model a list",
        "unknown key",
        "unknown nested key",
        "impossible value",
        "NaN",
        "outputs no list",
    ],
)
def test_altered_config(change, message, folder):
    def keep(data):
        result = change(data)
        return result if isinstance(result, list) else data

    edit(folder, keep)
    with pytest.raises(ValueError, match=message):
        Cram.from_pretrained(folder)


def test_config_of_another_size(folder):
    edit(folder, lambda data: data["model"]["block"].update(width=64))
    with pytest.raises(ValueError, match=r"does not fit its config: .* has shape \(.*\), expected \(.*64.*\)"):
        Cram.from_pretrained(folder)


def test_config_of_another_depth(folder):
    edit(folder, lambda data: data["model"].update(layers=4))
    with pytest.raises(ValueError, match=r"does not fit its config: missing \['blocks.3.*\], unknown nothing"):
        Cram.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda weights: weights.pop("norm.weight"),
            r"does not fit its config: missing \['norm.weight'\], unknown nothing",
        ),
        (
            lambda weights: weights.update(extra=torch.zeros(1)),
            r"does not fit its config: missing nothing, unknown \['extra'\]",
        ),
        (
            lambda weights: weights.update({"norm.weight": torch.zeros(31)}),
            r"norm.weight has shape \(31,\), expected \(32,\)",
        ),
        (lambda weights: weights["norm.weight"][3].fill_(torch.nan), r"is damaged: norm.weight holds NaN or infinite"),
        (lambda weights: weights["norm.weight"][3].fill_(torch.inf), r"is damaged: norm.weight holds NaN or infinite"),
    ],
    ids=["missing", "unknown", "shape", "NaN", "infinite"],
)
def test_altered_weights(change, message, folder):
    edit_weights(folder, change)
    with pytest.raises(ValueError, match=message):
        Cram.from_pretrained(folder)


def test_nothing_is_unpickled(folder):
    torch.save({"a": 1}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors is damaged: "):
        Cram.from_pretrained(folder)
