"""The paper's claims as a part of a Markdown page: what is printed, what was measured, and the verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torchcram.paper import verdicts
from torchcram.paper.claims import CLAIMS, Claim
from torchcram.paper.verdicts import Results, Verdict
from torchcram.report import frontier
from torchcram.report.markdown import table

BEGIN = "<!-- The claims, written by `torchcram paper`: from here on -->"
END = "<!-- The claims: up to here -->"
_HEADS = ("claim", "printed", "measured", "verdict", "command")


def renewed(text: str, results: Results, *, folder: str, experiments: Collection[str]) -> str:
    """A page with its part about claims written anew; everything outside of the two marks stays as it is.

    folder: Where the page finds the result files.
    experiments: Those that `torchcram reproduce` knows; a command of another one is said to be still to come.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the claims: it needs a line {BEGIN} and, later, {END}")
    return f"{before}{BEGIN}\n\n{part(results, folder=folder, experiments=experiments)}\n\n{END}{after}"


def part(results: Results, *, folder: str, experiments: Collection[str]) -> str:
    """The headline claims as a table, all others folded away, by section, and the frontiers, if there are runs."""
    judged = verdicts.judge(results)
    told = ", ".join(f"{status} {count}" for status, count in verdicts.counts(judged).items() if count)

    def lines(claims: Iterable[Claim]) -> str:
        return table(_HEADS, [_line(claim, judged[claim.id], folder, experiments) for claim in claims])

    parts = [
        f"Of {len(CLAIMS)} things that the paper prints: {told}. Mean ± standard deviation over seeds.",
        lines(CLAIMS[name] for name in verdicts.HEADLINES),
    ]
    for subject, title in verdicts.SECTIONS.items():
        others = [c for c in CLAIMS.values() if c.id.partition("/")[0] == subject and c.id not in verdicts.HEADLINES]
        parts.append(
            f"<details><summary>{title}: {len(others)} more</summary>\n\n{lines(others)}\n\n</details>"
            if others
            else ""
        )
    parts.append(frontier.document(results, folder))
    return "\n\n".join(filter(None, parts))


def where(claim: Claim) -> str:
    """The first place where the paper says it."""
    place = claim.places[0]
    section = {"abstract": "abstract", "reproducibility": "reproducibility statement"}
    return ", ".join(filter(None, (section.get(place.section, f"section {place.section}"), place.item)))


def missing(command: str, experiments: Collection[str]) -> bool:
    """Whether a command asks for an experiment that there is not yet."""
    words = command.split()
    return words[:2] == ["torchcram", "reproduce"] and words[2] not in experiments


def _line(claim: Claim, verdict: Verdict, folder: str, experiments: Collection[str]) -> list[str]:
    files = ", ".join(f"[{name}]({folder}/{name}.json)" for name in verdict.files)
    cells = [
        f"{claim.measures} (`{claim.id}`, {where(claim)})",
        claim.printed,
        f"{verdict.measured} ({files})" if verdict.measured else "–",
        f"**{verdict.status}**" + (f": {verdict.why}" if verdict.why else ""),
        f"`{verdict.command}`" + (" (to come)" if missing(verdict.command, experiments) else ""),
    ]
    return [cell.replace("|", "\\|").replace("*", "\\*") if i < 3 else cell for i, cell in enumerate(cells)]
