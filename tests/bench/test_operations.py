"""Single operations are timed only if they are right."""

import json

import pytest
import torch
from typer.testing import CliRunner

from torchcram.bench import kernels
from torchcram.cli.main import app

SIZE = kernels.Size(tokens=128, heads=2, head=8, slots=8, reads=0.2, dtype=torch.float32, repeats=2)


def test_rows_are_complete():
    torch.manual_seed(0)
    rows = list(kernels.run(SIZE, [32, 200], "cpu"))
    both = [[f"{name}, forward", f"{name}, forward and backward"] for name in ("expert", "read")]
    whats = ["scan, forward", "scan, backward", *both[0], "expiry", *2 * both[1]]
    assert [row["what"] for row in rows] == 2 * whats
    assert [(row["length"], row["batch"]) for row in rows[:: len(whats)]] == [(32, 4), (200, 1)]
    bounded, unbounded = rows[5], rows[7]
    assert (bounded["slots"], unbounded["slots"]) == (8, "all")
    assert bounded["events"] < unbounded["events"] <= 32, "a small buffer has less to read from"
    assert all(row["ours_ms"] > 0 for row in rows)


def test_nothing_wrong_is_timed(monkeypatch):
    right = kernels.decay_scan
    monkeypatch.setattr(
        kernels, "decay_scan", lambda x, *rest: (right(x, *rest)[0] * (1 + 0.01 * (x.dtype == torch.float32)),)
    )
    with pytest.raises(RuntimeError, match=r"scan: result 0 is off by 1\.0e-02 from float64; nothing was timed"):
        next(kernels.run(SIZE, [32], "cpu"))


def test_the_command_writes_a_result_file(tmp_path):
    words = ["--lengths", "64", "--tokens", "128", "--device", "cpu", "--json", str(tmp_path / "k.json")]
    found = CliRunner().invoke(app, ["bench", "kernels", *words])
    assert found.exit_code == 0, found.output
    assert json.loads((tmp_path / "k.json").read_text(encoding="utf-8"))["name"] == "bench-kernels"
