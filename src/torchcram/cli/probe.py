"""`torchcram probe`."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import machine, numbers, prepare
from torchcram.files import replacing
from torchcram.pretrained import function, redundancy
from torchcram.pretrained.load import Pretrained, checkpoints, load
from torchcram.pretrained.probes import ProbeConfig
from torchcram.pretrained.redundancy import RedundancyConfig
from torchcram.pretrained.text import Document, Windows, documents, read, windows
from torchcram.pretrained.tokens import Bytes, Tokenizer
from torchcram.report import redundancy as report
from torchcram.results import Row

_WINDOW = 1024
_FIRST = 16  # windows of a text, from its beginning, whose perplexity tells whether a model was loaded right
_MOST = 700.0  # nats: of more, the perplexity is no number
_OF_THE_LAST = ("head", "penalty", "order")  # rows that earlier steps of a run are not shown by
_LETTERS = 32  # more than a token has, on average


@told()
def run(
    models: Sequence[str],
    out: Path,
    *,
    text: Sequence[Path],
    judged: Sequence[Path],
    train_tokens: int,
    eval_tokens: int,
    tested_tokens: int,
    window: int | None,
    batch: int,
    rank: int | None,
    steps: int,
    seed: int,
    at: str | None,
    bf16: bool,
    tf32: bool,
    device: str,
) -> None:
    """Find out how much of models' attention can be told without attending; write rows and a page to a folder."""
    _usable(out)
    if bf16 and tf32:
        raise ValueError("--bf16 and --tf32 exclude each other; tf32 is the more exact of the two")
    prepare(device, tf32=tf32)
    console = Console(highlight=False)
    began = time.monotonic()

    def say(words: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s  {words}", soft_wrap=True)

    asked = RedundancyConfig(
        tested_tokens=tested_tokens, probe=ProbeConfig(batch=batch, rank=rank, steps=steps, seed=seed)
    )
    rows: list[Row] = []
    texts = _Texts(text, judged, train_tokens, eval_tokens, seed)
    every: list[Sequence[int | None]] = [[None] if at is None else _steps(name, at) for name in models]
    for name, stages in zip(models, every, strict=True):
        # Of several steps, one can be the first, which has random weights.
        config = asked if len(stages) == 1 else replace(asked, control_tokens=0)
        for step in stages:
            started = time.monotonic()
            if step is None:
                say(f"loading {name}")
            with _room(device, f"to hold {name}; use --device cpu, or a smaller model"):
                loaded = load(name, step=step, device=device)
                if bf16:
                    loaded.model.bfloat16()
            length = window or loaded.length or min(_WINDOW, loaded.context or _WINDOW)
            if loaded.context and length > loaded.context:
                raise ValueError(
                    f"--window {length} is more than the {loaded.context} positions that {loaded.name} has"
                )
            say(loaded.name if step is None else f"{loaded.name}, step {step:,}")
            parts = texts.cut(loaded.tokenizer, length)
            if (loaded.name, step) in {(row["model"], row.get("step")) for row in rows}:
                raise ValueError(f"two models are named {loaded.name}; results are told apart by it")
            with _room(device, "for this; use a smaller --batch or --window"):
                firsts = {
                    each: _first(loaded, each, some, tested_tokens, batch, device, say)
                    for each, some in parts.first.items()
                }
                control = parts.train.some(config.control_tokens).tokens.numel() if config.control_tokens else 0
                found = redundancy.run(loaded, parts.train, parts.held, config, device=device, say=say)
                for judged_on, of_text in itertools.groupby(found, key=lambda row: str(row["text"])):
                    measured = [*(row for each, row in firsts.items() if each == judged_on), *of_text]
                    about = {
                        **_about(loaded, parts.train, judged_on, parts.held[judged_on], tf32 and device != "cpu"),
                        "learned_from": ", ".join(path.name for path in text),
                        "control_tokens": control,
                        "seconds": time.monotonic() - started,  # with loading, learning, and the texts before
                    }
                    rows += [
                        _rounded(row if step is None else {**row, "step": step})
                        for row in (about, *measured)
                        if step == stages[-1] or row["what"] not in _OF_THE_LAST
                    ]
                    # What was found so far is there even if the rest is never reached.
                    _write(out / "redundancy.json", rows, seed, device, over_training=at is not None)
    with replacing(out / "report.html") as temporary:
        temporary.write_text(report.page(results.read(out / "redundancy.json")), encoding="utf-8")
    for mine in report.parts(rows):
        heads, lines = (
            report.over_training(mine) if at is not None else (report.HEADS, report.groups(mine, intervals=False))
        )
        console.print(_table(heads, lines))
        final = report.last(mine)
        console.print(" ".join(filter(None, (report.verdict(final), report.own_loss(final)))), soft_wrap=True)
    say(f"{out / 'redundancy.json'}, {out / 'report.html'}")


def _usable(out: Path) -> None:
    """Told before anything is measured: a place where no folder can be, or nothing written."""
    there = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"--out {out} cannot be a folder: {there} is a file; choose another folder for the results")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"--out {out} is not possible: {there} cannot be written to; choose another folder")
    for name in ("redundancy.json", "report.html"):
        if (out / name).is_dir():
            raise ValueError(f"--out {out} is not possible: {out / name} is a folder; choose another")


