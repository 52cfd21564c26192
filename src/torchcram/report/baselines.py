"""The page about the models that CRAM is compared with: what they are, how they were tuned, and what came of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcram.report.markdown import source, table
from torchcram.report.words import SPACE, percent, plain
from torchcram.results import ROUTED

Row = Mapping[str, Any]

SOLVED = 0.999
"""Accuracy from which on a model counts as one that solves SRCD."""

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

## What they are

{about}

All have the inputs and outputs that CRAM has, see Δτ, are trained by the same loop, and have as many parameters where a
table does not say otherwise.

## Sanity: recall of what was bound in the same sequence (MQAR)

{mqar_setting}

{mqar}

Nothing recurs from one sequence to the next, so nothing can be learned by heart: every query needs a read, or a state
that holds all bindings.{mqar_notes}

## SRCD

{srcd_setting}

{srcd}

Accuracy: median of the seeds, and the worst in brackets. Reads: positions that look back in at least one layer,
likewise. Pairs: in units of dense attention's; index: comparisons of CRAM's contradiction index in the same units.
Writes: positions that can be looked back at, mean over layers that keep any. State: of one sequence, after
{state_length} positions. Speed: of a training step, and of a forward pass of a batch, not compiled, each timed alone on
the GPU, on a run with the same model and setting but perhaps another learning rate, seed or number of steps (the
commands tell); no model is at its fastest there.

### Who solves it

{verdicts}

### Quality against reads

One seed for each setting of what trades attention for quality; models as they are above (`default`) with all their
seeds, of which the median counts. Time is that of a forward pass of a batch, not compiled, in which a GPU waits for its
host: from one version and day to another it differs by up to a half, so compare what was timed at the same commit.
Where a run was trained again to be timed, with the same seed, `again` is what that one came to: sums on a GPU are in no
fixed order, and the code had changed.

{curve}

### How they were tuned

Accuracy (all queries) at each learning rate that was tried, one seed, and in brackets the reads of those that choose
them; bold is what was used. Batches and schedule are the same for all, and so are the steps where a setting does not
say otherwise. Near the share of recurring queries (70 to 71 %) nothing was learned about novel ones, and differences
are noise.

{rates}
"""


_DEFAULTS = {
    "cram": "price=0.05",
    "gate": "price=0.05",
    "mod": "capacity=0.125",
    "entropy": "deviations=1",
    "window": "window=256",
}
"""What trades attention for quality where nothing else is said."""

_CHANCE = 0.01
"""Accuracy on MQAR below which a model has learned nothing: its values are thousands."""

