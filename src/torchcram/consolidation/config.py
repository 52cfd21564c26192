"""The settings of consolidation. A user needs one of them: the tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchcram.strict import StrictConfig, check_choice, check_flag, check_integer, check_number, reject

Schedule = Literal["adaptive", "paper", "plain"]
Signal = Literal["quality", "utility", "paper"]


@dataclass(frozen=True, kw_only=True)
class ConsolidationConfig(StrictConfig):
    """How reads are given up."""

    tolerance: float = 0.01
    """How much worse than dense reading the model may be, in nats per scored position of each head."""
    schedule: Schedule = "adaptive"
    """`adaptive`: acquire, release on competence, hold the tolerance; `paper`: its constants from the first step;
    `plain`: nothing of the kind, for models that have no reads to give up, or their own way to."""
    signal: Signal = "quality"
    """What decides about reads: `quality` a router that is charged for reads and rewarded for good recall; `utility`
    what a read is thought to be worth, against its price (needs `router.rule = "worth"`); `paper` λ_E and λ_S."""
    paper_sum: bool = False
    """Read the paper's Σ_t as a sum over the tokens of a batch; else as a mean."""
    price: float = 0.05
    """The most a read may cost, in nats: reads worth less to the task are given up."""
    reward: float = 0.5
    """What a semantic recall of quality 1 earns, as a share of the price."""
    ramp: int = 200
    """Steps over which the price rises after release."""
    cooling: int | None = None
    """Steps over which the temperature falls: after release, or with `paper` from the first step on. None: as long as
    the price rises, or the paper's 3000."""
    release: int | None = None
    """The step at which the router begins to choose, whatever has been learned until then: for ablations. None: when
    the model is found competent."""
    audit: float = 0.03
    """Share of skipping tokens read all the same, to learn from."""
    trial: float = 0.1
    """With `utility`, in lessons: share of the reads of which a random part is used, to learn what they are worth."""
    lessons: int = 16
    """Steps from one lesson to the next, for a contradiction index and for û, once the ramp is over; until then every
    step is one."""
    skip: float = 0.1
    """Share of tokens that do not read while acquiring, so that reads are missed only where they matter."""
    temperature: float = 0.5
    """Of the routing gradient once the price has risen; it starts at 1."""
    check_every: int = 25
    """Steps between checks on held-out data, for release and for the tolerance."""
    patience: int = 3
    """Checks without growth of the reads' benefit before release."""
    benefit: float = 0.05
    """Nats per scored position that reads must be worth before they can be released."""
    consolidation: float = 0.5
    """Weight of L_cons (the paper's γ)."""
    quality: float = 1.0
    """Weight of the loss of q̂."""
    uncertainty: float = 0.1
    """Weight of working memory's prediction of its next input."""
    priority: float = 0.1
    """Weight of the loss of write priorities."""
    utility: float = 0.1
    """Weight of the loss of û, what reads are thought to be worth."""
    contradiction: float = 0.5
    """Weight of what the contradiction index learns from reads."""

    def __post_init__(self) -> None:
        check_number("consolidation.tolerance", self.tolerance, 0, open_low=True)
        check_choice("consolidation.schedule", self.schedule, Schedule)
        check_choice("consolidation.signal", self.signal, Signal)
        if (self.schedule == "paper") != (self.signal == "paper"):
            reject("consolidation.signal", self.signal, "'paper' with schedule='paper', and only then")
        check_flag("consolidation.paper_sum", self.paper_sum)
        check_number("consolidation.price", self.price, 0)
        check_number("consolidation.reward", self.reward, 0)
        check_integer("consolidation.ramp", self.ramp, 1)
        if self.cooling is not None:
            check_integer("consolidation.cooling", self.cooling, 1)
        if self.release is not None:
            check_integer("consolidation.release", self.release, 0)
            if self.schedule != "adaptive":
                reject("consolidation.release", self.release, "None but with schedule='adaptive'")
        check_number("consolidation.audit", self.audit, 0, 1)
        check_number("consolidation.trial", self.trial, 0, 0.9)
        check_integer("consolidation.lessons", self.lessons, 1)
        check_number("consolidation.skip", self.skip, 0, 0.9)
        check_number("consolidation.temperature", self.temperature, 0, 1, open_low=True)
        check_integer("consolidation.check_every", self.check_every, 1)
        check_integer("consolidation.patience", self.patience, 1)
        check_number("consolidation.benefit", self.benefit, 0)
        for name in ("consolidation", "quality", "uncertainty", "priority", "utility", "contradiction"):
            check_number(f"consolidation.{name}", getattr(self, name), 0)
