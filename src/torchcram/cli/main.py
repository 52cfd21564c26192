"""The commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchcram import __version__

app = typer.Typer(
    name="torchcram",
    help="Sequence models whose need for attention falls as they learn.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
bench = typer.Typer(help="Time ours against baselines, both in one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write a result file here; - prints it.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"torchcram {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Sequence models whose need for attention falls as they learn."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a setting, e.g. seed=1.")] = None,
) -> None:
    """Train a small model on SRCD (minutes on a laptop), evaluate it, and write a report."""
    from torchcram.cli.demo import run

    run(out, changes=set_ or [])


@app.command()
def train(
    task: Annotated[
        str,
        typer.Argument(
            help="The task: srcd, or a variant of it (novel, two-token, zipf, long, override, drift, stream); mqar, "
            "forgetting-mqar, associative, copying, induction."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model: cram (default), or with as many parameters one of its controls (gate, working) or a "
            "baseline (transformer, window, slots, mamba, jamba, seqboat, seqboat+cost, transmamba, mod, entropy)."
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Size of the model: tiny (default), small, medium, paper, large.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="adaptive (default), or paper: the paper's recipe to the letter.")
    ] = None,
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the layers; for GPUs.")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Matrix products in bfloat16; for GPUs.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, e.g. task.length=512 or optimizer.rate=1e-3.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in the folder.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    parallel: Annotated[
        str, typer.Option(help="With torchrun: ddp (each process holds the model) or fsdp (it is sharded).")
    ] = "ddp",
) -> None:
    """Train a model on a task: learn to read, then not to."""
    from torchcram.cli.train import run

    flags = [name for name, given in (("compile=true", compile_), ("bf16=true", bf16)) if given]
    run(
        task,
        out,
        model=model,
        preset=preset,
        schedule=schedule,
        changes=[*flags, *(set_ or [])],
        resume=resume,
        device=device,
        parallel=parallel,
    )


@app.command()
def sweep(
    task: Annotated[str, typer.Argument(help="The task, as for train.")],
    out: Annotated[Path, typer.Option(help="Folder of the runs.")],
    vary: Annotated[
        list[str],
        typer.Option(
            help="What to vary: optimizer.rate=1e-3,3e-3, seed=0,1,2, model=cram,mamba, consolidation.price=…"
        ),
    ],
    model: Annotated[str | None, typer.Option(help="The model, as for train.")] = None,
    preset: Annotated[str | None, typer.Option(help="Size of the models.")] = None,
    schedule: Annotated[str | None, typer.Option(help="As for train.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a setting of all runs.")] = None,
    workers: Annotated[int, typer.Option(help="Runs at a time.", min=1)] = 2,
    rows: Annotated[int, typer.Option(help="Held-out sequences each is evaluated on.", min=1)] = 512,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json: JsonFile = None,
) -> None:
    """Train every combination of some settings, side by side; stopped and started again, it goes on."""
    from torchcram.cli.sweep import run

    options = {"model": model, "preset": preset, "schedule": schedule}
    done = run(
        task,
        out,
        vary=vary,
        changes=set_ or [],
        options=options,
        workers=workers,
        rows=rows,
        device=device,
        json=json,
    )
    if not done:
        raise typer.Exit(1)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of the task or model, e.g. task.length=8192.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Held-out sequences.", min=1)] = 1024,
    worth: Annotated[bool, typer.Option("--worth", help="Also what reads are worth; takes gradients.")] = False,
    reads: Annotated[str, typer.Option(help="routed (as the router decides), dense (everywhere) or off.")] = "routed",
    kept: Annotated[
        bool, typer.Option("--kept", help="Also whether the tolerance is kept; lets every token read, then and now.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json: JsonFile = None,
) -> None:
    """Evaluate a trained run on held-out data."""
    from torchcram.cli import evaluate

    evaluate.run(run, changes=set_ or [], rows=rows, reads=reads, worth=worth, kept=kept, device=device, json=json)


@app.command()
def staleness(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs on SRCD, e.g. one a seed.")],
    rows: Annotated[int, typer.Option(help="Held-out sequences of each case.", min=1)] = 512,
    positions: Annotated[int, typer.Option(help="Positions to listen to for false alarms.", min=1)] = 1_000_000,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json: JsonFile = None,
) -> None:
    """What runs do where the context contradicts what they have learned: overrides, drift, another table."""
    from torchcram.cli import staleness

    staleness.run(runs, rows=rows, positions=positions, device=device, json=json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, e.g. one a seed.")],
    out: Annotated[Path | None, typer.Option(help="Page to write; report.html if nothing else is asked for.")] = None,
    picture: Annotated[Path | None, typer.Option(help="SVG file to write: reads over training.")] = None,
) -> None:
    """Show what runs did: one self-contained HTML page, or one picture."""
    from torchcram.cli.report import run

    if out is None and picture is None:
        out = Path("report.html")
    run(runs, out=out, picture=picture)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")],
) -> None:
    """Write a trained run's model as a folder that Cram.from_pretrained reads."""
    from torchcram.cli import export

    export.run(run, out=out)


