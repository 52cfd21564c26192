"""Theorem 1 against trained routers: reads at each price beside the least that a static router is said to need."""

from __future__ import annotations

from collections.abc import Iterator

from torchcram.paper import prices
from torchcram.paper.bounds import attention_ratio
from torchcram.paper.routers import Outcome, Queries
from torchcram.paper.runs import Trained, Wanted, measured, train
from torchcram.paper.setup import Setup, Size
from torchcram.paper.theory import SRCD, against
from torchcram.results import Row

MODELS = ("gate", "semantic memory without L_cons", "cram")
"""The first two are static as the paper defines it: nothing but input and fixed weights decides about a read. The bound
holds where only a read can tell an answer, and their weights can learn the recurring ones by heart."""
_SOLVED = 0.99
_SHARES = ("0", "0.25", "0.5", "1")
"""Of the queries that recur, besides the usual one."""


def wanted(size: Size) -> list[Wanted]:
    """Each of the models at several prices; CRAM where other shares of the queries recur."""
    return [*(each for mine in prices.wanted(MODELS, size).values() for each in mine), *_shares(size)]


def _shares(size: Size) -> list[Wanted]:
    """Where there is time for one other value only, that of half of them."""
    chosen = _SHARES if size.values > 2 else _SHARES[2:3]
    return [Wanted(name=f"recurring={share}", changes={"task.recurring": share}, seeds=size.seeds) for share in chosen]


def run(setup: Setup) -> Iterator[Row]:
    """A row for each run along the price, whether a model is below the bound anywhere, and reads over what recurs."""
    curves = prices.wanted(MODELS, setup.size)
    trained = train(setup, wanted(setup.size))
    usual = curves["cram"][0]
    for each in (usual, *_shares(setup.size)):
        for found in trained[each.name]:
            yield measured(setup, {**_reduced(found), "model": "cram"})
    for model, places in curves.items():
        rows = [_row(each, setup.size.rows) for place in places for each in trained[place.name]]
        for row in rows:
            yield measured(setup, {**row, "model": model})
        solved = [row for row in rows if row["accuracy"] >= _SOLVED]  # type: ignore[operator]
        yield measured(
            setup,
            {
                "what": "below the static bound at any price",
                "claim": "theory/static-bound",
                "model": model,
                "runs": len(rows),
                "runs_below": sum(bool(row["below_guessing"]) for row in rows),
                "least_reads_of_solved": min((float(row["reads"]) for row in solved), default=None),  # type: ignore[arg-type]
                "opt": rows[0]["opt"],
            },
        )


def _row(run: Trained, rows: int) -> Row:
    """Reads of one run beside the bound at its own accuracy; below it only if by more than chance."""
    settings = run.config.settings
    length, values = int(run.row["length"]), int(settings.get("values", 64))
    found = Outcome(reads=run.row["reads"], accuracy=run.row["accuracy"])
    queries = Queries(share=run.row["static_bound"], values=values)
    return {
        "what": "reads at a price",
        "price": run.config.consolidation.price,
        "seed": run.seed,
        "accuracy": run.row["accuracy"],
        "accuracy_novel": run.row["accuracy_novel"],
        "opt": run.row["opt"],
        "released_at": run.released_at,
        **against(found, queries, found.error, rows * length),
    }


def _reduced(run: Trained) -> Row:
    """Reads of one run beside what theorem 3 allows: of a static router's, those for what does not recur."""
    recurring, static = float(run.config.settings.get("recurring", SRCD.recurring)), run.row["static_bound"]
    return {
        "what": "reads over the recurring share",
        "claim": "theory/reduction",
        "recurring": recurring,
        "seed": run.seed,
        "accuracy": run.row["accuracy"],
        "reads": run.row["reads"],
        "opt": run.row["opt"],
        "static_bound": static,
        "ratio": run.row["reads"] / static,
        "ratio_bound": attention_ratio(recurring, 1 - run.row["accuracy"]),
        "released_at": run.released_at,
    }
