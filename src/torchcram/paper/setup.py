"""What an experiment is run with: its scale, its folder, and how large its models are and how many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Scale = Literal["ci", "cpu", "gpu"]
"""`ci`: seconds to a few minutes on two CPU cores. `cpu`: what such a machine can do in hours. `gpu`: on one GPU. What
is calculated rather than trained is the same for the latter two."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large models are, and how many of each are trained."""

    preset: str
    shared: tuple[str, ...]
    """Settings of all runs, as `a.b=c`."""
    tasks: Mapping[str, tuple[str, ...]]
    """Settings of the runs on each task; of variants of SRCD, those of `srcd`."""
    steps: int
    evaluate_every: int
    """Steps between the points of a curve."""
    paper_steps: int
    """Of runs with the paper's own recipe, whose temperature falls over the first 30 % of them, as printed."""
    seeds: int
    """Runs of each setting."""
    main_seeds: int
    """The same, of the main result."""
    values: int
    """How many values of a setting that is swept, at most, its usual one included."""
    rows: int
    """Held-out sequences that a run is evaluated on."""
    draws: int
    """For intervals."""
    device: str = "cpu"
    workers: int = 2
    """Runs at a time."""
    telling: bool = True
    """Whether it is large enough for results to tell anything of a claim."""

    def settings(self, task: str) -> tuple[str, ...]:
        """Of all runs on a task."""
        common = f"steps={self.steps}", f"evaluate_every={self.evaluate_every}"
        return (*self.shared, *common, *self.tasks.get(task, self.tasks["srcd"]))

    def steps_on(self, task: str) -> int:
        """Of runs on a task, which may have fewer."""
        return int([each.removeprefix("steps=") for each in self.settings(task) if each.startswith("steps=")][-1])

    @property
    def papers(self) -> dict[str, str]:
        """What makes a run one with the paper's own recipe."""
        return {
            "schedule": "paper",
            "steps": str(self.paper_steps),
            "evaluate_every": str(self.evaluate_every * max(1, self.paper_steps // self.steps)),
            "consolidation.cooling": str(round(0.3 * self.paper_steps)),
        }

    def others(self, *values: str) -> tuple[str, ...]:
        """As many values of a setting besides its usual one as there is time for."""
        return values[: self.values - 1]


_DEMO = ("task.length=256", "task.novel_keys=512", "task.values=16")

SIZES: Mapping[Scale, Size] = {
    "ci": Size(
        preset="tiny",
        shared=(
            "model.block.width=32",
            "batch=16",
            "evaluate_rows=64",
            "save_every=1000",
            "consolidation.check_every=10",
            "consolidation.patience=2",
            "consolidation.ramp=40",
        ),
        tasks={
            "srcd": (
                "task.length=64",
                "task.queries=0.1",
                "task.patterns=10",
                "task.novel_keys=64",
                "task.values=4",
            ),
            "copying": ("task.length=64", "task.items=4", "task.vocabulary=8"),
            "associative": ("task.length=64", "task.pairs=4", "task.vocabulary=64"),
            "text": ("task.length=64",),
        },
        steps=320,
        evaluate_every=20,
        paper_steps=320,
        seeds=1,
        main_seeds=2,
        values=2,
        rows=128,
        draws=50,
        telling=False,
    ),
    "cpu": Size(
        preset="tiny",
        shared=("save_every=500",),
        tasks={
            "srcd": _DEMO,
            "copying": ("task.length=128", "task.items=8", "batch=32"),
            "associative": ("task.length=128", "task.pairs=8", "task.vocabulary=256", "batch=32"),
            "text": ("task.length=256",),
        },
        steps=1500,
        evaluate_every=25,
        paper_steps=1500,
        seeds=3,
        main_seeds=3,
        values=3,
        rows=512,
        draws=200,
    ),
    "gpu": Size(
        preset="small",
        shared=("model.layers=2", "save_every=100000", "keep=1"),
        tasks={
            "srcd": ("task.length=512", "task.novel_keys=1024", "task.values=32"),
            "copying": ("task.length=256", "task.items=16", "batch=32"),
            # All keys are asked for: with one answer a sequence, nothing is learned in so few steps.
            "associative": (
                "task.length=128",
                "task.pairs=16",
                "task.vocabulary=256",
                "task.last=false",
                "batch=64",
            ),
            "text": ("task.length=512", "batch=32", "steps=600", "evaluate_every=50"),
        },
        steps=1200,
        evaluate_every=20,
        paper_steps=2000,
        seeds=3,
        main_seeds=5,
        values=4,
        rows=1024,
        draws=400,
        device="cuda",
        workers=12,
    ),
}
"""`ci` proves that the commands run; `cpu` is the size of the demo; at `gpu` a run takes less than a minute, a dozen of
them at a time on one GPU. The paper's own recipe has 10,000 steps, here its schedules are as much shorter as it is:
its reads fall within the first hundreds of steps."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How an experiment is run."""

    scale: Scale
    out: Path
    """What it trains goes to `out/runs`, and is not trained again."""
    sized: Size | None = None
    """Other than the scale's own."""
    data: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders that cannot be made here, by name."""
    say: Callable[[str], None] = lambda _: None
    """Told of each run that is done."""

    @property
    def size(self) -> Size:
        """How large, and how many."""
        return self.sized or SIZES[self.scale]
