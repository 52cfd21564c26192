"""The next byte of a text."""

import json
import lzma
import math

import pytest
import torch
from typer.testing import CliRunner

from torchcram import tasks
from torchcram.cli.main import app
from torchcram.tasks import HELD_OUT


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "train.txt.xz").write_bytes(lzma.compress(b"the cat sat on the mat. " * 200))
    (tmp_path / "held.txt").write_bytes("Zoë saw 3 dogs; ".encode() * 50)
    return {"train": str(tmp_path / "train.txt.xz"), "held_out": str(tmp_path / "held.txt")}


def test_passages_are_of_the_right_file_and_targets_the_next_byte(texts):
    task = tasks.make("text", **texts, length=40)
    for seed, whole in ((3, b"the cat sat on the mat. " * 200), (3 + HELD_OUT, "Zoë saw 3 dogs; ".encode() * 50)):
        examples = task.batch(seed=seed, step=5, rows=range(4, 12))
        tokens, target = examples.inputs["token"], examples.targets["token"]
        assert tokens.shape == target.shape == (8, 40)
        assert torch.equal(tokens[:, 1:], target[:, :-1])
        assert all(bytes(row.tolist()) in whole for row in tokens)
        assert len({bytes(row.tolist()) for row in tokens}) > 1
        again = task.batch(seed=seed, step=5, rows=range(5, 6))
        assert torch.equal(again.inputs["token"][0], tokens[1])


def test_kinds_are_those_of_what_comes_next(texts):
    task = tasks.make("text", **texts, length=40)
    examples = task.batch(seed=HELD_OUT, step=0, rows=range(1))
    text = bytes([*examples.inputs["token"][0].tolist(), examples.targets["token"][0, -1].item()])
    for place in range(40):
        before, after = (byte >= 128 or chr(byte).isalpha() for byte in text[place : place + 2])
        expected = "parts" if not after else "inside" if before else "first"
        assert task.kinds[examples.kind[0, place]] == expected


def test_loss_and_metrics(texts):
    task = tasks.make("text", **texts, length=40)
    examples = task.batch(seed=0, step=0, rows=range(3))
    even = {"token": torch.zeros(3, 40, 256)}
    assert float(task.losses(even, examples)["token"]) == pytest.approx(math.log(256))
    counts = {name: float(value) for name, value in task.counts(even, examples).items()}
    assert task.metrics(counts)["bits_per_byte"] == pytest.approx(8, rel=1e-5)
    sure = {"token": 100 * torch.nn.functional.one_hot(examples.targets["token"], 256).float()}
    counts = {name: float(value) for name, value in task.counts(sure, examples).items()}
    assert task.metrics(counts)["accuracy"] == 1
    assert int(task.scored(examples)["token"]) == int(task.asked(examples).sum()) == 120


def test_bad_files_are_told(texts, tmp_path):
    with pytest.raises(ValueError, match=r"task.held_out = .*none.txt': there is no such file; give a text file"):
        tasks.make("text", train=texts["train"], held_out=str(tmp_path / "none.txt"))
    with pytest.raises(
        ValueError, match=r"task.train = '' is not possible; allowed: a text file: --set task.train=FILE"
    ):
        tasks.make("text")
    (tmp_path / "short.txt").write_bytes(b"abc")
    with pytest.raises(ValueError, match=r"short.txt has fewer than the 41 bytes"):
        tasks.make("text", train=texts["train"], held_out=str(tmp_path / "short.txt"), length=40)
    (tmp_path / "bad.txt.xz").write_bytes(b"abc" * 100)
    with pytest.raises(ValueError, match=r"bad.txt.xz is damaged"):
        tasks.make("text", train=str(tmp_path / "bad.txt.xz"), held_out=texts["held_out"])


@pytest.mark.parametrize("model", ["cram", "transformer"])
def test_a_model_is_trained_on_text_and_reported(texts, tmp_path, model):
    out = tmp_path / "run"
    words = ["train", "text", "--model", model, "--out", str(out), "--set", "steps=30", "--set", "batch=4"]
    words += ["--set", "task.length=64", "--set", "evaluate_every=10", "--set", "evaluate_rows=4"]
    words += [word for name, path in texts.items() for word in ("--set", f"task.{name}={path}")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = CliRunner().invoke(app, ["evaluate", str(out), "--rows", "4", "--json", "-"])
    row = json.loads(found.stdout)["rows"][0]
    assert 0 < row["bits_per_byte"] < 8
    report = CliRunner().invoke(app, ["report", str(out), "--out", str(tmp_path / "report.html")])
    assert report.exit_code == 0, report.output
    assert "first" in (tmp_path / "report.html").read_text()