def _write(path: Path, rows: Sequence[Row], seed: int, device: str, *, over_training: bool) -> None:
    """A result file of what was found so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys(str(row["model"]).rpartition("/")[2] for row in rows)
    called = f"redundancy-{'training' if over_training else '-'.join(names)}"
    results.write(path, name=called, rows=rows, seeds=[seed], machine=machine(device))


def _steps(model: str, at: str) -> list[int]:
    """Of a run, all of which there are checkpoints, or those that are listed, in order."""
    there = checkpoints(model)
    if at == "all":
        return there
    wanted = sorted(set(numbers("--at", at, least=0)))
    if missing := [step for step in wanted if step not in there]:
        raise ValueError(f"{model} has no checkpoint of step {missing[0]}; there are: {', '.join(map(str, there))}")
    return wanted


def _first(
    loaded: Pretrained, text: str, first: Windows, tokens: int, batch: int, device: str, say: Callable[[str], None]
) -> Row:
    """Perplexity at the beginning of a text, which others may have measured too; damage of weights may show here."""
    some = first[torch.arange(min(_FIRST, len(first), max(1, tokens // first.tokens.shape[1])))]
    loss = float(function.Tester(loaded.model, [], some, batch=batch, device=device).loss().mean())
    if not loss < _MOST:
        raise ValueError(
            f"{loaded.name} predicts nothing: its loss on {text} is {loss:.4g} nats a token; its weights may be "
            "damaged: get it again"
        )
    say(
        f"{text}: perplexity {math.exp(loss):.2f} ({loss:.4f} nats a token, a guess {math.log(loaded.vocabulary):.4f}) "
        f"on its first {len(some)} windows of {some.tokens.shape[1]:,}"
    )
    told = {"windows": len(some), "loss": loss, "perplexity": math.exp(loss)}
    return {"what": "first windows", "text": text, "model": loaded.name, **told}


def _rounded(row: Row) -> Row:
    """Six digits of each number: more would be of no use in a file of thousands."""
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}


@contextmanager
def _room(device: str, way: str) -> Iterator[None]:
    """What needs more memory than there is says so, and what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # On a CPU, torch has no error of its own for this.
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise ValueError(f"{device} has too little memory {way}") from error
        raise


def _about(loaded: Pretrained, train: Windows, text: str, held: Windows, tf32: bool) -> Row:
    return {
        "what": "about",
        "text": text,
        "model": loaded.name,
        "kind": loaded.kind,
        "note": loaded.note,
        "window": held.tokens.shape[1],
        "train_tokens": train.tokens.numel(),
        "eval_tokens": held.tokens.numel(),
        "documents": len(set(held.owner.tolist())),
        "vocabulary": loaded.vocabulary,
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "dtype": "tf32" if tf32 else str(next(loaded.model.parameters()).dtype).removeprefix("torch."),
    }


class _Cut(NamedTuple):
    """Windows of texts."""

    train: Windows
    """To learn from."""
    held: dict[str, Windows]
    """To judge on, by text."""
    first: dict[str, Windows]
    """The beginnings of these: of files, as they are; of parts that were kept apart, their first windows."""


class _Texts:
    """Files to learn from, and others to judge on; or the ends of the same ones."""

    def __init__(self, text: Sequence[Path], judged: Sequence[Path], train: int, held: int, seed: int) -> None:
        self.given = [document for path in text for document in documents(path)]
        self.judged, self.train, self.held, self.seed = judged, train, held, seed
        self._bytes: tuple[int, _Cut] | None = None
        if judged:
            if both := sorted({path.resolve() for path in text} & {path.resolve() for path in judged}):
                raise ValueError(f"{both[0].name} cannot both be learned from and judged on")
            self.others = {path.name: documents(path) for path in judged}
            if len(self.others) < len(judged):
                raise ValueError("two files to judge on have the same name; results are told apart by it")
        else:
            self.given, ends = _ends(self.given)
            self.others = {f"the end of {', '.join(path.name for path in text)}": ends}

    def cut(self, tokenizer: Tokenizer, length: int) -> _Cut:
        """As tokens, in windows; those of bytes are the same for every model."""
        if isinstance(tokenizer, Bytes) and self._bytes is not None and self._bytes[0] == length:
            return self._bytes[1]
        whole = {name: windows(some, tokenizer, length) for name, some in self.others.items()}
        held = {name: every.some(self.held, self.seed) for name, every in whole.items()}
        first = {name: every[torch.arange(min(_FIRST, len(every)))] for name, every in whole.items()}
        for path in self.judged:
            beginning = read(path)[: _FIRST * _LETTERS * length]
            first[path.name] = windows([Document(path.name, beginning)], tokenizer, length)
        made = _Cut(windows(self.given, tokenizer, length, self.train, self.seed), held, first)
        if isinstance(tokenizer, Bytes):
            self._bytes = length, made
        return made


def _ends(given: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """All but a tenth of the documents of each file, and that tenth; of a single document, its end."""
    first, last = [], []
    by_file: dict[str, list[Document]] = {}
    for document in given:
        by_file.setdefault(document.name.rpartition(":")[0], []).append(document)
    for each in by_file.values():
        if len(each) > 1:
            count = max(1, len(each) // 10)
            first += each[:-count]
            last += each[-count:]
        else:
            (whole,) = each
            cut = 9 * len(whole.text) // 10
            first.append(Document(whole.name, whole.text[:cut]))
            last.append(Document(whole.name, whole.text[cut:]))
    return first, last


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = Table(*heads, box=None)
    for line in lines:
        table.add_row(*line)
    return table
