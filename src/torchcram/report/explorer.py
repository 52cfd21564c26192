"""The memory explorer: what a recorded run did with one sequence, as data for the page's script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torchcram.report.colours import ACTIONS, of_kind

Row = Mapping[str, Any]

NOTE = (
    "A real sequence that training never saw, and what the model did with it before, during and after consolidation. "
    "Choose a moment, then step along with the buttons or the arrow keys."
)


def section(explored: Row) -> str:
    """The place that `explorer.js` fills, with a table for paper and for pages without script."""
    found = data(explored)
    text = json.dumps(found, separators=(",", ":")).replace("<", "\\u003c")
    return f'<div class="explorer" id="explorer"><script type="application/json">{text}</script></div>{_still(found)}'


def data(explored: Row) -> dict[str, Any]:
    """What the script needs: the sequence, and for each moment the answers and what each layer did."""
    (sequence,) = _of(explored, "sequence")
    kinds = sequence["kinds"].split(",")
    kind = [int(digit) for digit in sequence["kind"]]
    targets = [int(word) for word in sequence["targets"].split()]
    answers = {row["step"]: [int(word) for word in row["answers"].split()] for row in _of(explored, "answer")}
    return {
        "kinds": [{"name": name, "colour": of_kind(name, i)} for i, name in enumerate(kinds)],
        "actions": ACTIONS,
        "kind": kind,
        "gaps": [float(word) for word in sequence["gaps"].split()],
        "targets": targets,
        "inputs": {
            name.removeprefix("input "): [int(word) for word in value.split()]
            for name, value in sequence.items()
            if name.startswith("input ")
        },
        "slots": sequence["slots"],
        "threshold": sequence["threshold"],
        "moments": [_moment(explored, step, kind, targets, answers[step]) for step in sorted(answers)],
    }


def _moment(explored: Row, step: int, kind: Sequence[int], targets: Sequence[int], answers: Sequence[int]) -> Row:
    rows = sorted((row for row in _of(explored, "layer") if row["step"] == step), key=lambda row: row["layer"])
    asked = [t for t, target in enumerate(targets) if target >= 0]
    reads = sum("1" in column for column in zip(*(row["actions"] for row in rows), strict=True))
    return {
        "step": step,
        "phase": rows[0]["phase"],
        "released": rows[0]["released"],
        "reads": reads,
        "asked": len(asked),
        "right": sum(answers[t] == targets[t] for t in asked),
        "answers": answers,
        "layers": [_layer(row) for row in rows],
    }


def _layer(row: Row) -> Row:
    return {
        "actions": row["actions"],
        "hits": row["hits"],
        "quality": [float(word) for word in row["quality"].split()],
        "reads": {t: _weights(found) for t, found in _by_position(row["reads"])},
        "evicted": {t: [int(i) for i in found.split(",")] for t, found in _by_position(row["evicted"])},
    }


def _by_position(text: str) -> list[tuple[int, str]]:
    """`t:… t:…` as pairs."""
    pairs = (word.split(":") for word in text.split())
    return [(int(t), found) for t, found in pairs]


def _weights(text: str) -> list[tuple[int, float]]:
    """`i=w,i=w` as pairs."""
    pairs = (each.split("=") for each in text.split(",") if each)
    return [(int(i), float(w)) for i, w in pairs]


def _still(found: Row) -> str:
    """One line a moment: what paper can show of it."""
    lines = "".join(
        f"<tr><th>step {moment['step']:,}, {escape(moment['phase'])}</th>"
        f"<td class=number>{moment['reads']} of {len(found['kind'])}</td>"
        f"<td class=number>{moment['right']} of {moment['asked']}</td></tr>"
        for moment in found["moments"]
    )
    return (
        '<div class="still"><table><thead><tr><th></th><th class=number>positions that read</th>'
        f"<th class=number>queries answered right</th></tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _of(explored: Row, what: str) -> list[Row]:
    return [row for row in explored["rows"] if row["what"] == what]
