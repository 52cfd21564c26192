"""The benchmarks' commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchcram.cli.options import JsonFile

bench = typer.Typer(help="Time ours against baselines, both in one run.", no_args_is_help=True)


@bench.callback()
def begin() -> None:
    from torchcram.bench.turns import take_part

    take_part()


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
    lengths: Annotated[str, typer.Option(help="Positions of a sequence, separated by commas.")] = "2048,131072",
    buffers: Annotated[str, typer.Option(help="Slots of CRAM's buffers, likewise.")] = "512,4096",
    preset: Annotated[str, typer.Option(help="Size of the models.")] = "large",
    tokens: Annotated[int, typer.Option(min=1, help="Positions in all, or of one longer sequence.")] = 65_536,
    reads: Annotated[float, typer.Option(min=0, max=1, help="Share of positions that read, in every layer.")] = 0.015,
    what: Annotated[str, typer.Option(help="What is timed: train, prefill.")] = "train,prefill",
    stages: Annotated[str, typer.Option(help="Names of stages, separated by commas; default: all, and stores.")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    json: JsonFile = None,
) -> None:
    """Where time goes, and how it grows with length, from dense attention to few that read a bounded buffer."""
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
        whats, names = ([each for each in words.split(",") if each] for words in (what, stages))
        rows = chain(
            run(size, given, numbers("--buffers", buffers), device, whats=whats, names=names),
            () if names else stores(max(given), (1.0, 0.05, reads), device),
        )
        show_and_write("bench-scaling", rows, json, device)


@bench.command()
def breakdown(
    lengths: Annotated[str, typer.Option(help="Positions of a sequence, separated by commas.")] = "2048,131072",
    preset: Annotated[str, typer.Option(help="Size of the models.")] = "large",
    tokens: Annotated[int, typer.Option(min=1, help="Positions in all, or of one longer sequence.")] = 65_536,
    slots: Annotated[int, typer.Option(min=1, help="Of each of CRAM's buffers.")] = 512,
    reads: Annotated[float, typer.Option(min=0, max=1, help="Share of positions that read, in every layer.")] = 0.015,
    against: Annotated[str, typer.Option(help="The other model, as for train.")] = "transformer",
    top: Annotated[int, typer.Option(min=0, help="Also so many kernels that take longest.")] = 12,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    json: JsonFile = None,
) -> None:
    """What a device does during a training step and a prefill: its time by kind of work."""
    from torchcram.bench.breakdown import run
    from torchcram.bench.whole import Size
    from torchcram.cli.errors import told
    from torchcram.cli.settings import numbers, prepare
    from torchcram.cli.tables import show_and_write

    with told():
        prepare(device)
        on_gpu = device != "cpu"
        size = Size(preset=preset, tokens=tokens, slots=slots, reads=reads, bf16=on_gpu, compile=on_gpu)
        rows = run(size, numbers("--lengths", lengths), device, against=against, top=top)
        show_and_write("bench-breakdown", rows, json, device)


@bench.command()
def decode(
    lengths: Annotated[str, typer.Option(help="Positions of a context, separated by commas.")] = "2048,131072",
    batches: Annotated[str, typer.Option(help="Sequences at once, likewise.")] = "1,32",
    buffers: Annotated[str, typer.Option(help="Slots of CRAM's buffers, likewise.")] = "512",
    preset: Annotated[str, typer.Option(help="Size of the models.")] = "large",
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
        on_gpu = device != "cpu"
        sizes = [
            Size(preset=preset, slots=slots, bf16=on_gpu, compile=on_gpu) for slots in numbers("--buffers", buffers)
        ]
        rows = run(sizes, numbers("--lengths", lengths), numbers("--batches", batches), device)
        show_and_write("bench-decode", rows, json, device)


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
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the layers.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Other settings for all runs, e.g. task.length=8192 or batch=8.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """What trained runs cost: a training step, now and before release, a forward pass, a state."""
    from torchcram import results
    from torchcram.bench.steps import run
    from torchcram.cli.errors import told
    from torchcram.cli.settings import machine, prepare
    from torchcram.cli.tables import show_row
    from torchcram.cli.trained import facts, load

    with told():
        prepare(device)
        trainers = [load(path, device, set_ or (), compile=compile_) for path in runs]
        timed = zip(runs, trainers, run(trainers, state_length=state_length), strict=True)
        rows = [{"what": path.name, **facts(trainer, path), **row} for path, trainer, row in timed]
        if str(json) != "-":
            for row in rows:
                show_row(row)
        if json is not None:
            seeds = sorted({trainer.config.seed for trainer in trainers})
            results.write(json, name="bench-steps", rows=rows, seeds=seeds, machine=machine(device))


@bench.command()
def quality(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    accuracy: Annotated[float, typer.Option(min=0, max=1, help="From which on a run counts as solved.")] = 0.99,
    measure: Annotated[str, typer.Option(help="Of what: accuracy, accuracy_novel, …")] = "accuracy_novel",
    times: Annotated[
        Path | None, typer.Option(help="A file of `bench steps`: also tell seconds by what a step takes alone.")
    ] = None,
    machine: Annotated[str | None, typer.Option(help="What the runs were made on, if not this machine.")] = None,
    json: JsonFile = None,
) -> None:
    """Time to quality: seconds of training until a task was solved, the dense phase included."""
    from torchcram import results, tasks
    from torchcram.bench.quality import alone, row
    from torchcram.cli.errors import told
    from torchcram.cli.tables import show_row
    from torchcram.training.run import RunFolder

    with told():
        rows: list[results.Row] = []
        steps = None if times is None else results.read(times)["rows"]
        for path in runs:
            folder = RunFolder(path)
            config = folder.config
            length = tasks.make(config.task, **config.settings).length
            rows.append(
                {
                    "what": path.name,
                    "model": config.name,
                    "preset": config.preset,
                    "task": config.task,
                    "length": length,
                    "seed": config.seed,
                    **row(folder.metrics(), accuracy, measure),
                }
            )
            if steps is not None:
                rows[-1] = {**rows[-1], **alone(rows[-1], steps)}
            if str(json) != "-":
                show_row(rows[-1])
        if json is not None:
            seeds = sorted({int(str(each["seed"])) for each in rows})
            results.write(json, name="bench-quality", rows=rows, seeds=seeds, machine=machine)
