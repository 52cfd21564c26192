"""The page about the models that CRAM is compared with: what they are, how they were tuned, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torchcram.report.comparison import Costs, Group, Row, costs, groups, share, size, thousands
from torchcram.report.comparison_words import summary, verdicts
from torchcram.report.markdown import commands, place, table
from torchcram.report.recall_words import notes
from torchcram.report.words import plain
from torchcram.results import ROUTED

ABOUT: Mapping[str, str] = {
    "cram": "three memories and a router (this project)",
    "transformer": "causal attention in every layer, rotary positions",
    "window": "the same, a number of positions back at most",
    "slots": "the same, over the 512 events of highest priority, as in CRAM's buffer",
    "mamba": "Mamba-2 (Dao and Gu 2024): a selective state space in every layer",
    "jamba": "Mamba-2 with attention in one layer of eight, or of all (after Lieber et al. 2024)",
    "seqboat": "SeqBoat (Ren et al. 2023): a moving average, gated attention among activated tokens",
    "seqboat+cost": "the same, with a cost for each activated token",
    "transmamba": "TransMamba (2025): attention up to a position, a state space after it",
    "mod": "mixture of depths (Raposo et al. 2024): attention among the tokens ranked highest",
    "entropy": "a state space, and attention for tokens whose answer is uncertain",
    "gate": "control: CRAM without semantic memory and contradiction index",
    "working": "control: working memory and feed-forward parts alone",
}
"""A line on each model."""


_PAGE = """\
# Baselines

Made by `torchcram baselines` from `results/baselines-srcd.json` and `results/baselines-mqar.json`. How the models are
built: docs/decisions/013-baselines.md.

## In short

{summary}

## What they are

{about}

All have the inputs and outputs that CRAM has, see Δτ, are trained by the same loop, and have as many parameters where a
table does not say otherwise.{elsewhere}

## Sanity: recall of what was bound in the same sequence (MQAR)

{mqar_setting}

{mqar}

Accuracy and reads: median of the seeds, and the worst in brackets. Rate: of learning. Pairs and index: as below.
Nothing recurs from one sequence to the next, so nothing can be learned by heart: every query needs a read, or a state
that holds all bindings.

{mqar_notes}

## SRCD

{srcd_setting}

{srcd}

Accuracy: median of the seeds, and the worst in brackets. Reads: positions that look back in at least one layer,
likewise. Pairs: in units of dense attention's; index: comparisons of CRAM's contradiction index in the same units.
Writes: positions that can be looked back at, mean over layers that keep any. State: of one sequence, after
{state_length} positions. Speed: of a training step, and of a forward pass of a batch, each timed alone on the GPU,
{compiled}, on a run with the same model and setting but perhaps another learning rate, seed or number of steps (the
commands tell). From one version and day to another times differ by up to a half, so compare what was timed at the same
commit (`timed at`): of a model that was timed at several, the one counts here that most models were timed at, if it is
among them, and else the newest.

### Who solves it

{verdicts}

### Quality against reads

One seed for each setting of what trades attention for quality; models as they are above (`default`) with all their
seeds, of which the median counts. Time is that of a forward pass of a batch, as above; a GPU waits for its host there.
Where a run was trained again to be timed, with the same seed, `again` is what that one came to: sums on a GPU are in no
fixed order, and the code had changed.

{curve}

### How they were tuned

Accuracy (all queries) at each learning rate that was tried, one seed, and in brackets the reads of those that choose
them; bold is what was used. Batches and schedule are the same for all, and so are the steps where a setting does not
say otherwise. Near the share of recurring queries (70 to 71 %) nothing was learned about novel ones, and differences
are noise.

{rates}

## Commands

Those behind the result files, in the order in which their rows were collected.

### MQAR

{mqar_commands}

### SRCD