@app.command()
def collect(
    parts: Annotated[list[str], typer.Argument(help="what=FILE: a result file, and what its rows are, e.g. final.")],
    out: Annotated[Path, typer.Option(help="The result file to write.")],
    setting: Annotated[str, typer.Option(help="What all of them share, in words.")],
) -> None:
    """Put several result files together, as `torchcram baselines` needs them."""
    from torchcram import results
    from torchcram.cli.errors import told

    with told():
        given = [part.partition("=") for part in parts]
        for part, (what, _, file) in zip(parts, given, strict=True):
            if not (what and file):
                raise ValueError(f"{part!r} is not possible; allowed: what=FILE")
        read = [(what, results.read(file)) for what, _, file in given]
        results.save(out, results.collect(out.stem, setting, read))


@app.command()
def baselines(
    srcd: Annotated[Path, typer.Option(help="Result file of the runs on SRCD.")] = Path("results/baselines-srcd.json"),
    mqar: Annotated[Path, typer.Option(help="Result file of the runs on MQAR.")] = Path("results/baselines-mqar.json"),
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("docs/baselines.md"),
) -> None:
    """Write the page that compares CRAM with other models, from result files."""
    from torchcram import results
    from torchcram.cli.errors import told
    from torchcram.files import replacing
    from torchcram.report.baselines import page

    with told():
        text = page(results.read(srcd), results.read(mqar))
        with replacing(out) as temporary:
            temporary.write_text(text, encoding="utf-8")


@app.command()
def performance(
    folder: Annotated[Path, typer.Option("--results", help="Folder of the result files bench-*.json.")] = Path(
        "results"
    ),
    out: Annotated[Path, typer.Option(help="Where to write the page; its picture goes to images beside it.")] = Path(
        "docs/performance.md"
    ),
) -> None:
    """Write the page about speed, from the result files of benchmarks that are there."""
    from torchcram import results
    from torchcram.cli.errors import told
    from torchcram.files import replacing
    from torchcram.report.performance import NAMES, page, picture

    with told():
        paths = {name: folder / f"bench-{name}.json" for name in NAMES}
        files = {name: results.read(path) for name, path in paths.items() if path.is_file()}
        image = out.parent / "images" / "performance.svg"
        image.parent.mkdir(parents=True, exist_ok=True)
        for path, text in ((out, page(files)), (image, picture(files))):
            with replacing(path) as temporary:
                temporary.write_text(text, encoding="utf-8")


@bench.command()
def cpu(json: JsonFile = None) -> None:
    """On a CPU: gathered read against dense attention, parallel working memory, a long stream in flat memory."""
    from torchcram.bench.cpu import run
    from torchcram.cli.tables import show_and_write

    show_and_write("bench-cpu", run(), json, "cpu")


@bench.command(name="train", help="A training step of CRAM against another model's, at several lengths.")
@bench.command(name="prefill", help="A forward pass that leaves a state, likewise.")
def whole(
    context: typer.Context,
    lengths: Annotated[
        str, typer.Option(help="Positions of a sequence, separated by commas.")
    ] = "2048,8192,32768,131072",
    preset: Annotated[str, typer.Option(help="Size of the models.")] = "large",
    tokens: Annotated[int, typer.Option(min=1, help="Positions of a step, or of one longer sequence.")] = 65_536,
    slots: Annotated[int, typer.Option(min=1, help="Of each of CRAM's buffers.")] = 512,
    reads: Annotated[float, typer.Option(min=0, max=1, help="Share of positions that read, in every layer.")] = 0.015,
    against: Annotated[
        str, typer.Option(help="The other model: transformer, or a baseline such as mamba.")
    ] = "transformer",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    json: JsonFile = None,
) -> None:
    from torchcram.bench.whole import Size, run
    from torchcram.cli.errors import told
    from torchcram.cli.settings import numbers, prepare
    from torchcram.cli.tables import show_and_write

    what = str(context.info_name)
    with told():
        prepare(device)
        given = numbers("--lengths", lengths)
        on_gpu = device != "cpu"
        size = Size(preset=preset, tokens=tokens, slots=slots, reads=reads, bf16=on_gpu, compile=on_gpu)
        show_and_write(f"bench-{what}", run(what, size, given, device, against=against), json, device)


