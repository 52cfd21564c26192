"""A whole run as data: task, model, optimization, consolidation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchcram.config import BaselineConfig, CramConfig
from torchcram.consolidation.config import ConsolidationConfig
from torchcram.strict import StrictConfig, check_flag, check_integer, check_number, reject


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(StrictConfig):
    """AdamW with warm-up; the rate is held and, while settling, decays along a cosine."""

    rate: float = 1e-3
    """Peak learning rate."""
    semantic: float = 1.0
    """Rate of semantic memory relative to the others (the paper: 0.1)."""
    onlookers: float = 1.0
    """Rate of what learns about the model without shaping it (contradiction index, û), likewise."""
    beta1: float = 0.9
    beta2: float = 0.98
    decay: float = 0.01
    """Weight decay; none on norms, biases, decay rates, embeddings or the router."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    warm_up: int = 50
    """Steps over which the rate rises."""
    settle: float = 0.3
    """Share of the steps, at the end, in which the rate decays; 1 is the paper's cosine over all steps."""
    last: float = 0.02
    """Rate at the end, relative to the peak."""

    def __post_init__(self) -> None:
        check_number("optimizer.rate", self.rate, 0, open_low=True)
        check_number("optimizer.semantic", self.semantic, 0)
        check_number("optimizer.onlookers", self.onlookers, 0)
        check_number("optimizer.beta1", self.beta1, 0, 1)
        check_number("optimizer.beta2", self.beta2, 0, 1)
        check_number("optimizer.decay", self.decay, 0)
        check_number("optimizer.clip", self.clip, 0, open_low=True)
        check_integer("optimizer.warm_up", self.warm_up, 0)
        check_number("optimizer.settle", self.settle, 0, 1)
        check_number("optimizer.last", self.last, 0, 1)


@dataclass(frozen=True, kw_only=True)
class StartConfig(StrictConfig):
    """What a run begins with, besides random numbers."""

    run: str = ""
    """Folder of a run whose layers it begins with, by its newest checkpoint; inputs and heads are new. Empty: none."""
    frozen: tuple[str, ...] = ()
    """Parts of those layers that learn no more: modules of a layer by name (`semantic`, `router`, `quality`, …), or
    `layers`, all of them. Their parameters stay; running means, such as those of reads, go on."""

    def __post_init__(self) -> None:
        if not isinstance(self.run, str):
            reject("start.run", self.run, "the folder of a run, or nothing")
        if not isinstance(self.frozen, tuple) or not all(isinstance(part, str) for part in self.frozen):
            reject("start.frozen", self.frozen, "a list of names, such as ['semantic', 'router']")
        if self.frozen and not self.run:
            reject("start.frozen", self.frozen, "nothing without start.run: what is frozen must have been trained")


@dataclass(frozen=True, kw_only=True)
class RunConfig(StrictConfig):
    """Everything that decides a run."""

    task: str
    """Name of the task or variant."""
    model: CramConfig | BaselineConfig
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the task that differ from its defaults."""
    name: str = "cram"
    """Name of the model; for result files, as the next."""
    preset: str = ""
    """Name of the size the model came from."""
    steps: int = 1000
    batch: int = 16
    """B, sequences a step, over all processes."""
    seed: int = 0
    evaluate_every: int = 50
    """Steps between evaluations."""
    evaluate_rows: int = 64
    """Held-out sequences of an evaluation or a check."""
    save_every: int = 200
    """Steps between checkpoints."""
    keep: int = 3
    """Checkpoints kept, the last ones."""
    save_at: tuple[int, ...] = ()
    """Steps with a checkpoint that is kept besides, for looking at the model as it was."""
    bf16: bool = False
    """Run matrix products in bfloat16 (autocast); for GPUs."""
    compile: bool = False
    """Compile the layers (torch.compile): the first steps take minutes, the others less; for GPUs."""
    graphs: bool = True
    """On a GPU, record training steps as CUDA graphs and replay them: hosts are too slow for so many small kernels."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    consolidation: ConsolidationConfig = field(default_factory=ConsolidationConfig)
    start: StartConfig = field(default_factory=StartConfig)

    @property
    def index_rank(self) -> int:
        """Of the model's contradiction index; 0 without one."""
        return self.model.contradiction.rank if isinstance(self.model, CramConfig) else 0

    def __post_init__(self) -> None:
        utility, plain = self.consolidation.signal == "utility", self.consolidation.schedule == "plain"
        if isinstance(self.model, BaselineConfig):
            if not plain:
                reject("consolidation.schedule", self.consolidation.schedule, "'plain' for a model without a router")
        elif utility != (self.model.router.rule == "worth"):
            allowed = "'worth' with consolidation.signal='utility', and only then"
            reject("model.router.rule", self.model.router.rule, allowed)
        check_integer("steps", self.steps, 1)
        check_integer("batch", self.batch, 1)
        check_integer("seed", self.seed, 0)
        check_integer("evaluate_every", self.evaluate_every, 1)
        check_integer("evaluate_rows", self.evaluate_rows, 1)
        check_integer("save_every", self.save_every, 1)
        check_integer("keep", self.keep, 1)
        for step in self.save_at:
            check_integer("save_at", step, 0)
            if step > self.steps:
                reject("save_at", step, f"at most {self.steps}, the number of steps")
        check_flag("bf16", self.bf16)
        check_flag("compile", self.compile)
        check_flag("graphs", self.graphs)
