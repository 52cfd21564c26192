"""Tasks: data, loss and metrics. They know no model."""

from torchcram.tasks.srcd import Srcd, SrcdConfig
from torchcram.tasks.task import Examples, Task

__all__ = ["Examples", "Srcd", "SrcdConfig", "Task"]
