"""What went wrong, in a line instead of a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def told() -> Iterator[None]:
    """Errors that a user can do something about end the command with a message: settings, files, disks, divergence.

    Use it as a decorator: `@told()`.
    """
    try:
        yield
    except (ValueError, OSError, FloatingPointError) as error:
        if not getattr(error, "told", False):
            print(f"torchcram: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
