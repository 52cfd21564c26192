"""A size below that of `ci`, with which experiments take seconds, and rows that every experiment must have."""

from torchcram.paper.claims import CLAIMS
from torchcram.paper.runs import CAVEAT
from torchcram.paper.setup import Setup, Size

TRY = Size(
    preset="tiny",
    shared=(
        "model.block.width=32",
        "batch=2",
        "evaluate_rows=4",
        "consolidation.check_every=2",
    ),
    tasks={
        "srcd": ("task.length=32", "task.queries=0.2", "task.patterns=3", "task.novel_keys=16", "task.values=4"),
        "copying": ("task.length=16", "task.items=2", "task.vocabulary=6"),
        "associative": ("task.length=16", "task.pairs=2", "task.vocabulary=16"),
        "text": ("task.length=16",),
    },
    steps=6,
    evaluate_every=1,
    paper_steps=6,
    seeds=1,
    main_seeds=1,
    values=2,
    rows=4,
    draws=5,
    telling=False,
)


def trying(out, **changes):
    return Setup(scale="ci", out=out, sized=TRY, **changes)


def check(rows):
    """Every row names a claim that there is, and says that its size proves nothing."""
    assert rows
    for row in rows:
        assert row["claim"] in CLAIMS, row
        assert row["scale"] == "ci"
        assert row["caveat"] == CAVEAT
        assert all(value is None or isinstance(value, str | int | float | bool) for value in row.values()), row
