"""The document about redundant attention: what the paper's number means, what was measured here, and no more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torchcram.report.markdown import source, table
from torchcram.report.redundancy import LADDER, SLIGHT, between, costly, growing, last, own_loss, parts, pick, verdict
from torchcram.report.redundancy_words import changes, compared, copying, function, inflation, one, stage, stages_of
from torchcram.report.words import duration, percent, plain

Row = Mapping[str, Any]

GROUPS = ("early", "middle", "late", "overall")

PAPER: Mapping[str, Sequence[str]] = {
    "R of GPT-2, 124M (paper)": ("0.77", "0.97", "0.79", "0.84"),
    "R of GPT-2, 355M (paper)": ("0.87", "0.99", "0.9", "0.92"),
}
"""R of early, middle, late and all layers, as printed."""

PAPER_HEADS = ("34 %", "41 %", "25 %")
"""Heads with R above 0.8, between, and below 0.5."""

PAPER_TRAINING = (("10,000", "4.21", "0.52"), ("50,000", "3.54", "0.67"), ("100,000", "3.31", "0.71"))
PAPER_TRAINED = ("300,000", "3.18", "0.72")
"""Steps, validation loss in nats a token, and R."""

_PAGE = """\
# How much attention is redundant?

Made by `torchcram redundancy` from the results {files}. How it is
measured, and how to do it for your model: [usage.md](usage.md#pretrained-models).

## What the paper's number means

The paper learns a linear map from what goes into attention to what comes out, and prints R, the mean of
1 − ‖a − â‖ ÷ ‖a‖: 0.84 and 0.92 for two sizes of GPT-2, from which it says that 88 % of attention is redundant. Three
things stand between that number and that sentence.

- **R is not about the mean.** Who always says the mean has seen nothing of the input, and still has a high R where
  attention returns much the same everywhere: 0.78 in a simulation in which 95 % of the energy is the same. So beside
  every R below stands the mean's own, and what the probe has above it is the *excess*.
- **R is not a share.** It takes lengths, not squares: to tell three quarters of the variance about a mean of zero is an
  R of 0.5 only. Centred R² is the share of the variance that is told.
- **R does not say what the rest is worth.** Little of the variance may be all that matters, or much of it nothing. The
  loss with a probe in attention's place says it; *recovered* is the share of the mean's cost that a probe saves.

## {name}

{about}

{texts}

## Over training

{training}

## Where the numbers come from

{name}: {pretrained}

Over training: {over_training}
"""


def page(pretrained: Row, training: Row) -> str:
    """The whole document, in Markdown: of a pretrained model, and of runs at several steps."""
    for what, data in (("a pretrained model", pretrained), ("runs over training", training)):
        if missing := sorted({"name", "machine", "commit", "command", "rows"} - data.keys()):
            raise ValueError(f"the result file of {what} has no {', '.join(missing)}")
    if any(row.get("step") is not None for row in pretrained["rows"]):
        raise ValueError("the result file of a pretrained model has steps: it is one of runs over training")
    if any(row.get("step") is None for row in training["rows"]):
        raise ValueError("the result file of runs over training has rows without a step: use torchcram probe --at all")
    models = list(dict.fromkeys(row["model"] for row in pretrained["rows"]))
    if len(models) != 1:
        raise ValueError(f"the result file of a pretrained model has {len(models)} of them: {', '.join(models)}")
    texts = parts(pretrained["rows"])
    return _PAGE.format(
        name=models[0],
        files=" and ".join(f"`{data['name']}`" for data in (pretrained, training)),
        about=_about(texts),
        texts="\n\n".join(_text(rows) for rows in texts),
        training=_training(training["rows"]),
        pretrained=source(pretrained),
        over_training=source(training),
    )


def _about(texts: Sequence[Sequence[Row]]) -> str:
    told = one(texts[0], "about")
    lines = [
        f"{told['note'] or told['model']}. {told['parameters']:,} parameters, computed in {told['dtype']}; sums in "
        f"float64. Probes learned from {told['train_tokens']:,} tokens of `{told['learned_from']}` in windows of "
        f"{told['window']:,}, once for all texts below: of one of another kind, probes that learned from its like "
        f"might tell more.{_control(told)} The mean is that of the text that is judged on; the mean at a position, or "
        f"for a token, of the text that was learned from. All of it took {_took(texts)}. Layers are counted "
        "from 1."
    ]
    for rows in texts:
        about, begin = one(rows, "about"), next((row for row in rows if row["what"] == "first windows"), None)
        line = f"- `{about['text']}`: {about['eval_tokens']:,} tokens of {about['documents']} documents"
        if begin is not None:
            line += f"; perplexity {begin['perplexity']:.2f} on its first {begin['windows']} windows"
        lines.append(f"{line}. {own_loss(rows)}".rstrip())
    return "\n".join([lines[0], "", *lines[1:]])


def _control(told: Row) -> str:
    tokens = told["control_tokens"]
    return f" Those of the model with random weights learned from {tokens:,} of these tokens." if tokens else ""


def _took(texts: Sequence[Sequence[Row]]) -> str:
    """Until the last text was done, from when the model began to be loaded."""
    return duration(max(float(one(rows, "about")["seconds"]) for rows in texts))


def _text(rows: Sequence[Row]) -> str:
    """What was found on one text."""
    blocks = [f"### On `{one(rows, 'about')['text']}`", verdict(rows)]
    blocks += [
        "R as printed beside the paper's, of other models and other text; 95 % over documents, or over passages where "
        "they are fewer than ten; a figure alone rests on too few of either. Positions from the fifth on; of losses, "
        "all.",
        _side_by_side(rows),
        _list(inflation(rows)),
        "Heads, in the paper's three groups:",
        _heads(rows),
        "The ladder: centred R² of each predictor. The linear ones are exact; the narrow one learned by descent, in "
        "one pass over the tokens, and may not be at its best.",
        _ladder(rows),
        "**What it is worth.** Nats a token more with a single layer's attention replaced, on average over the layers "
        "of a third, and the share of the mean's cost that is saved.",
        _alone(rows),
        "More and more layers, those first that cost least on one half of the text, measured on the other half; so the "
        "cost of all layers in the last line is not quite that of the whole text, which stands above and below:",
        _more(rows),
        _list([*function(rows), *copying(rows)]),
    ]
    return "\n\n".join(filter(None, blocks))


def _side_by_side(rows: Sequence[Row]) -> str:
    lines = [[name, *cells] for name, cells in PAPER.items()]
    told = {
        "R as printed": ("linear", "printed"),
        "the mean's R": ("mean", "printed"),
        "excess R": ("linear", "excess"),
        "centred R²": ("linear", "r2"),
        "centred cosine": ("linear", "cosine"),
    }
    for label, (predictor, key) in told.items():
        lines.append([label, *(_cell(pick(rows, "group", group=group, predictor=predictor), key) for group in GROUPS)])
    control = [pick(rows, "group", weights="random", group=group, predictor="linear") for group in GROUPS]
    if any(control):
        lines.append(["centred R², random weights", *(_cell(row, "r2") for row in control)])
    saved = [_of_group(rows, group, "linear") for group in GROUPS]
    lines.append(["loss recovered, one layer at a time", *(_cell(row, "recovered") for row in saved)])
    return table(("", *(f"{group} layers" if group != "overall" else group for group in GROUPS)), lines)


def _heads(rows: Sequence[Row]) -> str:
    names = {"printed": "by R as printed", "r2": "by centred R²"}
    found = [
        row for row in rows if row["what"] == "heads" and row["weights"] == "pretrained" and row["positions"] == "later"
    ]
    lines = [["GPT-2 (paper), by R", *PAPER_HEADS]]
    lines += [[names[row["measure"]], *(percent(row[key], 0) for key in ("high", "middle", "low"))] for row in found]
    return table(("", "above 0.8", "0.5 to 0.8", "below 0.5"), lines)


def _ladder(rows: Sequence[Row]) -> str:
    lines = []
    for name, words in LADDER.items():
        each = [pick(rows, "group", group=group, predictor=name) for group in GROUPS]
        if any(each):
            lines.append([words, *(_cell(row, "r2") for row in each)])
    return table(("predictor", *GROUPS), lines)


def _alone(rows: Sequence[Row]) -> str:
    names = [name for name in LADDER if _of_group(rows, "overall", name) is not None]
    lines = []
    for group in GROUPS:
        found = {name: _of_group(rows, group, name) for name in names}
        costs = [_cell(found[name], "cost", 4) for name in names]
        lines.append([group, *costs, *(_cell(found[name], "recovered") for name in names if name != "mean")])
    heads = [f"{LADDER[name]}: cost" for name in names]
    heads += [f"{LADDER[name]}: recovered" for name in names if name != "mean"]
    return table(("layers", *heads), lines)


def _more(rows: Sequence[Row]) -> str:
    names = [name for name in LADDER if growing(rows, name)]
    if not names:
        return "Not measured: there is one document only, too short to be halved."
    by_name = {name: growing(rows, name) for name in names}
    lines = [
        [f"{row['count']}", *(_cell(by_name[name][place], "cost") for name in names)]
        for place, row in enumerate(by_name[names[0]])
    ]
    return table(("layers replaced", *(f"{LADDER[name]}: cost" for name in names)), lines)


def _training(rows: Sequence[Row]) -> str:
    """Of each model on each text, and what became of it; then the models beside each other."""
    paper = table(("step", "nats a token", "R"), (*PAPER_TRAINING, PAPER_TRAINED))
    blocks = [
        "The paper's GPT-2, 124M:",
        paper,
        "Ours are small models of bytes, one run each; nats are a byte's, and a uniform guess over all 256 costs "
        f"{plain(math.log(256))}. R, the mean's R and R² are of the linear probe over all layers, positions from the "
        "fifth on; recovered: of what the mean costs, one layer at a time, and in all layers at once, with a dash "
        f"where the mean does not clearly cost more than {percent(SLIGHT, 1)} of the loss. Without all its attention a "
        "Transformer sees one byte at a time; CRAM keeps its working memory, so the two costs are not of the same "
        "thing. All of this is with every position reading; for CRAM, once it is released, the last column also tells "
        "its loss with the reads that it chooses. Step 0 is the model with random weights.",
    ]
    every = parts(rows)
    for mine in every:
        blocks += [_over_training(mine), _list(changes(mine))]
    return "\n\n".join([*blocks, _list(compared(every))]).strip()


def _over_training(rows: Sequence[Row]) -> str:
    about = one(last(rows), "about")
    lines = []
    for mine in stages_of(rows):
        linear, mean, loss, whole, reads = stage(mine)
        alone, without = (_of_group(mine, "overall", name) for name in ("linear", "mean"))
        all_without = growing(mine, "mean", "first to last")[-1]
        executed = percent(reads["reads"]) if reads is not None else "–"
        waiting = ""
        if reads is not None and about["kind"] == "cram":
            waiting = f" ({plain(reads['loss'], 3)} nats)" if reads["released"] else " (not released)"
        lines.append(
            [
                f"{mine[0]['step']:,}",
                plain(loss, 3),
                _cell(linear, "printed"),
                _cell(mean, "printed"),
                _cell(linear, "r2"),
                _cell(alone if without is not None and costly(without) else None, "recovered"),
                _cell(whole, "cost", 3),
                _cell(whole if costly(all_without) else None, "recovered"),
                f"{executed}{waiting}",
            ]
        )
    heads = (
        "step",
        "nats",
        "R as printed",
        "the mean's R",
        "centred R²",
        "one layer replaced: recovered",
        "all layers replaced: cost",
        "all layers replaced: recovered",
        "reads",
    )
    size = f"{about['parameters']:,} parameters; probes from {about['train_tokens']:,} bytes"
    judged = f"judged on {about['eval_tokens']:,} of `{about['text']}`"
    return f"**{about['note']}**, {size}, {judged}:\n\n{table(heads, lines)}"


def _of_group(rows: Sequence[Row], group: str, predictor: str) -> Row | None:
    wanted = {"what": "one of a group", "group": group, "predictor": predictor}
    return next((row for row in rows if all(row.get(key) == value for key, value in wanted.items())), None)


def _cell(row: Row | None, key: str, digits: int = 2) -> str:
    return "–" if row is None else between(row, key, lambda value: plain(value, digits))


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