_ABOUT_ALL = {"setting", "machine", "commit", "command", "rows"}
_NEEDED = {"what", "task", "model", "setting", "seed", "commit"}
_COLUMNS = (
    *("model", "seeds", "accuracy", "recurring", "novel", "MSE ÷ floor", "reads", "pairs", "index", "writes"),
    *("parameters", "state", "tokens/s", "forward ms"),
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of a model at one setting, which differ by their seeds."""

    model: str
    setting: str
    rows: Sequence[Row]

    @property
    def name(self) -> str:
        """The model, and what is unusual about it."""
        return f"`{self.model}`" + (f" {self.setting}" if self.setting else "")

    def median(self, key: str) -> float | None:
        """Over seeds; None where nothing was measured."""
        values = [row[key] for row in self.rows if row.get(key) is not None]
        return statistics.median(values) if values else None

    def worst(self, key: str) -> float:
        """The least over seeds."""
        return min(float(row[key]) for row in self.rows)

    @property
    def reads(self) -> float:
        """Share of positions that read: median over seeds."""
        return statistics.median(float(row["reads"]) for row in self.rows)

    @property
    def solves(self) -> bool:
        """With every seed."""
        return self.worst("accuracy") >= SOLVED

    @property
    def error(self) -> float | None:
        """Dynamics: mean squared error in units of the least possible."""
        errors = [row["dynamics_mse"] / row["dynamics_floor"] for row in self.rows if row.get("dynamics_floor")]
        return statistics.median(errors) if errors else None


def page(srcd: Row, mqar: Row) -> str:
    """The whole page, in Markdown, from the two result files."""
    for name, data in (("SRCD", srcd), ("MQAR", mqar)):
        missing = {key for row in data["rows"] for key in _NEEDED - row.keys()} | (_ABOUT_ALL - data.keys())
        if missing:
            raise ValueError(f"the result file of {name} has rows without {', '.join(sorted(missing))}")
        if wrong := sorted({row["task"] for row in data["rows"] if not row["task"].endswith(name.lower())}):
            raise ValueError(f"the result file of {name} has rows of {', '.join(wrong)}")
    finals, costs = (groups(srcd["rows"], what) for what in ("final", "cost"))
    lengths = {row["state_length"] for group in costs for row in group.rows if "state_length" in row}
    if len(lengths) > 1:
        raise ValueError(f"states are of sequences of several lengths: {sorted(lengths)}")
    by_setting = {_timed(group): group for group in costs}
    return _PAGE.format(
        state_length=f"{lengths.pop():,}" if lengths else "–",
        about=table(("model", "what it is"), ([f"`{name}`", about] for name, about in ABOUT.items())),
        mqar_setting=_setting(mqar),
        mqar=_mqar_table(groups(mqar["rows"], "final")),
        mqar_notes=_mqar_notes(groups(mqar["rows"], "final")),
        srcd_setting=_setting(srcd),
        srcd=_srcd_table(finals, by_setting),
        verdicts="\n".join(f"- {line}" for line in verdicts(finals)),
        curve=_curve_table(groups(srcd["rows"], "curve"), finals, by_setting, groups(srcd["rows"], "timed")),
        rates=_rates_table(srcd["rows"]),
    )


def groups(rows: Iterable[Row], what: str) -> list[Group]:
    """Rows of one kind, by task, model and setting, in their order."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["what"] == what:
            found.setdefault((row["task"], row["model"], row["setting"]), []).append(row)
    return [Group(model=model, setting=setting, rows=each) for (_, model, setting), each in found.items()]


def verdicts(finals: Sequence[Group]) -> list[str]:
    """Who solves SRCD, with how many reads; and who does not."""
    lines = []
    solving = sorted((g for g in finals if g.solves), key=lambda g: g.reads)
    if without := [g for g in solving if g.reads == 0]:
        lines.append(f"Without any attention, by a state that is large enough: {', '.join(g.name for g in without)}.")
    if some := [g for g in solving if g.reads > 0]:
        least = _percent(some[0].median("opt"))
        told = ", ".join(f"{_with_seeds(g, finals)} {_percent(g.reads)}" for g in some)
        lines.append(f"With reads, of which {least} is the least possible: {told}.")
    ours = [g for g in solving if g.model == "cram"]
    if any(g.model == "cram" for g in finals) and not ours:
        lines.append(f"CRAM does not reach {_percent(SOLVED)} with every seed.")
    elif ours and (fewer := [g for g in solving if g.reads < ours[0].reads]):
        lines.append(f"CRAM is not ahead of {', '.join(g.name for g in fewer)}.")
    elif ours:
        lines.append("Of these, CRAM reads least.")
    if not_solving := [g for g in finals if not g.solves]:
        lines.append(f"Not at {_percent(SOLVED)} with every seed: {', '.join(map(_fails, not_solving))}.")
    return lines


def _with_seeds(group: Group, finals: Sequence[Group]) -> str:
    """Its name, and how many seeds it has if others have more."""
    count, most = len(group.rows), max(len(other.rows) for other in finals)
    return group.name if count == most else f"{group.name} ({count} seed{'s' if count > 1 else ''})"


def _fails(group: Group) -> str:
    """A model that does not solve SRCD, how far it came, and with how many seeds it does."""
    novel = f"novel {_percent(group.median('accuracy_novel'))}"
    if len(group.rows) > 1:
        novel += f", at worst {_percent(group.worst('accuracy_novel'))}"
    good = [row for row in group.rows if row["accuracy"] >= SOLVED]
    if not good:
        return f"{group.name} ({novel})"
    reads = statistics.median(float(row["reads"]) for row in good)
    return f"{group.name} ({novel}; {len(good)} of {len(group.rows)} seeds do, with reads of {_percent(reads)})"


def _setting(data: Row) -> str:
    return f"{data['setting']} {source(data)}"


def _mqar_table(finals: Sequence[Group]) -> str:
    def line(group: Group) -> list[str]:
        least = group.median("opt")
        return [
            group.rows[0]["task"],
            group.name,
            _count(group.rows[0].get("steps")),
            str(len(group.rows)),
            f"{group.rows[0]['parameters']:,}",
            _accuracy(group, "accuracy"),
            _most_reads(group),
            plain(group.reads / least) if least else "–",
            _percent(group.median("pairs")),
            _percent(group.median("compared") or 0.0),
        ]

    heads = ("task", "model", "steps", "seeds", "parameters", "accuracy", "reads", "reads ÷ queries", "pairs", "index")
    return table(heads, map(line, finals))


def _mqar_notes(finals: Sequence[Group]) -> str:
    """Who learned nothing, which says nothing about what it can hold."""
    stuck = [group.name for group in finals if group.worst("accuracy") < _CHANCE]
    return f" In its steps, and at each rate tried, this never left chance: {', '.join(stuck)}." if stuck else ""


def _timed(group: Group) -> tuple[str, str]:
    """What its time depends on: not on how long it was trained."""
    told = [part for part in group.setting.split(", ") if not part.startswith("steps=")]
    return group.model, ", ".join(told)


def _srcd_table(finals: Sequence[Group], costs: Mapping[tuple[str, str], Group]) -> str:
    def line(group: Group) -> list[str]:
        cost = costs.get(_timed(group))
        measured = {
            key: cost.median(key) if cost else None for key in ("state_bytes", "tokens_per_second", "forward_ms")
        }
        return [
            group.name,
            str(len(group.rows)),
            _accuracy(group, "accuracy"),
            _percent(group.median("accuracy_recurring")),
            _accuracy(group, "accuracy_novel"),
            plain(group.error),
            _most_reads(group),
            _percent(group.median("pairs")),
            _percent(group.median("compared") or 0.0),
            _percent(group.median("writes")),
            f"{group.rows[0]['parameters']:,}",
            _bytes(measured["state_bytes"]),
            _thousands(measured["tokens_per_second"]),
            plain(measured["forward_ms"], 1),
        ]

    return table(_COLUMNS, map(line, finals))


def _curve_table(
    curve: Sequence[Group], finals: Sequence[Group], costs: Mapping[tuple[str, str], Group], again: Sequence[Group]
) -> str:
    """Settings of each model that has several, as it is otherwise among them, by their reads."""
    repeated = {(group.model, group.setting): group for group in again}

    def line(group: Group) -> list[str]:
        cost, other = costs.get(_timed(group)), repeated.get((group.model, group.setting))
        return [
            f"`{group.model}`",
            group.setting or f"default: {_DEFAULTS[group.model]}",
            _percent(group.median("accuracy")),
            _percent(group.median("accuracy_novel")),
            _percent(group.reads),
            _percent(group.median("pairs")),
            plain(cost.median("forward_ms") if cost else None, 1),
            ", ".join(dict.fromkeys(row["commit"] for row in cost.rows)) if cost else "–",
            f"{_percent(other.median('accuracy'))}, reads {_percent(other.reads)}" if other and group.setting else "–",
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
    told = _percent(row["accuracy"]) + (f" ({_percent(row['reads'])})" if chosen else "")
    return f"**{told}**" if row["what"] == "final" else told


def _most_reads(group: Group) -> str:
    """The median of the seeds, and the most in brackets."""
    most = max(float(row["reads"]) for row in group.rows)
    return _percent(group.reads) if len(group.rows) == 1 else f"{_percent(group.reads)} ({_percent(most)})"


def _accuracy(group: Group, key: str) -> str:
    median = _percent(group.median(key))
    return median if len(group.rows) == 1 or group.median(key) is None else f"{median} ({_percent(group.worst(key))})"


def _percent(share: float | None) -> str:
    return percent(share).replace(SPACE, " ")


def _bytes(size: float | None) -> str:
    if size is None:
        return "–"
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


def _thousands(value: float | None) -> str:
    return "–" if value is None else f"{value / 1000:.0f}k"


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
