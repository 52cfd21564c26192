"""What runs on MQAR come to, in sentences: who learned it, with which seeds, and what that does not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchcram.report.comparison import Group, Row, called, groups, share
from torchcram.report.comparison_words import counted

CHANCE = 0.01
"""Accuracy on MQAR below which a model has learned nothing: its values are thousands."""
_LEARNED = 0.99
"""Accuracy from which on it counts as learned."""
_MANY = 1.2
"""Reads, in units of the queries, from which on they are more than are needed."""


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader of the table should know besides."""
    tried: dict[tuple[str, str, str], list[Row]] = {}
    for what in ("final", "rate"):
        for group in groups(rows, what):
            tried.setdefault((group.rows[0]["task"], group.model, group.setting), []).extend(group.rows)
    kinds = [Group(model=model, setting=setting, rows=each) for (_, model, setting), each in tried.items()]
    finals = groups(rows, "final")
    return [*_plainer(kinds), *_slow_seeds(rows), *_stuck(kinds), *_older(finals), *_many_reads(finals)]


def _plainer(kinds: Sequence[Group]) -> Iterator[str]:
    """A Transformer that always was a plainer one."""
    mine = [group for group in kinds if group.model == "transformer"]
    if mine and all({"rotary=false", "heads=1"} <= set(group.setting.split(", ")) for group in mine):
        yield (
            "`transformer` has neither rotary positions nor several heads here: these are its settings in every row"
            " there is, so nothing is shown about how it does with them."
        )


def _slow_seeds(rows: Sequence[Row]) -> Iterator[str]:
    """Seeds with which a model never learned the task, though it did with others."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["what"] in ("final", "rate"):
            found.setdefault((row["task"], row["model"]), []).append(row)
    for (task, model), mine in found.items():
        seeds = sorted({row["seed"] for row in mine})
        best = {seed: max(row["accuracy"] for row in mine if row["seed"] == seed) for seed in seeds}
        for seed in (seed for seed in seeds if best[seed] < _LEARNED <= max(best.values())):
            told = ", ".join(
                f"{_steps(row)}at rate {row['rate']:g} {share(row['accuracy'])}" for row in mine if row["seed"] == seed
            )
            yield (
                f"`{model}` on {task} stays below {share(_LEARNED)} with seed {seed}, one of {len(seeds)}, whatever was"
                f" tried: {told}."
            )


def _stuck(kinds: Sequence[Group]) -> Iterator[str]:
    """Who learned nothing, at which rates: that says nothing about what it can hold."""
    found = []
    for group in kinds:
        if all(row["accuracy"] < CHANCE for row in group.rows):
            rates = sorted({row["rate"] for row in group.rows})
            seeds = {rate: sum(row["rate"] == rate for row in group.rows) for rate in rates}
            told = ", ".join(f"{rate:g} with {counted(count)}" for rate, count in seeds.items())
            found.append(f"{group.name} ({told})")
    if not found:
        return
    yield f"In its steps, and at each learning rate that was tried, this never left chance: {', '.join(found)}."
    shown = "That shows that these runs did not begin to learn, not what such a model can hold"
    for group in kinds:
        low = [row for row in group.rows if row["accuracy"] < CHANCE]
        high = [row for row in group.rows if row["accuracy"] >= _LEARNED]
        if low and high:
            shown += (
                f"; {group.name}, too, is at chance at {low[0]['rate']:g}, and at {share(high[0]['accuracy'])} at"
                f" {high[0]['rate']:g}"
            )
    if any(name.startswith("`mamba`") for name in found):
        shown += (
            ". `mamba` as it is today learns MQAR of 20 positions with 3 bindings and 32 tokens"
            " (`test_a_state_space_holds_a_few_bindings` in tests/training/test_recall.py)"
        )
    yield f"{shown}."


def _older(finals: Sequence[Group]) -> Iterator[str]:
    """Rows of a Jamba that no command would make today."""
    for group in finals:
        if group.model == "jamba" and "convolution=1" in group.setting.split(", "):
            commits = ", ".join(dict.fromkeys(row["commit"] for row in group.rows))
            yield (
                f"{group.name} is of commit {commits}, when Jamba's attention had no short convolution yet (it has had"
                " one since 7eac96c, as a Transformer's): the commands that made it name no convolution, and today"
                " would train a Jamba with one."
            )


def _many_reads(finals: Sequence[Group]) -> Iterator[str]:
    """Where CRAM reads more than there are queries."""
    for group in finals:
        least = group.median("opt")
        if group.model != "cram" or not least or group.reads <= _MANY * least:
            continue
        most = max(group.rows, key=lambda row: float(row["reads"]))
        told = f"{share(group.reads)} in the median" if len(group.rows) > 1 else share(group.reads)
        worst = f", {share(most['reads'])} with seed {most['seed']}" if len(group.rows) > 1 else ""
        yield (
            f"{called('cram', group.setting)} on {most['task']} reads more than is needed: {told}{worst}, where"
            f" {share(least)} would do."
        )


def _steps(row: Row) -> str:
    return f"{row['steps']:,} steps " if row.get("steps") is not None else ""
