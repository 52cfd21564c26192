"""Models that trade quality for attention by one setting each, and runs along it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from torchcram.paper.runs import Wanted
from torchcram.paper.setup import Size


@dataclass(frozen=True, kw_only=True)
class Dial:
    """A model and the setting that makes it read more or less."""

    changes: Mapping[str, str]
    setting: str
    usual: str
    """What it is set to if nothing is said."""
    others: tuple[str, ...]
    """In the order in which they are tried, as there is time."""

    def runs(self, name: str, size: Size, task: str = "srcd", given: tuple[str, ...] = ()) -> list[Wanted]:
        """At its usual setting, and at others."""
        places: chain[Mapping[str, str]] = chain([{}], ({self.setting: value} for value in size.others(*self.others)))
        return [
            Wanted(
                name=f"{name}, {self.setting}={place.get(self.setting, self.usual)}",
                task=task,
                changes={**self.changes, **place},
                given=given,
                seeds=size.seeds,
            )
            for place in places
        ]


PRICES = ("0.5", "0.01", "0.2")
"""Of a read, in nats, besides the usual one."""

DIALS: Mapping[str, Dial] = {
    "cram": Dial(changes={}, setting="consolidation.price", usual="0.05", others=PRICES),
    "gate": Dial(changes={"model": "gate"}, setting="consolidation.price", usual="0.05", others=PRICES),
    "semantic memory without L_cons": Dial(
        changes={"consolidation.consolidation": "0"}, setting="consolidation.price", usual="0.05", others=PRICES
    ),
    "seqboat+cost": Dial(
        changes={"model": "seqboat+cost"}, setting="model.cost", usual="0.05", others=("0.5", "0.005", "2.0")
    ),
    "mod": Dial(changes={"model": "mod"}, setting="model.capacity", usual="0.125", others=("0.05", "0.25", "0.5")),
    "entropy": Dial(
        changes={"model": "entropy"}, setting="model.deviations", usual="1.0", others=("2.0", "0.0", "-1.0")
    ),
}
"""By name. A price is in nats for each read, a cost in nats for a share of the positions, a capacity is that share, and
deviations say how unsure a token must be."""


TEXT_PRICES = ("0.01", "0.002")
"""The same on text, where all reads together are worth some hundredths of a nat for each byte."""
_RELEASED = 0.4  # of the steps


def wanted(names: tuple[str, ...], size: Size) -> dict[str, list[Wanted]]:
    """Runs along the dial of each model, on SRCD."""
    return {name: DIALS[name].runs(name, size) for name in names}


def on_text(names: tuple[str, ...], size: Size, given: tuple[str, ...]) -> dict[str, list[Wanted]]:
    """The same on text, at two other settings at most.

    Models with a price are released at a step: while a text is still learned, no model is found competent.
    """
    released = {"consolidation.release": str(round(_RELEASED * size.steps_on("text")))}
    found = {}
    for name in names:
        dial = DIALS[name]
        if dial.setting == "consolidation.price":
            dial = replace(dial, changes={**dial.changes, **released}, others=TEXT_PRICES)
        found[name] = replace(dial, others=dial.others[: len(TEXT_PRICES)]).runs(name, size, "text", given)
    return found
