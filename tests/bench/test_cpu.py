"""The CPU benchmark at small size: rows are complete, and a wrong result is never timed."""

import pytest
import torch

from torchcram.bench import cpu
from torchcram.bench.timing import compare, shared_out
from torchcram.ops.read import fast


def test_compare_runs_both_and_divides():
    calls = []
    row = compare(
        "x", lambda: calls.append("ours"), lambda: calls.append("base"), against="y", length=1, repeats=4, warm_up=1
    )
    assert calls == ["ours", "base"] * 5
    assert row["ratio"] == pytest.approx(row["baseline_ms"] / row["ours_ms"])


def test_what_was_done_several_times_in_a_row_is_told_for_one_time():
    row = shared_out({"ours_ms": 8.0, "baseline_ms": 30.0, "ratio": 3.75, "what": "x"}, 4, 1)
    assert row == {"ours_ms": 2.0, "baseline_ms": 30.0, "ratio": 15.0, "what": "x"}


def test_gathered_read_rows():
    torch.manual_seed(0)
    rows = list(cpu.gathered_read(length=128, heads=2, size=8, share=0.1))
    assert [row["what"] for row in rows] == ["gathered read, forward", "gathered read, forward and backward"]
    assert all(row["rows"] == 13 and row["ratio"] > 0 for row in rows)


def test_a_wrong_read_is_not_timed(monkeypatch):
    torch.manual_seed(0)
    right = fast._weights
    monkeypatch.setattr(fast, "_weights", lambda q, *rest: right(q * 1.01, *rest))
    with pytest.raises(RuntimeError, match="nothing was timed"):
        list(cpu.gathered_read(length=64, heads=2, size=8, share=0.2))


def test_working_memory_rows():
    torch.manual_seed(0)
    assert [row["batch"] for row in cpu.working_memory(length=16, width=8)] == [1, 16]


def test_long_stream_reports_memory_and_state():
    row = cpu.long_stream(length=640, chunk=64)
    assert row["resident_first_ten"] > 0
    assert row["state_bytes"] > 512 * 128 * 2 * 4 * 4  # keys and values of 512 slots in 4 layers, float32
