"""Whole models: input encoders, a stack of layers, heads."""

from torchcram.memory import CramState
from torchcram.models.cram import Cram, CramOutput
from torchcram.models.generate import Generation

__all__ = ["Cram", "CramOutput", "CramState", "Generation"]
