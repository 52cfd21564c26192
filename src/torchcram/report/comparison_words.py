"""What a comparison of models comes to, in sentences: where CRAM is ahead, and where it is not."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from torchcram.report.comparison import SOLVED, Costs, Group, called, share, size, thousands
from torchcram.report.words import plain


def summary(finals: Sequence[Group], curve: Sequence[Group], costs: Costs, state_length: str) -> list[str]:
    """Where CRAM is ahead of the others on SRCD, and where not: reads, time, state."""
    lines = []
    if about := _about_reads(finals, curve):
        lines.append(f"Reads on SRCD, which counts as solved from {share(SOLVED)} on. {' '.join(about)}")
    ours = costs.get(("cram", ""))
    keys = dict.fromkeys(group.timed for group in finals if group.model != "cram")
    rivals = {called(*key): costs[key] for key in keys if key in costs}
    if ours is None or not rivals:
        return lines
    for what, key, form, more in (
        ("Time of a forward pass", "forward_ms", lambda value: f"{plain(value, 1)} ms", False),
        ("Tokens a second in training", "tokens_per_second", thousands, True),
    ):
        mine = ours.speed(key)
        found = [(cost.speed(key, ours.commit), name) for name, cost in rivals.items()]
        others = [(value, name) for value, name in found if value is not None]
        if mine is not None and others:
            told = _ahead(mine, others, form, more=more)
            lines.append(
                f"{what}, where both were timed at the same commit ({ours.commit}): CRAM {form(mine)}; {told}."
            )
    sizes = sorted((cost.state, name) for name, cost in rivals.items() if cost.state is not None)
    if ours.state is not None and sizes:
        smaller = ", ".join(f"{name} {size(value)}" for value, name in sizes if value < ours.state)
        told = f"less have {smaller}" if smaller else f"none of {len(sizes)} others has less"
        lines.append(f"State of a sequence after {state_length} positions: CRAM {size(ours.state)}; {told}.")
    return lines


def _ahead(mine: float, others: Sequence[tuple[float, str]], form: Callable[[float], str], *, more: bool) -> str:
    """How many others are faster, from the first of them to the last. more: The larger number is the better one."""
    faster = sorted((each for each in others if (each[0] > mine if more else each[0] < mine)), reverse=more)
    if not faster:
        return f"none of {len(others)} others is faster"
    ends = dict.fromkeys(f"{name} {form(value)}" for value, name in (faster[0], faster[-1]))
    return f"{len(faster)} of {len(others)} others are faster, {'from ' * (len(ends) > 1)}{' to '.join(ends)}"


def verdicts(finals: Sequence[Group], curve: Sequence[Group] = ()) -> list[str]:
    """Who solves SRCD, with how many reads; and who does not."""
    lines = []
    solving = sorted((g for g in finals if g.solves), key=lambda g: g.reads)
    if without := [g for g in solving if g.reads == 0]:
        lines.append(f"Without any attention, by a state that is large enough: {', '.join(g.name for g in without)}.")
    if some := [g for g in solving if g.reads > 0]:
        least = share(some[0].median("opt"))
        told = ", ".join(f"{_with_seeds(g, finals)} {share(g.reads)}" for g in some)
        lines.append(f"With reads, of which {least} is the least possible: {told}.")
    lines += _about_reads(finals, curve)
    if not_solving := [g for g in finals if not g.solves]:
        lines.append(f"Not at {share(SOLVED)} with every seed: {', '.join(map(_fails, not_solving))}.")
    return lines


def _about_reads(finals: Sequence[Group], curve: Sequence[Group]) -> list[str]:
    """Whether CRAM reads least: of those that solve SRCD with every seed, and beside those that do with some."""
    candidates = [g for g in finals if g.model == "cram"]
    if not candidates:
        return []
    ours = min(candidates, key=lambda g: (-len(g.solved) / len(g.rows), g.reads))
    if not ours.solves:
        lines = [f"CRAM does not reach {share(SOLVED)} with every seed."]
    elif fewer := sorted((g for g in finals if g.solves and g.reads < ours.reads), key=lambda g: g.reads):
        lines = [f"CRAM is not ahead of {', '.join(g.name for g in fewer)}."]
    else:
        lines = [f"Of those that solve it with every seed, CRAM reads least ({share(ours.reads)})."]
    some = [g for g in (*(g for g in finals if not g.solves), *curve) if g.model != "cram" and g.solved]
    if ours.solved and (told := [line for g in some if (line := _no_more(g, ours)) is not None]):
        lines.append(
            "With the seeds that solve it, these read no more than CRAM (the same seeds, where it has them):"
            f" {', '.join(told)}."
        )
    return lines


def _no_more(group: Group, ours: Group) -> str | None:
    """Reads of a model with the seeds that solve SRCD, if they are no more than CRAM's; None: they are more."""
    mine = statistics.median(group.solved.values())
    same = [reads for seed, reads in ours.solved.items() if seed in group.solved]
    theirs = statistics.median(same or ours.solved.values())
    if mine > theirs:
        return None
    return f"{group.name} ({len(group.solved)} of {len(group.rows)}: {share(mine)}, CRAM {share(theirs)})"


def _with_seeds(group: Group, finals: Sequence[Group]) -> str:
    """Its name, and how many seeds it has if others have more."""
    count, most = len(group.rows), max(len(other.rows) for other in finals)
    return group.name if count == most else f"{group.name} ({counted(count)})"


def _fails(group: Group) -> str:
    """A model that does not solve SRCD, how far it came, and with how many seeds it does."""
    novel = f"novel {share(group.median('accuracy_novel'))}"
    if len(group.rows) > 1:
        novel += f", at worst {share(group.worst('accuracy_novel'))}"
    if not group.solved:
        return f"{group.name} ({novel})"
    reads = share(statistics.median(group.solved.values()))
    return f"{group.name} ({novel}; {len(group.solved)} of {len(group.rows)} seeds do, with reads of {reads})"


def counted(count: int) -> str:
    """So many seeds."""
    return f"{count} seed{'s' if count > 1 else ''}"
