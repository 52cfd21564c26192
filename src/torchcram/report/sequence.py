"""One real sequence, coloured by what each token is and by what each layer did there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from itertools import groupby

from torchcram.report.colours import ACTIONS, of_kind
from torchcram.report.runs import Entry, Run, item, moments

LINE = 64  # positions of a strip
_GAP = 0.35  # between the kinds and the layers, in rows


def section(run: Run) -> str:
    """The picture with a slider over all evaluations, and a few of them to print; empty if none was recorded."""
    entries = [entry for entry in run.entries if _sample(entry)]
    if not entries:
        return ""
    kind, _ = _sample(entries[-1]) or ("", [])
    entries = [entry for entry in entries if (_sample(entry) or ("", []))[0] == kind]
    told = [(label, entry) for label, entry in moments(run) if entry in entries]
    data = {
        "line": LINE,
        "gap": _GAP,
        "actions": [(_sample(entry) or ("", []))[1] for entry in entries],
        "words": [_words(entry) for entry in entries],
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    steps = [entry["step"] for entry in entries]
    buttons = "".join(
        f'<button type="button" data-to="{steps.index(entry["step"])}">{escape(label)}</button>'
        for label, entry in told
    )
    live = (
        f'<div class="live"><div class="controls"><button type="button" class="play" aria-label="play">▶</button>'
        f'<input type="range" min="0" max="{len(entries) - 1}" value="{len(entries) - 1}" aria-label="evaluation">'
        f"{buttons}</div><p class='words'>{escape(_words(entries[-1]))}</p>{_strips(run, entries[-1])}"
        f'<script type="application/json">{text}</script></div>'
    )
    still = "".join(f"<h4>{escape(label)}: {escape(_words(entry))}</h4>{_strips(run, entry)}" for label, entry in told)
    return f'{_legend(run)}{live}<div class="still">{still}</div>'


def reading(entry: Entry) -> tuple[int, int] | None:
    """How many positions of the sample read in any layer, of how many."""
    sample = _sample(entry)
    if sample is None:
        return None
    kind, actions = sample
    return sum("1" in column for column in zip(*actions, strict=True)), len(kind)


def cells(digits: str, row: float) -> dict[str, str]:
    """For each digit that occurs, an SVG path of unit cells in a row, neighbours merged."""
    paths: dict[str, str] = {}
    begin = 0
    for digit, group in groupby(digits):
        size = len(list(group))
        paths[digit] = paths.get(digit, "") + f"M{begin} {row:g}h{size}v1h-{size}z"
        begin += size
    return paths


def _sample(entry: Entry) -> tuple[str, list[str]] | None:
    """Kinds and the layers' actions, if they are what they should be: digits, as many in each."""
    kind, actions = item(entry, "sample", "kind"), item(entry, "sample", "actions")
    if not isinstance(kind, str) or not isinstance(actions, list) or not kind or not actions:
        return None
    rows = [kind, *actions]
    if all(isinstance(row, str) and row.isascii() and row.isdigit() and len(row) == len(kind) for row in rows):
        return kind, actions
    return None


def _words(entry: Entry) -> str:
    reads, of = reading(entry) or (0, 0)
    return f"step {entry['step']:,} ({entry.get('phase', '?')}): {reads} of {of} positions read"


def _strips(run: Run, entry: Entry) -> str:
    kind, actions = _sample(entry) or ("", [])
    names = "".join(f"<span>{name}</span>" for name in ["kind", *(f"layer {i + 1}" for i in range(len(actions)))])
    strips = "".join(
        f'<div class="strip"><div class="names">{names}</div>{_strip(run, kind, actions, begin)}'
        f"<small>{begin + 1}–{min(begin + LINE, len(kind))}</small></div>"
        for begin in range(0, len(kind), LINE)
    )
    return f'<div class="strips">{strips}</div>'


def _strip(run: Run, kind: str, actions: Sequence[str], begin: int) -> str:
    part = slice(begin, begin + LINE)
    out = [
        f'<path class="fill {_kind_colour(run, digit)}" d="{path}"/>' for digit, path in cells(kind[part], 0).items()
    ]
    for digit in range(len(ACTIONS)):
        path = "".join(cells(row[part], 1 + _GAP + i).get(str(digit), "") for i, row in enumerate(actions))
        out.append(f'<path class="fill action{digit}" data-action="{digit}" d="{path}"/>')
    tall = 1 + _GAP + len(actions)
    return (
        f'<svg viewBox="0 0 {LINE} {tall:g}" preserveAspectRatio="none" style="height:{tall * 11:.0f}px" role="img" '
        f'aria-label="actions at positions {begin + 1} and after">{"".join(out)}</svg>'
    )


def _kind_colour(run: Run, digit: str) -> str:
    index = int(digit)
    return _shade(run.kinds[index], index) if index < len(run.kinds) else "faint"


def _shade(kind: str, index: int) -> str:
    """The kind's colour; the first kind is the ground that the others stand on."""
    return of_kind(kind, index) + (" pale" if index == 0 else "")


def _legend(run: Run) -> str:
    def keys(title: str, names: Sequence[tuple[str, str]]) -> str:
        shown = "".join(
            f'<span><svg viewBox="0 0 1 1"><path class="fill {colour}" d="M0 0h1v1h-1z"/></svg>{escape(name)}</span>'
            for colour, name in names
        )
        return f'<p class="legend"><b>{title}</b>{shown}</p>'

    kinds = [(_shade(kind, i), kind) for i, kind in enumerate(run.kinds)]
    actions = [(f"action{digit}", name) for digit, name in enumerate(ACTIONS)]
    return keys("what a token is", kinds) + keys("what a layer does there", actions)
