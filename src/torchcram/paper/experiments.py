"""The experiments by name: each is a function of its own file that takes a scale and a folder and yields rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from torchcram.paper import phase, practice, theory
from torchcram.paper.scale import Scale
from torchcram.results import Row

EXPERIMENTS: Mapping[str, Callable[[Scale, Path], Iterator[Row]]] = {
    "theory": theory.run,
    "phase": phase.run,
    "practice": practice.run,
}
"""What they train goes to the folder; the calculators train nothing. Rows name the `claim` that they speak to."""
