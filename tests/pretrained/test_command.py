"""`torchcram probe`, from a file to a page."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.pretrained import files
from torchcram.cli import probe as command
from torchcram.cli.main import app
from torchcram.pretrained import redundancy
from torchcram.pretrained.load import load
from torchcram.pretrained.probes import LADDER
from torchcram.pretrained.text import Document
from torchcram.report import redundancy as report

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model, and texts of its letters."""
    made = tmp_path_factory.mktemp("model")
    tensors, told = files.llama_tensors(np.random.default_rng(0)), files.llama_metadata()
    (made / "small.gguf").write_bytes(files.gguf(told, tensors))
    rng = np.random.default_rng(1)
    for name, count in (("one.txt", 6), ("two.txt", 3)):
        documents = ["".join(rng.choice(list("abcdefgh"), 300)) for _ in range(count)]
        (made / name).write_text("\n<|endoftext|>\n".join(documents), encoding="utf-8")
    return made


def probe(folder, out, *words, model="small.gguf", text="one.txt"):
    given = ["probe", str(folder / model), "--text", str(folder / text), "--out", str(out), "--window", "16", *words]
    return CliRunner().invoke(app, given)


def untimed(rows):
    """All that is found, but for how long it took."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_model_is_probed_and_told_of(folder, tmp_path):
    done = probe(folder, tmp_path / "out", "--judge", str(folder / "two.txt"), "--tested-tokens", "200", "--steps", "1")
    assert done.exit_code == 0, done.output
    assert "small, on two.txt: a linear map of what goes into attention tells" in done.output.replace("\n", " ")
    assert "This text is too short to tell how sure the costs are." in done.output.replace("\n", " ")
    data = json.loads((tmp_path / "out" / "redundancy.json").read_text())
    rows = data["rows"]
    kinds = {row["what"] for row in rows}
    told = {"about", "first windows", "layer", "group", "heads", "head", "penalty", "loss", "one layer", "order"}
    assert kinds == told | {"one of a group", "layers", "copying"}
    about = rows[0]
    assert about["dtype"] == "float32"
    assert (about["window"], about["documents"]) == (16, 3)
    assert about["eval_tokens"] % 16 == 0
    assert about["learned_from"] == "one.txt"
    assert about["seconds"] > 0
    assert about["control_tokens"] == about["train_tokens"], "they are fewer than the most for it"
    assert "tokens of one.txt, judged on" in (tmp_path / "out" / "report.html").read_text()
    replaced = [row["replaced"] for row in rows if row["what"] == "copying" and row["predictor"] == "linear"]
    assert replaced == ["layer 0", "layer 1", "all layers"]
    assert {row["weights"] for row in rows if row["what"] == "layer"} == {"pretrained", "random"}
    assert {row["predictor"] for row in rows if row["what"] == "layer"} == set(LADDER)
    assert sum(row["what"] == "head" and row["weights"] == "pretrained" for row in rows) == 2 * 2 * 4  # two sets
    for row in rows:
        if row["what"] == "group":
            assert row["r2_low"] is None, "three documents give no interval"
        if row["what"] == "heads":
            assert row["high"] + row["middle"] + row["low"] == pytest.approx(1)
        if row["what"] in ("one layer", "layers"):
            assert row["recovered"] is None, "nor do they make a cost clear"
    page = (tmp_path / "out" / "report.html").read_text()
    assert page == report.page(data)
    for words in ("centred R²", "Copying", "R², random weights", "One layer without attention", "<svg", "layer"):
        assert words in page
    assert "<script src" not in page


def test_each_text_is_judged_on_by_itself(folder, tmp_path):
    (tmp_path / "three.txt").write_text((folder / "one.txt").read_text()[:200], encoding="utf-8")
    both = ["--judge", str(folder / "two.txt"), "--judge", str(tmp_path / "three.txt")]
    done = probe(folder, tmp_path / "both", *both, "--rank", "0")
    assert done.exit_code == 0, done.output
    one = probe(folder, tmp_path / "one", *both[:2], "--rank", "0")
    assert one.exit_code == 0, one.output
    rows, alone = (json.loads((tmp_path / x / "redundancy.json").read_text())["rows"] for x in ("both", "one"))
    assert untimed(row for row in rows if row["text"] == "two.txt") == untimed(alone)
    assert {row["model"] for row in rows} == {"small"}
    seconds = {row["text"]: row["seconds"] for row in rows if row["what"] == "about"}
    assert seconds["two.txt"] < seconds["three.txt"], "of all until then"
    kinds = {row["what"] for row in rows if row["text"] == "three.txt"}
    assert kinds >= {"about", "layer", "group", "loss", "one layer", "layers", "copying"}
    page = (tmp_path / "both" / "report.html").read_text()
    assert "<h1>small, on two.txt</h1>" in page
    assert "<h1>small, on three.txt</h1>" in page
    assert page.count("<h2>Layers</h2>") == 2
    (tmp_path / "two.txt").write_text("abc", encoding="utf-8")
    done = probe(folder, tmp_path / "same", "--judge", str(folder / "two.txt"), "--judge", str(tmp_path / "two.txt"))
    assert done.exit_code == 1
    assert "two files to judge on have the same name" in done.output.replace("\n", " ")


def test_the_ends_of_the_same_files_are_judged_on_by_default(folder, tmp_path):
    rng = np.random.default_rng(2)
    texts = ["".join(rng.choice(list("abcdefgh"), 100)) for _ in range(120)]
    (tmp_path / "many.txt").write_text("\n<|endoftext|>\n".join(texts), encoding="utf-8")
    done = probe(folder, tmp_path / "out", "--tested-tokens", "800", "--rank", "0", text=tmp_path / "many.txt")
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "out" / "redundancy.json").read_text())["rows"]
    assert rows[0]["documents"] == 12
    assert rows[0]["train_tokens"] > 8 * rows[0]["eval_tokens"]
    for row in rows:
        if row["what"] == "group" and row["predictor"] == "linear":
            assert row["r2_low"] <= row["r2"] <= row["r2_high"]
        if row["what"] == "one layer":
            assert row["cost_low"] <= row["cost"] <= row["cost_high"]


@pytest.mark.parametrize(("given", "count"), [("160", 160), ("1K", 1000), ("1k", 1000), ("2M", 2_000_000)])
def test_tokens_are_counted_in_thousands_and_millions(folder, tmp_path, monkeypatch, given, count):
    asked = {}
    monkeypatch.setattr(command, "run", lambda models, out, **told: asked.update(told))
    limits = ["--train-tokens", given, "--eval-tokens", given, "--tested-tokens", given]
    done = probe(folder, tmp_path / "out", *limits)
    assert done.exit_code == 0, done.output
    assert [asked[f"{name}_tokens"] for name in ("train", "eval", "tested")] == [count] * 3
    probe(folder, tmp_path / "out")
    assert [asked[f"{name}_tokens"] for name in ("train", "eval", "tested")] == [10_000_000, 500_000, 100_000]


@pytest.mark.parametrize("given", ["0", "0K", "-5", "1.5M", "M", "10G", "many", ""])
def test_what_is_no_number_of_tokens_is_told(folder, tmp_path, given):
    done = probe(folder, tmp_path / "out", "--train-tokens", given)
    assert done.exit_code == 2
    assert "is not a number of tokens, such as 500000, 500K or 10M" in " ".join(done.output.replace("│", "").split())
    assert not (tmp_path / "out").exists()


def test_nothing_is_both_learned_from_and_judged_on():
    documents = [Document(f"a.txt:{k}", f"a{k}") for k in range(1, 4)] + [Document("b.txt:1", "0123456789" * 2)]
    first, last = command._ends(documents)
    assert [(d.name, d.text) for d in first] == [
        ("a.txt:1", "a1"),
        ("a.txt:2", "a2"),
        ("b.txt:1", "012345678901234567"),
    ]
    assert [(d.name, d.text) for d in last] == [("a.txt:3", "a3"), ("b.txt:1", "89")]


def test_bad_input_is_told_and_nothing_written(folder, tmp_path, monkeypatch):
    (folder / "short.txt").write_text("abc", encoding="utf-8")
    (folder / "bad.gguf").write_bytes(b"GGUF" + bytes(20))
    out = tmp_path / "out"
    for words, message in (
        ({"text": "short.txt"}, "no text is as long as one window of 16 tokens"),
        ({"model": "none.gguf"}, "there is no file"),
        ({"model": "bad.gguf"}, "is of GGUF version 0"),
        ({"model": "one.txt"}, "is damaged, or not a llama2.c file"),
        ({"text": "none.txt"}, "torchcram: there is no text file"),
    ):
        done = probe(folder, out, **words)
        assert done.exit_code == 1
        assert message in done.output.replace("\n", " ")
    done = probe(folder, out, "--judge", str(folder / "one.txt"))
    assert "one.txt cannot both be learned from and judged on" in done.output.replace("\n", " ")
    done = probe(folder, out, "--window", "128")
    assert "--window 128 is more than the 64 positions that small has" in done.output.replace("\n", " ")

    assert not out.exists()


def test_a_place_where_nothing_can_be_written_is_told_before_anything_else(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "prepare", lambda *args, **kwargs: pytest.fail("it began"))
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "taken" / "report.html").mkdir(parents=True)
    for out, message in (
        ("file", "file is a file; choose another folder"),
        ("file/below", "file is a file; choose another folder"),
        ("taken", "report.html is a folder; choose another"),
    ):
        done = probe(folder, tmp_path / out)
        assert done.exit_code == 1
        assert message in done.output.replace("\n", " ")


def test_weights_that_are_finite_but_absurd_are_told_before_probes_learn(folder, tmp_path):
    tensors = files.llama_tensors(np.random.default_rng(0))
    tensors["output_norm.weight"] *= np.float32(1e30)
    (tmp_path / "bad.gguf").write_bytes(files.gguf(files.llama_metadata(), tensors))
    done = probe(folder, tmp_path / "out", model=tmp_path / "bad.gguf")
    assert done.exit_code == 1
    assert "bad predicts nothing: its loss on the end of one.txt is" in done.output.replace("\n", " ")
    assert "its weights may be damaged: get it again" in done.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_the_loss_of_the_model_itself_stands_beside_that_of_a_guess(folder, tmp_path):
    done = probe(folder, tmp_path / "out", "--tested-tokens", "64", "--rank", "0")
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "out" / "redundancy.json").read_text())["rows"]
    (first,) = [row for row in rows if row["what"] == "first windows"]
    loaded = load(folder / "small.gguf")
    kept = (folder / "one.txt").read_text().split("\n<|endoftext|>\n")[-1]
    tokens = torch.tensor(loaded.tokenizer.encode(kept))[: 16 * first["windows"]].view(-1, 16)
    with torch.no_grad():
        logits = loaded.model(tokens).logits[:, :-1]
    loss = float(torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:]))
    assert first["windows"] == 4, "as many as are tested, of the part that was kept apart"
    assert first["loss"] == pytest.approx(loss, abs=1e-4)
    assert rows[0]["vocabulary"] == 32
    said = done.output.replace("\n", " ")
    assert "nats a token, a guess 3.4657) on its first 4 windows of 16" in said
    (own,) = [row["loss"] for row in rows if row["what"] == "loss"]
    told = f"loss on this text is {own:.2f} nats a token; a uniform guess over its vocabulary costs 3.47."
    assert told in said
    assert told in (tmp_path / "out" / "report.html").read_text()
    assert f"the model hardly predicts this text: its loss is {own:.2f}, a guess costs 3.47" in said


def no_room(kind):
    """An error as it comes when memory is too little."""
    if kind == "cpu":
        torch.empty(1 << 55)
    raise torch.OutOfMemoryError("no room") if kind == "gpu" else MemoryError


@pytest.mark.parametrize("kind", ["cpu", "gpu", "numpy"])
def test_too_little_memory_is_told_with_the_way_out(folder, tmp_path, monkeypatch, kind):
    def full(*args, **kwargs):
        no_room(kind)
        yield

    with monkeypatch.context() as patch:
        patch.setattr(redundancy, "run", full)
        done = probe(folder, tmp_path / "out")
    assert done.exit_code == 1
    assert "cpu has too little memory for this; use a smaller --batch or --window" in done.output.replace("\n", " ")
    monkeypatch.setattr(command, "load", lambda *args, **kwargs: no_room(kind))
    done = probe(folder, tmp_path / "out")
    assert done.exit_code == 1
    assert "small.gguf; use --device cpu, or a smaller model" in done.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_other_errors_are_not_taken_for_too_little_memory(folder, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(command, "load", broken)
    assert isinstance(probe(folder, tmp_path / "out").exception, RuntimeError)


def test_a_model_may_compute_in_bfloat16(folder, tmp_path):
    done = probe(folder, tmp_path / "out", "--bf16", "--tested-tokens", "64", "--rank", "0")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "out" / "redundancy.json").read_text())["rows"][0]["dtype"] == "bfloat16"


def test_on_a_gpu_the_model_computes_in_whole_float32(folder, tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(command, "prepare", lambda device, **given: asked.update(given))
    probe(folder, tmp_path / "out", model="none.gguf")
    assert asked == {"tf32": False}


def test_precision_is_one_of_three(folder, tmp_path, monkeypatch):
    done = probe(folder, tmp_path / "out", "--bf16", "--tf32")
    assert done.exit_code == 1
    assert "--bf16 and --tf32 exclude each other" in done.output
    asked = {}
    monkeypatch.setattr(command, "prepare", lambda device, **given: asked.update(given))
    probe(folder, tmp_path / "out", "--tf32", model="none.gguf")
    assert asked == {"tf32": True}


def test_several_models_make_one_file(folder, tmp_path):
    (tmp_path / "other.gguf").write_bytes((folder / "small.gguf").read_bytes())
    words = ["--tested-tokens", "64", "--rank", "0", "--text", str(folder / "one.txt"), "--window", "16"]
    both = ["probe", str(folder / "small.gguf"), str(tmp_path / "other.gguf"), *words, "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, both)
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "out" / "redundancy.json").read_text())
    assert data["name"] == "redundancy-small-other"
    each = [[row | {"model": ""} for row in data["rows"] if row["model"] == name] for name in ("small", "other")]
    assert untimed(each[0]) == untimed(each[1]), "they are the same, and so is what is found of them"
    assert (tmp_path / "out" / "report.html").read_text().count("<h2>Layers</h2>") == 2
    done = CliRunner().invoke(app, [*both[:2], both[1], *both[3:]])
    assert done.exit_code == 1
    assert "two models are named small; results are told apart by it" in done.output.replace("\n", " ")
    rows = json.loads((tmp_path / "out" / "redundancy.json").read_text())["rows"]
    assert {row["model"] for row in rows} == {"small"}, "what was found before the mistake is kept"


def test_a_run_of_one_checkpoint_has_random_weights_beside_it_whatever_came_before(folder, tmp_path, monkeypatch):
    steps, controls = {"long": [0, 5], "short": [5]}, []
    small = load(folder / "small.gguf")
    monkeypatch.setattr(command, "_steps", lambda name, at: steps[name])
    monkeypatch.setattr(command, "load", lambda name, *, step, device: replace(small, name=name))
    measure = redundancy.run

    def run(loaded, train, judged, config, **given):
        controls.append((loaded.name, config.control_tokens > 0))
        return measure(loaded, train, judged, config, **given)

    monkeypatch.setattr(redundancy, "run", run)
    words = ["--text", str(folder / "one.txt"), "--out", str(tmp_path), "--window", "16", "--rank", "0"]
    done = CliRunner().invoke(app, ["probe", *steps, "--at", "all", "--tested-tokens", "64", *words])
    assert done.exit_code == 0, done.output
    assert controls == [("long", False), ("long", False), ("short", True)]


def test_the_beginning_of_a_text_is_told_as_it_is(folder, tmp_path):
    text = "abc ab " * 100
    (tmp_path / "titles.txt").write_text(" \n = A = \n" + text, encoding="utf-8")
    given = ["--judge", str(tmp_path / "titles.txt"), "--tested-tokens", "48", "--rank", "0"]
    done = probe(folder, tmp_path / "out", *given)
    assert done.exit_code == 0, done.output
    loaded = load(folder / "small.gguf")
    tokens = torch.tensor(loaded.tokenizer.encode((tmp_path / "titles.txt").read_text()))[: 3 * 16].view(3, 16)
    with torch.no_grad():
        logits = loaded.model(tokens).logits[:, :-1]
    loss = float(torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:]))
    (row,) = [
        row
        for row in json.loads((tmp_path / "out" / "redundancy.json").read_text())["rows"]
        if row["what"] == "first windows"
    ]
    assert row["windows"] == 3
    assert row["loss"] == pytest.approx(loss, abs=1e-4)
    assert f"titles.txt: perplexity {np.exp(loss):.2f}" in done.output.replace("\n", " ")


def test_thirds_of_layers_cover_all():
    for layers in (1, 2, 3, 5, 12, 30):
        groups = redundancy._groups(layers)
        places = list(range(layers))
        assert places[groups["overall"]] == places
        assert all(places[groups[name]] for name in ("early", "middle", "late"))
        if layers >= 3:
            assert [*places[groups["early"]], *places[groups["middle"]], *places[groups["late"]]] == places


@pytest.mark.parametrize("name", ["transformer", "cram"])
def test_a_model_that_was_trained_on_text_is_probed(folder, tmp_path, name):
    texts = [f"task.{key}={folder / file}" for key, file in (("train", "one.txt"), ("held_out", "two.txt"))]
    settings = [*texts, "steps=4", "save_every=2", "batch=2", "task.length=64", "evaluate_rows=2"]
    words = ["train", "text", "--model", name, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*words, *(word for each in settings for word in ("--set", each))])
    assert done.exit_code == 0, done.output
    words = ["probe", str(tmp_path / "run"), "--text", str(folder / "one.txt"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "--window", "32", "--eval-tokens", "320", "--tested-tokens", "64"])
    assert done.exit_code == 0, done.output
    about = json.loads((tmp_path / "out" / "redundancy.json").read_text())["rows"][0]
    assert about["note"] == f"{name}, 4 steps on text, by bytes"
    again = [*words[:-1], str(tmp_path / "both"), "--at", "2,4", "--window", "32", "--eval-tokens", "320"]
    few = ["--tested-tokens", "64", "--rank", "0"]
    done = CliRunner().invoke(app, [*again, *few])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "both" / "redundancy.json").read_text())["rows"]
    assert {row["step"] for row in rows} == {2, 4}
    assert "Over training" in (tmp_path / "both" / "report.html").read_text()
    reads = [row["reads"] for row in rows if row["what"] == "reads"]
    assert len(reads) == 2
    assert reads == [1, 1] or name == "cram"
    assert any(row["what"] == "copying" for row in rows) == (name == "transformer")
    done = CliRunner().invoke(
        app, [*again[:-6], "--at", "all", "--window", "32", "--tested-tokens", "64", "--rank", "0"]
    )
    assert done.exit_code == 0, done.output
    every = json.loads((tmp_path / "both" / "redundancy.json").read_text())
    assert every["name"] == "redundancy-training"
    assert {row["step"] for row in every["rows"]} == {0, 2, 4}
    assert {row["step"] for row in every["rows"] if row["what"] == "head"} == {4}, "the last is shown in full"
    assert not [row for row in every["rows"] if row.get("weights") == "random"], "step 0 has random weights"
    assert {row["control_tokens"] for row in every["rows"] if row["what"] == "about"} == {0}
    assert {row["kind"] for row in every["rows"] if row["what"] == "about"} == {name}
    assert [row["released"] for row in every["rows"] if row["what"] == "reads"] == [False] * 3
    assert load(tmp_path / "run", step=2).note == f"{name}, 2 steps on text, by bytes"
    done = CliRunner().invoke(app, [*again[:4], "--out", str(tmp_path / "never"), "--at", "4,3"])
    assert done.exit_code == 1
    assert "run has no checkpoint of step 3; there are: 0, 2, 4" in done.output.replace("\n", " ")
    assert not (tmp_path / "never").exists(), "it is told before any step is probed"
    done = CliRunner().invoke(app, [*again[:4], "--out", str(tmp_path / "ordered"), "--at", "4,2,4", *again[8:], *few])
    assert done.exit_code == 0, done.output
    assert untimed(json.loads((tmp_path / "ordered" / "redundancy.json").read_text())["rows"]) == untimed(rows)
    with pytest.raises(ValueError, match="has no checkpoint of step 3; there are: 0, 2, 4"):
        load(tmp_path / "run", step=3)
    with pytest.raises(ValueError, match="step = 3 is not possible; allowed: none but with the folder of a run"):
        load(folder / "small.gguf", step=3)
    (tmp_path / "run" / "config.json").write_text(
        (tmp_path / "run" / "config.json").read_text().replace('"task": "text"', '"task": "srcd"')
    )
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "only runs on text can be probed" in done.output.replace("\n", " ")
