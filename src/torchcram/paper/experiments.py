"""The experiments by name: what each calculates, what it trains for it, and the rows that come of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchcram.paper import (
    ablations,
    frontier,
    phase,
    phase_runs,
    practice,
    practice_runs,
    srcd,
    theory,
    theory_runs,
    transfer,
)
from torchcram.paper.runs import Trained, Wanted
from torchcram.paper.setup import Scale, Setup, Size
from torchcram.results import Row


def _nothing(_: Scale) -> Iterator[Row]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One subject of the paper. Rows name the `claim` that they speak to."""

    about: str
    calculate: Callable[[Scale], Iterator[Row]] = _nothing
    """Rows that need no training."""
    wanted: Callable[[Size], Sequence[Wanted]] = lambda _: ()
    """What it trains with nothing but what is made here."""
    staged: Callable[[Setup], Sequence[Sequence[Wanted]]] | None = None
    """All that it trains, in stages of which each may need the one before. None: `wanted`, at once."""
    look: Callable[[Setup, Mapping[str, Sequence[Trained]]], None] = lambda *_: None
    """Measure what needs the models themselves, of those runs that are there, and keep it beside them."""
    beside: Callable[[Setup, int, Callable[[], bool]], None] | None = None
    """What it trains other than as runs, beside the stage of that number, until the last argument says to stop."""
    last: Callable[[Setup], None] = lambda _: None
    """What else it trains when all its stages are done."""
    train: Callable[[Setup], Iterator[Row]] = lambda _: iter(())
    """Train, and tell what came of it."""
    data: tuple[str, ...] = ()
    """Data of others that it uses if it is given them, by name."""
    needs: tuple[str, ...] = ()
    """Those of them without which there is nothing to do."""

    def run(self, setup: Setup) -> Iterator[Row]:
        """All rows, those that are soon there first."""
        yield from self.calculate(setup.scale)
        yield from self.train(setup)

    def stages(self, setup: Setup) -> Sequence[Sequence[Wanted]]:
        """What it trains, one after the other."""
        return (self.wanted(setup.size),) if self.staged is None else self.staged(setup)

    def lacks(self, setup: Setup) -> str:
        """How to give what it needs and is not given; empty if that is nothing."""
        missing = [name for name in self.needs if name not in setup.data]
        return f"give {' '.join(f'--data {name}=PATH' for name in missing)}" if missing else ""

    def runs(self, size: Size) -> int:
        """How many models it trains; experiments share those that are the same."""
        return sum(each.seeds for each in self.wanted(size))


EXPERIMENTS: Mapping[str, Experiment] = {
    "srcd": Experiment(
        about="table 1: CRAM, with our recipe and the paper's, and four other systems on SRCD; attention over training",
        wanted=srcd.wanted,
        train=srcd.run,
    ),
    "ablations": Experiment(
        about="table 4, and the same without what we have added; other ranks and tolerances",
        wanted=ablations.wanted,
        look=ablations.look,
        train=ablations.run,
    ),
    "phase": Experiment(
        about="the appendix's equations; when reads of trained models fall, how suddenly, and what moves that",
        calculate=phase.calculate,
        wanted=phase_runs.wanted,
        train=phase_runs.run,
    ),
    "theory": Experiment(
        about="OPT, the bounds of theorems 1 to 3, and drawn and trained routers and memories to hold against them",
        calculate=theory.calculate,
        wanted=theory_runs.wanted,
        train=theory_runs.run,
    ),
    "practice": Experiment(
        about="the plotted points refitted; read decisions per pattern and exposure, of trained models",
        calculate=practice.calculate,
        wanted=practice_runs.wanted,
        train=practice_runs.run,
    ),
    "frontier": Experiment(
        about="quality against reads and against time on SRCD, of CRAM and others along what trades them",
        wanted=frontier.wanted,
        look=frontier.look,
        train=frontier.run,
    ),
    "transfer": Experiment(
        about="tables 2 and 3: attention on another task, with semantic memory and router as they were",
        wanted=transfer.wanted,
        staged=transfer.stages,
        beside=transfer.beside,
        last=transfer.last,
        train=transfer.run,
        data=("p12", "wearable", "activity", "mimic3"),
    ),
    "frontier-text": Experiment(
        about="the same as frontier on a text, with --data text=FILE and text-held-out=FILE",
        staged=frontier.stages_on_text,
        look=frontier.look,
        train=frontier.run_on_text,
        data=frontier.TEXT,
        needs=frontier.TEXT,
    ),
}
"""In the order of what matters most, if there is not time for all."""
