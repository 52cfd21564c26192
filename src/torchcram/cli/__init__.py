"""The `torchcram` command. Thin: every command imports what it needs when it runs."""
