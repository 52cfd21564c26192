"""`python -m torchcram` is the `torchcram` command."""

from torchcram.cli.main import app

app()