@bench.command()
def kernels(
    lengths: Annotated[str, typer.Option(help="Positions of a sequence, separated by commas.")] = "2048,32768",
    tokens: Annotated[int, typer.Option(min=1, help="Positions in all, or of one longer sequence.")] = 65_536,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    json: JsonFile = None,
) -> None:
    """Single operations, checked and timed: the scan, expiry, and the read against dense attention."""
    import torch

    from torchcram.bench.kernels import Size, run
    from torchcram.cli.errors import told
    from torchcram.cli.settings import numbers, prepare
    from torchcram.cli.tables import show_and_write

    with told():
        prepare(device)
        size = Size(tokens=tokens, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
        show_and_write("bench-kernels", run(size, numbers("--lengths", lengths), device), json, device)


@bench.command()
def scaling(
    lengths: Annotated[
        str, typer.Option(help="Positions of a sequence, separated by commas.")
    ] = "2048,8192,32768,131072",
    buffers: Annotated[str, typer.Option(help="Slots of CRAM's buffers, likewise.")] = "512,4096",
    preset: Annotated[str, typer.Option(help="Size of the models.")] = "large",
    tokens: Annotated[int, typer.Option(min=1, help="Positions in all, or of one longer sequence.")] = 65_536,
    reads: Annotated[float, typer.Option(min=0, max=1, help="Share of positions that read, in every layer.")] = 0.015,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    json: JsonFile = None,
) -> None:
    """How time grows with length, from dense attention to few that read a bounded buffer."""
    from itertools import chain

    from torchcram.bench.scaling import run, stores
    from torchcram.bench.whole import Size
    from torchcram.cli.errors import told
    from torchcram.cli.settings import numbers, prepare
    from torchcram.cli.tables import show_and_write

    with told():
        prepare(device)
        on_gpu = device != "cpu"
        size = Size(preset=preset, tokens=tokens, reads=reads, bf16=on_gpu, compile=on_gpu)
        given = numbers("--lengths", lengths)
        rows = chain(
            run(size, given, numbers("--buffers", buffers), device),
            stores(max(given), (1.0, 0.05, reads), device),
        )
        show_and_write("bench-scaling", rows, json, device)


@bench.command()
def decode(
    lengths: Annotated[str, typer.Option(help="Positions of a context, separated by commas.")] = "2048,131072",
    batches: Annotated[str, typer.Option(help="Sequences at once, likewise.")] = "1,32",
    preset: Annotated[str, typer.Option(help="Size of the models.")] = "large",
    slots: Annotated[int, typer.Option(min=1, help="Of each of CRAM's buffers.")] = 512,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    json: JsonFile = None,
) -> None:
    """One more token after a context: CRAM in place, against a Transformer with a cache."""
    from torchcram.bench.decode import run
    from torchcram.bench.whole import Size
    from torchcram.cli.errors import told
    from torchcram.cli.settings import numbers, prepare
    from torchcram.cli.tables import show_and_write

    with told():
        prepare(device)
        size = Size(preset=preset, slots=slots, bf16=device != "cpu", compile=device != "cpu")
        show_and_write(
            "bench-decode",
            run(size, numbers("--lengths", lengths), numbers("--batches", batches), device),
            json,
            device,
        )


@bench.command()
def data(
    preset: Annotated[str, typer.Option(help="Size of the model.")] = "tiny",
    length: Annotated[int, typer.Option(help="Positions of a sequence.")] = 256,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json: JsonFile = None,
) -> None:
    """What making an SRCD batch costs, against the training step that uses it."""
    from torchcram.bench.data import run
    from torchcram.cli.errors import told
    from torchcram.cli.settings import prepare
    from torchcram.cli.tables import show_and_write

    with told():
        prepare(device)
        show_and_write("bench-data", [run(preset, device, {"length": length})], json, device)


@bench.command()
def steps(
    runs: Annotated[list[Path], typer.Argument(help="Folders of trained runs; the others are compared to the first.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    state_length: Annotated[
        int | None, typer.Option(min=1, help="Also the bytes of the state after a sequence of so many positions.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """What trained runs cost: a training step, a forward pass, and the state after a long sequence."""
    from torchcram import results
    from torchcram.bench.steps import run
    from torchcram.cli.errors import told
    from torchcram.cli.settings import machine, prepare
    from torchcram.cli.tables import show_row
    from torchcram.cli.trained import facts, load

    with told():
        prepare(device)
        trainers = [load(path, device) for path in runs]
        timed = zip(runs, trainers, run(trainers, state_length=state_length), strict=True)
        rows = [{"what": path.name, **facts(trainer), **row} for path, trainer, row in timed]
        if str(json) != "-":
            for row in rows:
                show_row(row)
        if json is not None:
            seeds = sorted({trainer.config.seed for trainer in trainers})
            results.write(json, name="bench-steps", rows=rows, seeds=seeds, machine=machine(device))
