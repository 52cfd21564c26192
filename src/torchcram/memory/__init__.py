"""The three memories, the router that chooses between them, and the layer they make up."""

from torchcram.memory.block import Block, BlockOutput
from torchcram.memory.contradiction import ContradictionIndex, Guidance
from torchcram.memory.episodic import EpisodicMemory
from torchcram.memory.precision import Norm, narrow_for_good, narrowed, narrowly
from torchcram.memory.quality import QualityEstimator
from torchcram.memory.router import EPISODIC, NONE, SEMANTIC, Router, RoutingPolicy
from torchcram.memory.semantic import SemanticMemory
from torchcram.memory.state import BlockState, CramState, EpisodicState
from torchcram.memory.timeline import Timeline
from torchcram.memory.utility import WorthEstimator
from torchcram.memory.working import WorkingMemory

__all__ = [
    "EPISODIC",
    "NONE",
    "SEMANTIC",
    "Block",
    "BlockOutput",
    "BlockState",
    "ContradictionIndex",
    "CramState",
    "EpisodicMemory",
    "EpisodicState",
    "Guidance",
    "Norm",
    "QualityEstimator",
    "Router",
    "RoutingPolicy",
    "SemanticMemory",
    "Timeline",
    "WorkingMemory",
    "WorthEstimator",
    "narrow_for_good",
    "narrowed",
    "narrowly",
]
