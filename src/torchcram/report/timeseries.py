"""The page about irregular time series: how good each model is, what chance would give, and what differs for sure."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchcram.report.markdown import source, table
from torchcram.report.words import SPACE, percent, plain
from torchcram.results import ROUTED

Row = Mapping[str, Any]

MEASURES = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "balanced_accuracy": "balanced accuracy",
    "brier": "Brier",
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
}
"""By the keys of result files."""

PUBLISHED: Mapping[str, Sequence[tuple[str, float, float]]] = {
    "p12": (
        ("ViTST (Li et al. 2023)", 85.1, 51.1),
        ("mTAND (as told by Zhang et al. 2022)", 84.2, 48.2),
        ("Transformer (likewise)", 83.3, 47.9),
        ("GRU-D (likewise)", 81.9, 46.1),
    ),
    "p12-mtand": (("mTAND (Shukla and Marlin 2021)", 85.8, float("nan")),),
}
"""What others report with the same protocol: AUROC and AUPRC in per cent."""

_FEW = 10  # groups: fewer give no interval to rely on
_PAGE = """\
# Irregular time series: results

Made by `torchcram timeseries-page` from `results/timeseries-*.json`. What the models are and see:
[timeseries.md](timeseries.md). Mean ± standard deviation over splits, in per cent. With a thousand patients or so to be
judged on, differences under about 1.5 points of AUROC are noise.

{sections}
"""


def page(files: Mapping[str, Row]) -> str:
    """The whole page, in Markdown, from result files by the name of their data set."""
    return _PAGE.format(sections="\n\n".join(_section(name, data) for name, data in files.items()))


def warnings(rows: Sequence[Row]) -> list[str]:
    """What should make a reader stop: scores that are the same for two models, and scores that chance could give."""
    models = [row for row in rows if row["what"] == "model"]
    chances = {row["split"]: row for row in rows if row["what"] == "chance"}
    told = []
    for one, other in itertools.combinations(models, 2):
        shared = [name for name in MEASURES if name in one and name in other]
        if one["split"] == other["split"] and all(one[name] == other[name] for name in shared):
            told.append(f"split {one['split']}: {_who(one)} and {_who(other)} have exactly the same scores")
    for row in models:
        if row["model"] == "majority":
            continue
        for name in MEASURES:
            by_chance = chances.get(row["split"], {}).get(name)
            if f"{name}_low" not in row or by_chance is None:
                continue
            better = row[f"{name}_high"] < by_chance if name == "brier" else row[f"{name}_low"] > by_chance
            if not better:
                told.append(f"split {row['split']}: {_who(row)} is not clearly better than chance in {MEASURES[name]}")
    for split, count in {row["split"]: row["groups"] for row in models if "groups" in row}.items():
        if count < _FEW:
            told.append(
                f"split {split}: only {count} group{'s' if count > 1 else ''}, so single samples were resampled"
            )
    return told


def _section(name: str, data: Row) -> str:
    rows = data["rows"]
    parts = [f"## {name}", source(data), _models(name, rows)]
    if choices := _choices(rows):
        parts += ["What validation chose for each split, by log loss:", choices]
    if any(row["what"].startswith("difference") for row in rows):
        parts += ["What `cram` is ahead by, on the same samples drawn again and again:", _differences(rows)]
    if told := warnings(rows):
        parts.append("\n".join(f"- {line}" for line in _counted(told)))
    return "\n\n".join(parts)


def _models(name: str, rows: Sequence[Row]) -> str:
    models = [row for row in rows if row["what"] == "model"]
    shown = [key for key in MEASURES if all(key in row for row in models)]
    lines = []
    for who in dict.fromkeys(map(_who, models)):
        mine = [row for row in models if _who(row) == who]
        reads = [row["reads"] for row in mine if row.get("reads") is not None]
        size = mine[0].get("parameters")
        lines.append(
            [
                who,
                str(len(mine)),
                str(mine[0].get("members", 1)),
                *(_spread([row[key] for row in mine]) for key in shown),
                percent(statistics.mean(reads)).replace(SPACE, " ") if reads else "–",
                f"{size:,}" if size else "–",
            ]
        )
    chances = [row for row in rows if row["what"] == "chance"]
    if chances:
        cells = [_spread([row[key] for row in chances]) if key in chances[0] else "–" for key in shown]
        lines.append(["*chance*", str(len(chances)), "–", *cells, "–", "–"])
    for who, auroc, auprc in PUBLISHED.get(name, ()):
        known = {"auroc": plain(auroc, 1), "auprc": plain(auprc, 1) if auprc == auprc else "–"}
        lines.append([f"*{who}*", "–", "–", *(known.get(key, "–") for key in shown), "–", "–"])
    heads = ("model", "splits", "members", *(MEASURES[key] for key in shown), "reads", "parameters")
    return table(heads, lines)


def _choices(rows: Sequence[Row]) -> str:
    """What each model was given to choose from, and what was chosen; nothing if nothing was."""
    lines = []
    models = [row for row in rows if row["what"] == "model" and row["routing"] == ROUTED]
    for who in dict.fromkeys(map(_who, models)):
        mine = [(row["split"], json.loads(row.get("chosen", "{}"))) for row in models if _who(row) == who]
        for setting in dict.fromkeys(name for _, chosen in mine for name in chosen):
            found = (_word(chosen[setting]) for _, chosen in sorted(mine, key=_split) if setting in chosen)
            lines.append([who, setting, ", ".join(found)])
    return table(("model", "setting", "by split"), lines) if lines else ""


def _differences(rows: Sequence[Row]) -> str:
    lines = []
    overall = [row for row in rows if row["what"] == "difference, all splits"]
    each = [row for row in rows if row["what"] == "difference"]
    for row in overall or each:
        if row in overall:
            ahead = f"{100 * row['ahead']:+.1f} ± {100 * row['sd']:.1f}"
            alike = ("measure", "model", "routing")
            mine = [other for other in each if all(other[key] == row[key] for key in alike)]
        else:
            ahead = f"{100 * row['ahead']:+.1f} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
            mine = [row]
        before, behind = sum(other["low"] > 0 for other in mine), sum(other["high"] < 0 for other in mine)
        clear = f"{before} and {behind} of {len(mine)}"
        lines.append([_who(row), MEASURES[row["measure"]], ahead, clear])
    return table(("than", "measure", "ahead by", "splits in which it is ahead, and behind, beyond noise"), lines)


def _who(row: Row) -> str:
    reads = {ROUTED: "", "off": ", no reads", "dense": ", all read"}[row["routing"]]
    return f"`{row['model']}`{reads}"


def _split(said: tuple[int, Row]) -> int:
    return said[0]


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _spread(found: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{100 * statistics.mean(found):.1f}{spread}"


def _counted(told: Iterable[str]) -> list[str]:
    """The same said of several splits in one line."""
    by_rest: dict[str, list[str]] = {}
    for line in told:
        split, _, rest = line.partition(": ")
        by_rest.setdefault(rest, []).append(split.removeprefix("split "))
    return [f"split{'s' if len(each) > 1 else ''} {', '.join(each)}: {rest}" for rest, each in by_rest.items()]