{srcd_commands}
"""


_DEFAULTS = {
    "cram": "price=0.05",
    "gate": "price=0.05",
    "mod": "capacity=0.125",
    "entropy": "deviations=1",
    "window": "window=256",
}
"""What trades attention for quality where nothing else is said."""

_ABOUT_ALL = {"setting", "machine", "commit", "command", "rows"}
_NEEDED = {"what", "task", "model", "setting", "seed", "commit"}
_COLUMNS = (
    *("model", "seeds", "accuracy", "recurring", "novel", "MSE ÷ floor", "reads", "pairs", "index", "writes"),
    *("parameters", "state", "tokens/s", "forward ms", "timed at"),
)


def page(srcd: Row, mqar: Row) -> str:
    """The whole page, in Markdown, from the two result files."""
    for name, data in (("SRCD", srcd), ("MQAR", mqar)):
        missing = {key for row in data["rows"] for key in _NEEDED - row.keys()} | (_ABOUT_ALL - data.keys())
        if missing:
            raise ValueError(f"the result file of {name} has rows without {', '.join(sorted(missing))}")
        if wrong := sorted({row["task"] for row in data["rows"] if not row["task"].endswith(name.lower())}):
            raise ValueError(f"the result file of {name} has rows of {', '.join(wrong)}")
    finals, curve = (groups(srcd["rows"], what) for what in ("final", "curve"))
    timed = [row for row in srcd["rows"] if row["what"] == "cost"]
    lengths = {row["state_length"] for row in timed if "state_length" in row}
    if len(lengths) > 1:
        raise ValueError(f"states are of sequences of several lengths: {sorted(lengths)}")
    state_length = f"{lengths.pop():,}" if lengths else "–"
    cost = costs(srcd["rows"])
    return _PAGE.format(
        summary=_listed(summary(finals, curve, cost, state_length)),
        state_length=state_length,
        compiled=_compiled(timed),
        about=table(("model", "what it is"), ([f"`{name}`", about] for name, about in ABOUT.items())),
        mqar_setting=_setting(mqar),
        mqar=_mqar_table(groups(mqar["rows"], "final")),
        mqar_notes=_listed(notes(mqar["rows"])),
        elsewhere=_elsewhere(finals, curve),
        mqar_commands=commands(mqar),
        srcd_commands=commands(srcd),
        srcd_setting=_setting(srcd),
        srcd=_srcd_table(finals, cost),
        verdicts=_listed(verdicts(finals, curve)),
        curve=_curve_table(curve, finals, cost, groups(srcd["rows"], "timed")),
        rates=_rates_table(srcd["rows"]),
    )


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _setting(data: Row) -> str:
    return f"{data['setting']} {place(data)} The commands are [at the end](#commands)."


def _elsewhere(finals: Sequence[Group], curve: Sequence[Group]) -> str:
    """Where models are that the main table does not have."""
    there = {group.model for group in finals}
    missing = dict.fromkeys(f"`{group.model}`" for group in curve if group.model not in there)
    if not missing:
        return ""
    return (
        f" The main table of SRCD has no {', '.join(missing)}, run with one seed a setting:"
        " see [Quality against reads](#quality-against-reads)."
    )


def _mqar_table(finals: Sequence[Group]) -> str:
    def line(group: Group) -> list[str]:
        least = group.median("opt")
        return [
            group.rows[0]["task"],
            group.name,
            _count(group.rows[0].get("steps")),
            ", ".join(f"{rate:g}" for rate in sorted({row["rate"] for row in group.rows})),
            str(len(group.rows)),
            f"{group.rows[0]['parameters']:,}",
            _accuracy(group, "accuracy"),
            _most_reads(group),
            plain(group.reads / least) if least else "–",
            share(group.median("pairs")),
            share(group.median("compared") or 0.0),
        ]

    heads = (
        *("task", "model", "steps", "rate", "seeds", "parameters", "accuracy", "reads", "reads ÷ queries", "pairs"),
        "index",
    )
    return table(heads, map(line, finals))


def _compiled(timed: Iterable[Row]) -> str:
    """Whether layers were compiled when they were timed."""
    found = {bool(row.get("compile")) for row in timed}
    if len(found) > 1:
        return "some of them compiled"
    return "compiled" if found == {True} else "not compiled (none is at its fastest)"


def _srcd_table(finals: Sequence[Group], all_costs: Costs) -> str:
    def line(group: Group) -> list[str]:
        cost = all_costs.get(group.timed)
        return [
            group.name,
            str(len(group.rows)),
            _accuracy(group, "accuracy"),
            share(group.median("accuracy_recurring")),
            _accuracy(group, "accuracy_novel"),
            plain(group.error),
            _most_reads(group),
            share(group.median("pairs")),
            share(group.median("compared") or 0.0),
            share(group.median("writes")),
            f"{group.rows[0]['parameters']:,}",
            size(cost.state if cost else None),
            thousands(cost.speed("tokens_per_second") if cost else None),
            plain(cost.speed("forward_ms") if cost else None, 1),
            cost.commit if cost else "–",
        ]

    return table(_COLUMNS, map(line, finals))


def _curve_table(curve: Sequence[Group], finals: Sequence[Group], all_costs: Costs, again: Sequence[Group]) -> str:
    """Settings of each model that has several, as it is otherwise among them, by their reads."""
    repeated = {(group.model, group.setting): group for group in again}

    def line(group: Group) -> list[str]:
        cost, other = all_costs.get(group.timed), repeated.get((group.model, group.setting))
        return [
            f"`{group.model}`",
            group.setting or f"default: {_DEFAULTS[group.model]}",
            share(group.median("accuracy")),
            share(group.median("accuracy_novel")),
            share(group.reads),
            share(group.median("pairs")),
            plain(cost.speed("forward_ms") if cost else None, 1),
            cost.commit if cost else "–",
            f"{share(other.median('accuracy'))}, reads {share(other.reads)}" if other and group.setting else "–",
        ]

    lines = []
    for model in dict.fromkeys(group.model for group in curve):
        mine = [group for group in (*curve, *finals) if group.model == model and "steps=" not in group.setting]
        own = (group for group in mine if group.rows[0].get("routing", ROUTED) == ROUTED)
        lines += [line(group) for group in sorted(own, key=lambda group: group.reads)]
    heads = ("model", "setting", "accuracy", "novel", "reads", "pairs", "forward ms", "timed at", "again")
    return table(heads, lines)


def _rates_table(rows: Iterable[Row]) -> str:
    rows = list(rows)
    finals = [group for group in groups(rows, "final") if group.rows[0].get("routing", ROUTED) == ROUTED]
    tried = {group.name: list(group.rows) for group in groups(rows, "rate")}
    for group in finals:
        tried.setdefault(group.name, []).extend(group.rows)
    rates = sorted({row["rate"] for each in tried.values() for row in each})
    lines = []
    for name, each in tried.items():
        # The first seed tells, and others that were tried at another rate than the one to use.
        first = min(row["seed"] for row in each)
        for seed in sorted({first} | {row["seed"] for row in each if row["what"] == "rate"}):
            found = {row["rate"]: row for row in each if row["seed"] == seed}
            told = name if seed == first else f"{name}, seed {seed}"
            lines.append([told, *(_tried(found.get(rate)) for rate in rates)])
    return table(("model", *(f"{rate:g}" for rate in rates)), lines)


def _tried(row: Row | None) -> str:
    """An accuracy, with reads if they were chosen; bold if it was the one to use."""
    if row is None:
        return "–"
    chosen = row.get("layer_reads") is not None and 0 < row["reads"] < 1
    told = share(row["accuracy"]) + (f" ({share(row['reads'])})" if chosen else "")
    return f"**{told}**" if row["what"] == "final" else told


def _most_reads(group: Group) -> str:
    """The median of the seeds, and the most in brackets."""
    most = max(float(row["reads"]) for row in group.rows)
    return share(group.reads) if len(group.rows) == 1 else f"{share(group.reads)} ({share(most)})"


def _accuracy(group: Group, key: str) -> str:
    median = share(group.median(key))
    return median if len(group.rows) == 1 or group.median(key) is None else f"{median} ({share(group.worst(key))})"


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
