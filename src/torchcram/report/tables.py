"""Tables: final numbers, settings, every evaluation, and what each number means."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from torchcram.report.runs import Entry, Run, item, number
from torchcram.report.words import (
    SPACE,
    Speed,
    duration,
    milliseconds,
    multiple,
    percent,
    plain,
    short,
    spread,
    times,
    warnings,
)

GLOSSARY = {
    "reads": "positions that read in at least one layer ÷ positions, at evaluation with audits off",
    "layer_reads": "the same for one layer, averaged over all layers: the paper's attention fraction",
    "pairs": "query-key pairs scored ÷ N(N+1)/2 a layer, everything executed included",
    "writes": "positions written to the episodic buffer ÷ positions",
    "audits": "reads executed only to learn from, on tokens that would have skipped; in training alone",
    "OPT": "the novel share of queries: the least reads for a model whose recurrent state holds no bindings",
    "static bound": "the share of all queries: the least reads for a router without any recall",
    "q": "how well semantic recall would reconstruct what a read returns, 0 to 1; at q* the router is indifferent",
    "price": "what a read costs in the training loss, in nats",
    "excess": "how much worse routed reading is than dense reading on held-out data, in nats per scored position",
}
_Column = tuple[str, Callable[[Run], float | None], Callable[[float | None], str]]


def _last(key: str) -> Callable[[Run], float | None]:
    return lambda run: number(run.last.get(key))


_COLUMNS: Sequence[_Column] = (
    ("accuracy", _last("accuracy"), percent),
    ("accuracy_recurring", _last("accuracy_recurring"), percent),
    ("accuracy_novel", _last("accuracy_novel"), percent),
    ("reads", _last("reads"), percent),
    ("× OPT", lambda run: multiple(run.last), plain),
    ("opt", _last("opt"), percent),
    ("static_bound", _last("static_bound"), percent),
    ("layer_reads", _last("layer_reads"), percent),
    ("pairs", _last("pairs"), percent),
    ("writes", _last("writes"), percent),
    ("audits", _last("audits"), percent),
    ("reads_training", _last("reads_training"), percent),
    ("dynamics_mse", _last("dynamics_mse"), short),
    ("dynamics_floor", _last("dynamics_floor"), short),
    ("mean quality q̄", _last("mean_quality"), plain),
    ("price, nats", _last("price"), short),
    ("excess, nats", _last("excess"), short),
    ("loss", _last("loss"), short),
    ("released_at", lambda run: None if run.released_at is None else float(run.released_at), lambda v: plain(v, 0)),
    ("steps", lambda run: float(run.step), lambda v: plain(v, 0)),
    ("time", _last("seconds"), duration),
    ("step, dense", lambda run: Speed.of(run).dense, milliseconds),
    ("step, settled", lambda run: Speed.of(run).settled, milliseconds),
    ("dense ÷ settled", lambda run: Speed.of(run).ratio, times),
)

_COMPARED = {
    "accuracy",
    "accuracy_recurring",
    "accuracy_novel",
    "reads",
    "× OPT",
    "layer_reads",
    "pairs",
    "dynamics_mse",
    "released_at",
    "steps",
    "time",
    "dense ÷ settled",
}
"""Columns of the table of several runs."""


def final(runs: Sequence[Run]) -> str:
    columns = [c for c in _COLUMNS if c[0] == "released_at" or any(c[1](run) is not None for run in runs)]
    if len(runs) == 1:
        kinds = [
            (f"reads of {kind}", percent(number(item(runs[0].last, "kind_reads", kind, 0)))) for kind in runs[0].kinds
        ]
        pairs = [(name, _cell(name, get(runs[0]), form)) for name, get, form in columns] + kinds
        rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
        return f'<dl class="numbers">{rows}</dl>'
    columns = [column for column in columns if column[0] in _COMPARED]
    names = (escape(name).replace("_", "_<wbr>") for name, _, _ in columns)
    head = "".join(f'<th class="number">{name}</th>' for name in names)
    rows = ""
    for run in runs:
        cells = "".join(f'<td class="number">{escape(_cell(name, get(run), form))}</td>' for name, get, form in columns)
        failed = ' class="failed"' if warnings(run) else ""
        seed = escape(str(run.setting("seed", "–")))
        rows += f'<tr{failed}><th scope="row">{escape(run.name)}</th><td class="number">{seed}</td>{cells}</tr>'
    total = "".join(
        f'<td class="number">{_mean(spread([get(run) for run in runs]), form)}</td>' for _, get, form in columns
    )
    return (
        f'<div class="scroll"><table><thead><tr><th>run</th><th class="number">seed</th>{head}</tr></thead>'
        f'<tbody>{rows}<tr class="total"><th scope="row">mean ± spread</th><td></td>{total}</tr></tbody></table></div>'
    )


def _cell(name: str, value: float | None, form: Callable[[float | None], str]) -> str:
    return "never" if name == "released_at" and value is None else form(value)


def _mean(found: tuple[float, float] | None, form: Callable[[float | None], str]) -> str:
    return "–" if found is None else f"{escape(form(found[0]))}<br>±{SPACE}{escape(form(found[1]))}"


def settings(runs: Sequence[Run]) -> str:
    flat = [_flatten(run.config) for run in runs]
    names = list(dict.fromkeys(name for one in flat for name in one))
    rows = ""
    for name in names:
        values = [one.get(name, "–") for one in flat]
        shown = values[0] if len(set(values)) == 1 else ", ".join(values)
        rows += f"<div><dt>{escape(name)}</dt><dd>{escape(shown)}</dd></div>"
    return f'<dl class="numbers">{rows}</dl>'


def _flatten(config: Mapping[str, Any], where: str = "") -> dict[str, str]:
    out: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            out.update(_flatten(value, f"{where}{key}."))
        else:
            out[f"{where}{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return out


def worth(run: Run) -> str:
    """Nats that reads gained, and that others would have gained: a row a kind, a column a layer."""
    layers = len(item(run.last, "worth", "per_read", run.kinds[0]) or []) if run.kinds else 0
    head = "".join(
        f'<th class="number">{what}, layer {i + 1}</th>' for what in ("made", "not made") for i in range(layers)
    )
    rows = ""
    for kind in run.kinds:
        found = [item(run.last, "worth", key, kind, i) for key in ("per_read", "per_skip") for i in range(layers)]
        cells = "".join(f'<td class="number">{escape(short(number(value)))}</td>' for value in found)
        rows += f'<tr><th scope="row">{escape(kind)}</th>{cells}</tr>'
    top = f"<tr><th>nats a read</th>{head}</tr>"
    return f'<div class="scroll"><table><thead>{top}</thead><tbody>{rows}</tbody></table></div>'


def glossary() -> str:
    rows = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in GLOSSARY.items()
    )
    return f'<div class="scroll"><table>{rows}</table></div>'


def evaluations(run: Run) -> str:
    columns: list[tuple[str, Callable[[Entry], str]]] = [
        ("step", lambda e: f"{e['step']:,}"),
        ("phase", lambda e: str(e.get("phase", "–"))),
        ("loss", lambda e: short(number(e.get("loss")))),
        ("novel", lambda e: percent(number(e.get("accuracy_novel")))),
        ("recurring", lambda e: percent(number(e.get("accuracy_recurring")))),
        ("reads", lambda e: percent(number(e.get("reads")))),
        ("layer_reads", lambda e: percent(number(e.get("layer_reads")))),
        ("pairs", lambda e: percent(number(e.get("pairs")))),
        ("dynamics_mse", lambda e: short(number(e.get("dynamics_mse")))),
        ("q̄", lambda e: plain(number(e.get("mean_quality")))),
        ("price", lambda e: short(number(e.get("price")))),
        ("excess", lambda e: short(number(e.get("excess")))),
        ("a step", lambda e: milliseconds(number(e.get("step_seconds")))),
    ]
    head = "".join(f'<th class="number">{escape(name)}</th>' for name, _ in columns)
    rows = "".join(
        "<tr>" + "".join(f'<td class="number">{escape(get(entry))}</td>' for _, get in columns) + "</tr>"
        for entry in run.entries
    )
    return (
        f"<details><summary>All {len(run.entries)} evaluations of {escape(run.name)}</summary>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )
