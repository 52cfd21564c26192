"""The page: sections of HTML around the charts. Whatever comes from files is escaped."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from torchcram.report import chart, charts, colours, sequence, tables
from torchcram.report.html import document, section
from torchcram.report.runs import Run, item, moments, number, typical
from torchcram.report.words import (
    SPACE,
    Speed,
    duration,
    multiple,
    percent,
    plain,
    short,
    times,
    trained,
    verdict,
    warnings,
)


def page(runs: Sequence[Run]) -> str:
    """One self-contained HTML page about one or several runs."""
    shown = next((run for run in runs if run.released_at is not None), runs[0])
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    body = [
        _header(runs),
        _reads(runs),
        _small(runs),
        _sequence(runs, shown),
        _quality(runs, shown),
        _worth(runs, shown),
        section("Final numbers", _note_on_final(runs), tables.final(runs)),
        section("Settings", _note_on_settings(runs), tables.settings(runs)),
        section("What the numbers mean", "", tables.glossary()),
        *(tables.evaluations(run) for run in runs),
    ]
    return document(f"{title}: torchcram report", body)


def _header(runs: Sequence[Run]) -> str:
    run = runs[0]
    many = len(runs) > 1
    told = _verdict_of_all(runs) if many else verdict(run)
    names = ", ".join(one.name for one in runs)
    loud = [f"{one.name}: {text}" if many else text for one in runs for text in warnings(one)]
    boxes = "".join(f'<p class="warning" role="alert">{escape(text)}</p>' for text in loud)
    return (
        f'<header><p class="kicker">torchcram report · {escape(names)}</p><h1>{escape(told)}</h1>'
        f'<p class="lead">{escape(trained(run))} {escape(_audits(run))}</p>{boxes}{_figures(runs)}</header>'
    )


def _verdict_of_all(runs: Sequence[Run]) -> str:
    released = [run for run in runs if run.released_at is not None]
    if not released and all(run.plain for run in runs):
        return f"{len(runs)} runs of models that give up no reads in training."
    if not released:
        return f"None of {len(runs)} runs was released: all still read everywhere."
    reads = [r for run in released if (r := number(run.last.get("reads"))) is not None]
    opts = [o for run in released if (o := number(run.last.get("opt"))) is not None]
    low, high = (percent(f(reads, default=0.0)) for f in (min, max))
    which = f"in all {len(runs)} runs" if len(released) == len(runs) else f"in {len(released)} of {len(runs)} runs"
    least = f"; the least possible is {percent(statistics.fmean(opts))}" if opts else ""
    span = low if low == high else f"between {low} and {high}"
    return f"Attention fell to {span} of the positions {which}{least}."


def _audits(run: Run) -> str:
    share = number(run.setting("consolidation.audit"))
    if run.released_at is None or not share:
        return "Reads are counted at evaluation."
    return (
        "Reads are counted at evaluation, without audits; while training, a further "
        f"{percent(share)} of the tokens that skip are audited."
    )


def _figures(runs: Sequence[Run]) -> str:
    multiples = [found for run in runs if (found := multiple(run.last)) is not None]
    times_opt = plain(statistics.median(multiples)) if multiples else "–"
    recurring, novel = (percent(typical(runs, f"accuracy_{kind}")) for kind in ("recurring", "novel"))
    steps = {run.step for run in runs}
    far = f"{min(steps):,}" if len(steps) == 1 else f"{min(steps):,}–{max(steps):,}"
    under_way = "" if all(run.finished for run in runs) else f"of {max(run.steps for run in runs):,}, under way"
    tiles = [
        ("accuracy", percent(typical(runs, "accuracy")), f"recurring{SPACE}{recurring}, novel{SPACE}{novel}"),
        ("reads", percent(typical(runs, "reads")), f"of the positions, {times_opt}{SPACE}×{SPACE}OPT"),
        ("steps", far, under_way or _released(runs)),
        ("time", duration(typical(runs, "seconds")), "steps, checks and evaluations"),
        ("dense ÷ settled", times(Speed.of(*runs).ratio), "time of a training step, medians"),
    ]
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    several = f'<p class="note">Medians of {len(runs)} runs.</p>' if len(runs) > 1 else ""
    return f'<dl class="figures">{cells}</dl>{several}'


def _released(runs: Sequence[Run]) -> str:
    steps = sorted(run.released_at for run in runs if run.released_at is not None)
    if not steps:
        return "" if all(run.plain for run in runs) else "never released"
    text = f"released at {steps[0]:,}" + (f"–{steps[-1]:,}" if steps[0] != steps[-1] else "")
    return text if len(steps) == len(runs) else f"{text} ({len(steps)} of {len(runs)} runs)"


def _reads(runs: Sequence[Run]) -> str:
    by_kind = [(kind, typical(runs, "kind_reads", kind, 0)) for kind in runs[0].kinds]
    still = [kind for kind, share in by_kind if share is not None and share >= 0.5]
    stopped = {kind: share for kind, share in by_kind if share is not None and share < 0.05}
    if all(run.plain for run in runs):
        title = "Who reads"
    elif all(run.released_at is None for run in runs):
        title = "Every position still reads"
    elif still and stopped:
        rest = "hardly" if max(stopped.values()) >= 0.0005 else "no longer"
        title = f"{_and(still).capitalize()} tokens still read; {_and(list(stopped))} tokens {rest} do"
    else:
        title = "Who still reads"
    several = " Thin lines are runs, bold ones their median." if len(runs) > 1 else ""
    return section(
        title,
        "Share of positions that read in at least one layer. The axis is stretched below, where the values end up. "
        f"OPT and static bound are for all positions.{several}",
        f'<div class="wide">{charts.reads(runs, width=900, height=400)}</div>'
        f'<div class="narrow">{charts.reads(runs, width=380, height=340)}</div>',
    )


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _small(runs: Sequence[Run]) -> str:
    mse, floor = typical(runs, "dynamics_mse"), typical(runs, "dynamics_floor")
    gap, tolerance = typical(runs, "excess"), number(runs[0].setting("consolidation.tolerance"))
    recurring, novel = typical(runs, "accuracy_recurring"), typical(runs, "accuracy_novel")
    price, mean = typical(runs, "price"), typical(runs, "mean_quality")
    parts = []
    if recurring is not None or novel is not None:
        found = f"{percent(novel)} of novel and {percent(recurring)} of recurring queries are answered right"
        parts.append((found, "Held-out queries.", charts.accuracy(runs)))
    if mse is not None and floor:
        found = f"The dynamics' error is {plain(mse / floor)}{SPACE}× the least possible"
        parts.append((found, f"Ends at {short(mse)}; the noise alone makes {short(floor)}.", charts.dynamics(runs)))
    dense_note = "Medians of the evaluations in acquire and in settle; checks and evaluations not included."
    parts.append((str(Speed.of(*runs)), dense_note, charts.step_time(runs)))
    if mean is not None:
        note = "q estimates how well recall would reconstruct a read."
        parts.append((f"Recall reached a mean quality q̄ of {plain(mean)}", note, charts.quality(runs)))
    if price is not None:
        found = f"A read is priced at {short(price)} nats"
        parts.append((found, "Reads worth less to the task are given up.", charts.price(runs)))
    if gap is not None and any(run.released_at is not None for run in runs):
        if tolerance is None:
            found = f"In the last checks routing cost {short(gap)} nats"
        elif gap <= tolerance:
            found = f"In the last checks routing kept within the tolerance of {short(tolerance)} nats"
        else:
            found = f"In the last checks routing cost {short(gap)} nats, more than the tolerance of {short(tolerance)}"
        parts.append((found, "Routed less dense loss, the least of the last three checks.", charts.excess(runs)))
    cells = "".join(
        f'<div><h3>{escape(title)}</h3><p class="note">{escape(note)}</p>{drawing}</div>'
        for title, note, drawing in parts
    )
    return f'<section class="grid">{cells}</section>'


def _sequence(runs: Sequence[Run], run: Run) -> str:
    content = sequence.section(run)
    if not content:
        return ""
    reads, of = sequence.reading(run.last) or (0, 0)
    return section(
        f"One held-out sequence: {reads} of its first {of} positions read",
        f"Position after position, {sequence.LINE} a strip, as the model is at each evaluation.{_of(runs, run)}",
        content,
    )


def _quality(runs: Sequence[Run], run: Run) -> str:
    """Distributions of q, a panel a kind and layer."""
    layers = len(item(run.last, "histograms", run.kinds[0]) or []) if run.kinds else 0
    if not layers:
        return ""
    first = max(range(layers), key=lambda layer: _layer_reads(run, layer) or 0.0)
    threshold = number(run.setting("model.router.threshold"))
    panels = []
    for layer in range(layers):
        kinds = ""
        for index, kind in enumerate(run.kinds):
            rows = [
                (f"{label}, step {entry['step']:,}", counts)
                for label, entry in moments(run)
                if (counts := _counts(item(entry, "histograms", kind, layer)))
            ]
            drawing = chart.ridges(
                name=f"Quality of {kind} in layer {layer + 1}",
                rows=rows,
                colour=colours.of_kind(kind, index),
                threshold=threshold,
            )
            kinds += f"<div><h4>{escape(kind)}</h4>{drawing}</div>"
        panels.append(
            f'<div class="layer" data-layer="{layer}"><h4>Layer {layer + 1}: reads at '
            f'{percent(_layer_reads(run, layer))} of the positions</h4><div class="kinds">{kinds}</div></div>'
        )
    buttons = "".join(f'<button type="button" value="{i}">layer {i + 1}</button>' for i in range(layers))
    ends = [(kind, number(item(run.last, "quality", kind, first))) for kind in run.kinds]
    told = ", ".join(f"{kind} {plain(value)}" for kind, value in ends if value is not None)
    return section(
        f"How good recall is: mean q in layer {first + 1} ended at {told}",
        "How many positions of a kind have which quality q; each histogram has its own height. Left of q* the "
        f"consolidation term speaks for a read, right of it for recall.{_of(runs, run)}",
        f'<div class="tabs" data-first="{first}">{buttons}</div>{"".join(panels)}',
    )


def _worth(runs: Sequence[Run], run: Run) -> str:
    """What reads gain, by kind and layer, and whether the model foretold it."""
    used, unused = (number(item(run.last, "worth", key)) for key in ("reads", "skips"))
    if used is None and unused is None:
        return ""
    drawings = ""
    for key, title in (("utility", "What û foretells of a read"), ("quality", "What q̂ foretells of recall")):
        bins = [[float(x) for x in one] for one in item(run.last, "worth", key) or [] if len(one) == 3]
        if bins:
            drawing = charts.calibration(bins, nats=key == "utility")
            drawings += f"<div><h3>{escape(title)}</h3>{drawing}</div>"
    made = f"A read made is worth {short(used)} nats" if used is not None else "No read was made"
    missed = f", one not made would have been worth {short(unused)}" if unused is not None else ""
    return section(
        made + missed,
        "Mean gain in the loss of the main head, from held-out reads of which a random part was used, as a gradient "
        f"tells it. A dash: there was none.{_of(runs, run)}",
        f'{tables.worth(run)}<div class="grid">{drawings}</div>',
    )


def _layer_reads(run: Run, layer: int) -> float | None:
    """Share of all positions that read in a layer, from the shares of each kind and how many there are."""
    reading, positions = 0.0, 0.0
    for kind in run.kinds:
        share = number(item(run.last, "kind_reads", kind, 1 + layer))
        size = sum(_counts(item(run.last, "histograms", kind, layer)))
        if share is None:
            return None
        reading, positions = reading + share * size, positions + size
    return reading / positions if positions else None


def _counts(value: object) -> list[int]:
    return [int(x) for x in value if number(x) is not None] if isinstance(value, list) else []


def _of(runs: Sequence[Run], run: Run) -> str:
    return f" Shown: {run.name}." if len(runs) > 1 else ""


def _note_on_final(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return "At the last evaluation."
    return (
        "At the last evaluation of each run. The last row is mean ± standard deviation over all runs that have the "
        "number; runs that were never released count like the others."
    )


def _note_on_settings(runs: Sequence[Run]) -> str:
    return "What was started: config.json." + (" Where they differ, one value a run." if len(runs) > 1 else "")
