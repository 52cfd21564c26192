"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

_TIMES = {"K": 1_000, "M": 1_000_000}


def tokens(given: str | int) -> int:
    """A number of tokens, such as 500000, 500K or 10M; at least one."""
    text = str(given).strip().upper()
    unit = _TIMES.get(text[-1:], 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdecimal() or int(digits) < 1:
        raise typer.BadParameter(f"{given!r} is not a number of tokens, such as 500000, 500K or 10M")
    return int(digits) * unit


JsonFile = Annotated[Path | None, typer.Option("--json", help="Write a result file here; - prints it.")]
