"""Decoding: the Transformer that CRAM is compared with computes what its model does, and rows are complete."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from torchcram.bench.decode import CachedTransformer, run
from torchcram.bench.whole import Size
from torchcram.cli.main import app
from torchcram.models import baseline, build

SIZE = Size(preset="tiny", slots=8, vocabulary=32, bf16=False, compile=False)


@torch.no_grad()
def test_a_step_from_a_cache_is_what_the_model_predicts():
    torch.manual_seed(0)
    model = build(baseline("transformer", SIZE.cram())).eval()
    tokens = torch.randint(32, (3, 20))
    whole = model(tokens)
    before = model(tokens[:, :-1]).state
    cached = CachedTransformer(model, 3, 20)
    for layer, cache in zip(before.layers, cached.cache, strict=True):
        cache[0, :, :, :-1] = layer.cache.key.transpose(1, 2)
        cache[1, :, :, :-1] = layer.cache.value.transpose(1, 2)
    torch.testing.assert_close(cached.step(tokens[:, -1]), whole.predictions["tokens"][:, -1])
    assert cached.nbytes == 2 * 3 * 20 * 64 * 4 * 2


def test_rows_are_complete():
    rows = list(run([SIZE], [16, 40], [1, 2], "cpu", repeats=2))
    assert [(row["batch"], row["length"]) for row in rows] == [(1, 16), (1, 40), (2, 16), (2, 40)]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["baseline_ms"] / row["ours_ms"])
        assert row["tokens_per_second"] == pytest.approx(1000 * row["batch"] / row["ours_ms"])
        assert row["baseline_share_of_bandwidth"] > 0
    assert rows[0]["state_bytes"] == rows[1]["state_bytes"], "whatever the context"
    assert rows[1]["baseline_state_bytes"] == 2.5 * rows[0]["baseline_state_bytes"]


def test_as_many_read_as_are_wanted():
    (row,) = run([replace(SIZE, reads=0.2, vocabulary=512)], [64], [8], "cpu", repeats=60)
    assert row["reads"] == pytest.approx(0.2, abs=0.1)


def test_the_command_writes_a_result_file(tmp_path):
    words = ["--preset", "tiny", "--buffers", "4,8", "--device", "cpu", "--json", str(tmp_path / "d.json")]
    found = CliRunner().invoke(app, ["bench", "decode", "--lengths", "8", "--batches", "1", *words])
    assert found.exit_code == 0, found.output
    data = json.loads((tmp_path / "d.json").read_text(encoding="utf-8"))
    assert (data["name"], len(data["rows"])) == ("bench-decode", 2)
    assert [row["slots"] for row in data["rows"]] == [4, 8]
    found = CliRunner().invoke(app, ["bench", "decode", "--lengths", "8,x", *words])
    assert found.exit_code != 0
    assert "whole numbers from 1 on" in found.output
