"""The benchmarks' commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchcram.cli.options import JsonFile

bench = typer.Typer(help="Time ours against baselines, both in one run.", no_args_is_help=True)


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
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the layers.")] = False,
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
        trainers = [load(path, device, compile=compile_) for path in runs]
        timed = zip(runs, trainers, run(trainers, state_length=state_length), strict=True)
        rows = [{"what": path.name, **facts(trainer, path), **row} for path, trainer, row in timed]
        if str(json) != "-":
            for row in rows:
                show_row(row)
        if json is not None:
            seeds = sorted({trainer.config.seed for trainer in trainers})
            results.write(json, name="bench-steps", rows=rows, seeds=seeds, machine=machine(device))
