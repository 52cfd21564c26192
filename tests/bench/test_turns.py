"""Benchmarks side by side: one is timed while all others wait."""

import os
import subprocess
import sys
import time

import pytest

from torchcram.bench import turns

_CHILD = """
import sys, time
from torchcram.bench import turns
turns.take_part()
print("building", time.monotonic(), flush=True)
sys.stdin.readline()
print("built", time.monotonic(), flush=True)
with turns.alone():
    print("begin", time.monotonic(), flush=True)
    time.sleep(0.3)
    print("end", time.monotonic(), flush=True)
"""


def test_nobody_is_timed_while_another_builds_or_is_timed(tmp_path):
    where = {**os.environ, turns.FILE: str(tmp_path / "turns")}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD], env=where, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline().startswith("building")
    first, second = children
    first.stdin.write("\n")
    first.stdin.flush()
    time.sleep(0.2)
    second.stdin.write("\n")
    second.stdin.flush()
    told = [
        {name: float(at) for name, at in map(str.split, child.communicate(timeout=60)[0].splitlines())}
        for child in children
    ]
    assert min(each["begin"] for each in told) >= max(each["built"] for each in told)
    early, late = sorted(told, key=lambda each: each["begin"])
    assert late["begin"] >= early["end"]


def test_without_a_file_nobody_waits(monkeypatch):
    monkeypatch.delenv(turns.FILE, raising=False)
    turns.take_part()
    with turns.alone():
        pass
    assert turns._file is None


@pytest.fixture(autouse=True)
def _apart():
    yield
    assert turns._file is None, "tests take no part in what runs beside them"
