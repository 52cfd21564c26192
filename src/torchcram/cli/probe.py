"""`torchcram probe`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from torchcram import results
from torchcram.cli.errors import told
from torchcram.cli.settings import machine, numbers, prepare
from torchcram.files import replacing
from torchcram.pretrained import redundancy
from torchcram.pretrained.load import Pretrained, load
from torchcram.pretrained.probes import ProbeConfig
from torchcram.pretrained.redundancy import RedundancyConfig
from torchcram.pretrained.text import Document, Windows, documents, windows
from torchcram.report import redundancy as report
from torchcram.results import Row

_WINDOW = 1024


@told()
def run(
    model: str,
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
    device: str,
) -> None:
    """Find out how much of a model's attention can be told without attending; write rows and a page to a folder."""
    prepare(device, tf32=False)
    console = Console(highlight=False)
    config = RedundancyConfig(
        tested_tokens=tested_tokens, probe=ProbeConfig(batch=batch, rank=rank, steps=steps, seed=seed)
    )
    rows: list[Row] = []
    parts: tuple[Windows, dict[str, Windows]] | None = None  # the same at every step
    for step in [None] if at is None else numbers("--at", at, least=0):
        with _room(device, f"to hold {model}; use --device cpu, or a smaller model"):
            loaded = load(model, step=step, device=device)
            if bf16:
                loaded.model.bfloat16()
        length = window or min(_WINDOW, loaded.context or _WINDOW)
        if loaded.context and length > loaded.context:
            raise ValueError(f"--window {length} is more than the {loaded.context} positions that {loaded.name} has")
        parts = parts or _parts(loaded, text, judged, length, train_tokens, eval_tokens, seed)
        train, held = parts
        if step is not None:
            console.print(f"step {step:,}")
        with _room(device, "for this; use a smaller --batch or --window"):
            found = [
                *(_about(loaded, train, name, windows) for name, windows in held.items()),
                *redundancy.run(loaded, train, held, config, device=device, say=console.print),
            ]
        rows += found if step is None else [{**row, "step": step} for row in found]
    out.mkdir(parents=True, exist_ok=True)
    name = f"redundancy-{loaded.name.rpartition('/')[2]}"
    results.write(out / "redundancy.json", name=name, rows=rows, seeds=[seed], machine=machine(device))
    with replacing(out / "report.html") as temporary:
        temporary.write_text(report.page(results.read(out / "redundancy.json")), encoding="utf-8")
    for mine in report.by_text(rows).values():
        heads, lines = (
            report.over_training(mine) if at is not None else (report.HEADS, report.groups(mine, intervals=False))
        )
        console.print(_table(heads, lines))
        console.print(report.verdict(report.last(mine)), soft_wrap=True)
    console.print(f"{out / 'redundancy.json'}, {out / 'report.html'}", soft_wrap=True)


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


def _about(loaded: Pretrained, train: Windows, text: str, held: Windows) -> Row:
    return {
        "what": "about",
        "text": text,
        "model": loaded.name,
        "note": loaded.note,
        "window": held.tokens.shape[1],
        "train_tokens": train.tokens.numel(),
        "eval_tokens": held.tokens.numel(),
        "documents": len(set(held.owner.tolist())),
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "dtype": str(next(loaded.model.parameters()).dtype).removeprefix("torch."),
    }


def _parts(
    loaded: Pretrained, text: Sequence[Path], judged: Sequence[Path], length: int, train: int, held: int, seed: int
) -> tuple[Windows, dict[str, Windows]]:
    """Windows to learn from, and others to judge on: those of each other file, or of the ends of the same ones."""
    given = [document for path in text for document in documents(path)]
    if judged:
        if both := sorted({path.resolve() for path in text} & {path.resolve() for path in judged}):
            raise ValueError(f"{both[0].name} cannot both be learned from and judged on")
        others = {path.name: documents(path) for path in judged}
        if len(others) < len(judged):
            raise ValueError("two files to judge on have the same name; results are told apart by it")
    else:
        given, ends = _ends(given)
        others = {f"the end of {', '.join(path.name for path in text)}": ends}
    return windows(given, loaded.tokenizer, length, train, seed), {
        name: windows(some, loaded.tokenizer, length, held, seed) for name, some in others.items()
    }


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
