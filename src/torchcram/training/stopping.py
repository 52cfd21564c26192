"""Ending in good order when told to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopping_signals(stop: Callable[[], None], words: str) -> Iterator[None]:
    """Call `stop` once when asked to end, and say so, if there are `words`. Asked a second time, it ends at once."""

    def note(_number: int, _frame: FrameType | None) -> None:
        if words:  # plainly: a signal may come in the middle of anything, an import or a print included
            os.write(2, f"\n{words}\n".encode())
        for other in before:
            signal.signal(other, before[other])
        stop()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
