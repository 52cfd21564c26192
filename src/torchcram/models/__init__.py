"""Whole models: input encoders, a stack of layers, heads."""

from torchcram.memory import CramState
from torchcram.models.baselines import Baseline, BaselineState
from torchcram.models.build import baseline, build, load, matched, parameters
from torchcram.models.cram import Cram, CramOutput
from torchcram.models.decoder import Decoder
from torchcram.models.generate import Generation
from torchcram.models.sequence import AnyModel, SequenceModel, SequenceOutput

__all__ = [
    "AnyModel",
    "Baseline",
    "BaselineState",
    "Cram",
    "CramOutput",
    "CramState",
    "Decoder",
    "Generation",
    "SequenceModel",
    "SequenceOutput",
    "baseline",
    "build",
    "load",
    "matched",
    "parameters",
]
