"""Whole models against each other, at small size: what is imposed is what runs, and both are the same size."""

import json

import pytest
import torch
from typer.testing import CliRunner

from torchcram import results
from torchcram.bench import whole
from torchcram.cli.main import app
from torchcram.cli.tables import show_and_write
from torchcram.models import Cram

SIZE = whole.Size(preset="tiny", tokens=96, slots=16, reads=0.25, vocabulary=32, bf16=False, compile=False)


@pytest.mark.parametrize("what", ["train", "prefill"])
def test_rows_are_complete(what):
    rows = list(whole.run(what, SIZE, [32, 128], "cpu", repeats=2))
    assert [(row["length"], row["batch"]) for row in rows] == [(32, 3), (128, 1)]
    for row in rows:
        assert row["baseline_parameters"] == pytest.approx(row["parameters"], rel=0.05)
        assert row["ratio"] == pytest.approx(row["baseline_ms"] / row["ours_ms"])
        assert row["audits"] == (0.03 if what == "train" else 0)


def test_as_many_read_as_are_wanted():
    model = Cram(SIZE.cram()).eval()
    policy = whole.imposed(SIZE, 4, 200, 2, torch.device("cpu"), training=False)
    out = model(torch.randint(32, (4, 200)), policy=policy)
    assert out.ledger().layer_reads == pytest.approx(0.25, abs=0.05)
    assert {int(action) for action in out.routing.unique()} == {1, 2}


def test_writes_do_not_drift():
    """Of M slots, the n-th of random events enters with the chance M / n."""
    model = Cram(SIZE.cram()).eval()
    policy = whole.imposed(SIZE, 32, 200, 2, torch.device("cpu"), training=False)
    out = model(torch.randint(32, (32, 200)), policy=policy)
    assert out.ledger().writes == pytest.approx(sum(min(1, 16 / n) for n in range(1, 201)) / 200, rel=0.03)


def test_a_step_trains_and_a_prefill_does_not():
    tokens = torch.randint(32, (2, 16))
    contender = whole.Contender(SIZE.cram(), SIZE, torch.device("cpu"))
    before = [p.clone() for p in contender.model.parameters()]
    contender.prefill(tokens, whole.RoutingPolicy())()
    assert all(torch.equal(a, b) for a, b in zip(before, contender.model.parameters(), strict=True))
    contender.train(tokens, whole.imposed(SIZE, 2, 16, 2, torch.device("cpu"), training=True))()
    assert not all(torch.equal(a, b) for a, b in zip(before, contender.model.parameters(), strict=True))


def test_the_command_writes_a_result_file(tmp_path):
    words = [
        "--preset",
        "tiny",
        "--tokens",
        "64",
        "--slots",
        "8",
        "--device",
        "cpu",
        "--json",
        str(tmp_path / "b.json"),
    ]
    found = CliRunner().invoke(app, ["bench", "train", "--lengths", "16,32", *words])
    assert found.exit_code == 0, found.output
    data = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    assert (data["name"], [row["length"] for row in data["rows"]]) == ("bench-train", [16, 32])
    assert CliRunner().invoke(app, ["bench", "prefill", "--lengths", "16;32", *words]).exit_code == 1


def test_what_was_found_is_there_if_the_rest_fails(tmp_path):
    def rows():
        yield {"what": "train", "length": 16, "ours_ms": 1.0}
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        show_and_write("bench-train", rows(), tmp_path / "b.json", "cpu")
    assert [row["length"] for row in results.read(tmp_path / "b.json")["rows"]] == [16]


def test_another_model_can_be_the_rival():
    (row,) = whole.run("train", SIZE, [32], "cpu", against="mamba", repeats=1)
    assert str(row["baseline"]).startswith("mamba")
    assert row["baseline_parameters"] == pytest.approx(row["parameters"], rel=0.05)
