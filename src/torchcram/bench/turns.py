"""Benchmarks that run side by side, each a process: they build and compile together, but are timed one at a time.

Compiling takes minutes on one core each, and a timing takes seconds but must have the machine to itself.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

FILE = "TORCHCRAM_TURNS"
"""Environment variable: a file that all benchmarks of a machine lock. Without it nobody waits for anybody."""

_file: int | None = None


def take_part() -> None:
    """From now on nobody else is timed but while this process waits for its own turn, or after it has ended."""
    global _file
    if _file is None and (path := os.environ.get(FILE)):
        _file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(_file, fcntl.LOCK_SH)


@contextmanager
def alone() -> Iterator[None]:
    """Wait until every other process that takes part waits as well; while open, they go on waiting."""
    if _file is None:
        yield
        return
    # A lock that is exchanged for another is given up first, so processes that all wait do not block each other.
    fcntl.flock(_file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(_file, fcntl.LOCK_SH)
