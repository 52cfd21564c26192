"""The page about the paper: its claims with filters, its figures beside ours, and the memory explorer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from html import escape
from importlib.resources import files

from torchcram.paper import verdicts
from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts import Results, Status, Verdict
from torchcram.report import explorer, figures, frontier
from torchcram.report.claims import missing, where
from torchcram.report.html import document, section

_SHORT: Mapping[Status, str] = {
    "holds": "holds",
    "holds differently": "differently",
    "does not hold": "not",
    "not testable here": "untestable",
    "not yet measured": "unmeasured",
    "a setting, no result": "setting",
}
"""Names for CSS."""


_TRADED = "Trained models along one setting each: what they read, what that takes, and what they then answer."


def page(results: Results, *, experiments: Collection[str]) -> str:
    """One self-contained HTML page, from result files; `explored.json`, if it is among them, fills the explorer.

    experiments: Those that `torchcram reproduce` knows; a command of another one is said to be still to come.
    """
    judged = verdicts.judge(results)
    explored = results.get("explored")
    folder = files("torchcram.report")
    traded = frontier.section(results)
    body = [
        _header(judged),
        section(
            "The claims",
            "Everything that the paper prints. Verdicts are made from the numbers in result files, by code.",
            _filters(judged) + _table(judged, experiments),
            "claims",
        ),
        section(
            "The figures",
            "What the paper's figures plot, as their source has it, and the same quantities of a run here. Hover, or "
            "choose a chart and use the arrow keys, to read values. Figure 1 is a drawing of the model.",
            figures.section(results),
            "figures",
        ),
        section("What is traded for what", _TRADED, traded, "traded") if traded else "",
        section("Memory explorer", explorer.NOTE, explorer.section(explored), "memory") if explored else "",
        section(
            "Where the numbers come from",
            "Result files, each with the command that made it.",
            _sources(results),
            "sources",
        ),
    ]
    body[0] += _contents(body[1:])
    return document(
        "The paper, claim by claim: torchcram",
        body,
        style=(folder / "paper.css").read_text(encoding="utf-8"),
        scripts=[(folder / name).read_text(encoding="utf-8") for name in ("paper.js", "explorer.js")],
    )


def _contents(body: Sequence[str]) -> str:
    """Links to the page's parts: the claims alone are long."""
    found = [match for part in body for match in re.findall(r'<section id="([^"]+)"[^>]*><h2>([^<]+)</h2>', part)]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in found)
    return f'<nav class="contents" aria-label="Parts of this page">{links}</nav>'


def _header(judged: Mapping[str, Verdict]) -> str:
    counts = verdicts.counts(judged)
    bar = "".join(
        f'<span class="v-{_SHORT[status]}" style="flex-grow:{count}" title="{escape(status)}: {count}"></span>'
        for status, count in counts.items()
        if count
    )
    left = counts["not yet measured"]
    waits = f"{left} {'is' if left == 1 else 'are'} not yet measured, " if left else ""
    decided = sum(counts[status] for status in ("holds", "holds differently", "does not hold"))
    return (
        '<header><p class="kicker">Learning to Forget Attention: Memory Consolidation for Adaptive Compute Reduction'
        "</p>"
        "<h1>The paper, claim by claim</h1>"
        f'<p class="lead">Of {len(judged)} things that it prints, {decided} were put to the test here: '
        f"{counts['holds']} hold, {counts['holds differently']} hold differently, {counts['does not hold']} do not. "
        f"{waits}{counts['not testable here']} cannot be tested here, and {counts['a setting, no result']} are "
        "settings.</p>"
        f'<div class="shares" role="img" aria-label="How many claims have each verdict">{bar}</div></header>'
    )


def _filters(judged: Mapping[str, Verdict]) -> str:
    chips = "".join(
        f'<button type="button" data-verdict="{_SHORT[status]}" aria-pressed="false">'
        f'<i class="v-{_SHORT[status]}"></i>{escape(status)} <b>{count}</b></button>'
        for status, count in verdicts.counts(judged).items()
    )
    sections = "".join(
        f'<option value="{subject}">{escape(title)}</option>' for subject, title in verdicts.SECTIONS.items()
    )
    return (
        f'<form class="filters"><div class="chips" role="group" aria-label="Verdict">{chips}</div>'
        '<label>Section <select name="section"><option value="">all</option>'
        f"{sections}</select></label>"
        '<label>Search <input type="search" name="text" placeholder="accuracy, γ, Jamba …"></label>'
        '<label><input type="checkbox" name="headline"> the best known only</label>'
        '<button type="reset">Show all</button>'
        f'<output aria-live="polite">{len(judged)} of {len(judged)} claims</output></form>'
    )


def _table(judged: Mapping[str, Verdict], experiments: Collection[str]) -> str:
    first = [CLAIMS[name] for name in verdicts.HEADLINES]
    others = [claim for claim in CLAIMS.values() if claim.id not in verdicts.HEADLINES]
    lines = "".join(_line(claim, judged[claim.id], experiments) for claim in (*first, *others))
    heads = "".join(f"<th>{name}</th>" for name in ("claim", "printed", "measured", "verdict", "command"))
    return (
        f'<table class="claims"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>'
        '<p class="note none" hidden>No claim is like that.</p>'
    )


def _words(text: str) -> str:
    """Words of a claim or a verdict, with what they have in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _line(claim: Claim, verdict: Verdict, experiments: Collection[str]) -> str:
    subject = claim.id.partition("/")[0]
    headline = " data-headline" if claim.id in verdicts.HEADLINES else ""
    note = f"<details><summary>doubts</summary>{_words(claim.note)}</details>" if claim.note else ""
    sources = ", ".join(verdict.files)
    measured = f"{_words(verdict.measured)}<small>{escape(sources)}</small>" if verdict.measured else "–"
    to_come = "<small>to come</small>" if missing(verdict.command, experiments) else ""
    return (
        f'<tr id="{escape(claim.id)}" data-verdict="{_SHORT[verdict.status]}" data-section="{subject}"{headline}>'
        f'<td data-name="claim">{_words(claim.measures)}<small>{escape(claim.id)}; {escape(where(claim))}</small>'
        f"{note}</td>"
        f'<td data-name="printed">{escape(claim.printed)}</td><td data-name="measured">{measured}</td>'
        f'<td data-name="verdict"><span class="pill v-{_SHORT[verdict.status]}">{escape(verdict.status)}</span>'
        f"{_words(verdict.why)}</td>"
        f'<td data-name="command"><code>{escape(verdict.command)}</code>{to_come}</td></tr>'
    )


def _sources(results: Results) -> str:
    used = {file for verdict in verdicts.judge(results).values() for file in verdict.files}
    lines = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(data.get('machine', '')))}</td>"
        f"<td>{escape(str(data.get('commit', '')))}</td>"
        f"<td>{'<br>'.join(f'<code>{escape(line)}</code>' for line in str(data.get('command', '')).splitlines()[:3])}"
        f"{'<br>…' if len(str(data.get('command', '')).splitlines()) > 3 else ''}</td></tr>"
        for name, data in results.items()
        if name in used or name == "explored"
    )
    heads = "".join(f"<th>{name}</th>" for name in ("file", "machine", "commit", "command"))
    return f'<table class="sources"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>'
