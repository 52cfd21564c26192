"""What a claim is: a number or formula of the paper, where it stands, and what it is said to measure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Unit = Literal["share", "times", "number", "steps", "tokens", "parameters", "nats", "AUC", "formula", "words"]
"""`share` is 0..1 (the paper prints most in percent); `times` a ratio; what is a formula or a word has no values."""

_NUMBER = re.compile(r"(?<![\d.])-?\d+(?:\.\d+)?(?:e-?\d+)?([%KM]?)")
_FACTORS = {"": 1.0, "%": 0.01, "K": 1e3, "M": 1e6}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the paper says something, in its own words, without the marks of LaTeX."""

    section: str
    """`abstract`, a number such as `7.1`, a letter of an appendix, or `reproducibility`."""
    words: str
    item: str = ""
    """The table, figure, equation or theorem, such as `Table 1`."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that the paper prints, and everywhere it does so."""

    id: str
    printed: str
    """As printed, e.g. `37.8×`, `48–52%` or `0.77 ± 0.04`."""
    unit: Unit
    measures: str
    places: tuple[Place, ...]
    note: str = ""
    """What else in the paper says otherwise, or makes the number doubtful."""

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"{self.id}: unit = {self.unit!r} is not possible; allowed: {', '.join(get_args(Unit))}")
        if not self.places:
            raise ValueError(f"{self.id} stands nowhere")

    @property
    def values(self) -> tuple[float, ...]:
        """Its numbers, percentages as shares: both ends of a range, or a mean and its deviation."""
        if self.unit in ("formula", "words"):
            return ()
        # A range has its sign once: 48–52%.
        percent = "%" in self.printed
        return tuple(
            round(float(found.group().rstrip("%KM")) * _FACTORS["%" if percent else found[1]], 12)
            for found in _NUMBER.finditer(self.printed.replace("–", " "))
        )

    @property
    def value(self) -> float:
        """Its number, or the first of several."""
        if not self.values:
            raise ValueError(f"{self.id} is {self.unit}, not a number: {self.printed}")
        return self.values[0]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points that a figure plots."""

    id: str
    section: str
    item: str
    printed: str
    """`(x,y) (x,y) …`, as in the source of the figure."""
    x: str
    y: str
    measures: str
    note: str = ""

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """Its points, in the figure's units."""
        pairs = (pair.strip("()").split(",") for pair in self.printed.split())
        return tuple((float(x), float(y)) for x, y in pairs)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: what it is called here, its unit, and what it measures."""

    name: str
    unit: Unit
    measures: str


def table(
    subject: str,
    section: str,
    item: str,
    columns: Sequence[Column],
    rows: Mapping[str, str],
    notes: Mapping[str, str] | None = None,
) -> tuple[Claim, ...]:
    """A claim `subject/row/column` for each cell of a table that is not a dash.

    rows: The name of each here, and its line of cells as printed, `Mamba & 0.620 & 68.0% & …`.
    notes: By `row/column`, or by column for all of it.
    """
    notes = dict(notes or {})
    claims = []
    for row, line in rows.items():
        label, *cells = (cell.strip() for cell in line.split("&"))
        for column, cell in zip(columns, cells, strict=True):
            if cell == "–":
                continue
            name = f"{row}/{column.name}"
            claims.append(
                Claim(
                    id=f"{subject}/{name}",
                    printed=cell,
                    unit=column.unit,
                    measures=f"{column.measures}: {label}",
                    places=(Place(section=section, item=item, words=line),),
                    note=notes.get(name, notes.get(column.name, "")),
                )
            )
    return tuple(claims)
