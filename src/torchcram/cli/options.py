"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write a result file here; - prints it.")]
