"""Charts beside each other as one drawing of its own, for pages that cannot hold a script: README and docs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from torchcram.report import colours
from torchcram.report.chart import STYLE

ALONE = " "
"""For `line_chart(standalone=…)`: a chart that becomes a part of a drawing, which has the style."""


def beside(name: str, parts: Sequence[tuple[str, int]], height: int) -> str:
    """Charts with their widths, from left to right, in light and dark; `name` is for those who cannot see it."""
    style = f"{STYLE}\n{colours.drawing_rules(colours.LIGHT)}\n@media (prefers-color-scheme: dark){{\n"
    style += f"{colours.drawing_rules(colours.DARK)}\n}}"
    width = sum(each for _, each in parts)
    inside = "".join(
        _at(svg, sum(before for _, before in parts[:i]), each, height) for i, (svg, each) in enumerate(parts)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(name)}"><style>{style}</style>'
        f'<rect class="fill paper" width="{width}" height="{height}"/>{inside}</svg>'
    )


def _at(svg: str, x: int, width: int, height: int) -> str:
    """A drawing within another."""
    bare = re.sub(r'<style> </style>|<rect class="fill paper"[^>]*/>', "", svg)
    return re.sub(r"^<svg ", f'<svg x="{x}" width="{width}" height="{height}" ', bare)
