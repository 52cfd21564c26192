"""List what a later call needs of run folders: finished runs, without models but for what others begin with.

python experiments/packing.py OUT SCALE EXPERIMENT[+EXPERIMENT…] [name=PATH …]

Prints one path a line, and on standard error how far each experiment has come.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torchcram.paper import ablations, practice_runs, runs, transfer, transfer_series
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.paper.setup import SIZES, Setup
from torchcram.training.start import only_layers

out, scale, named, *data = sys.argv[1:]
setup = Setup(
    scale=scale,
    out=Path(out),
    sized=replace(SIZES[scale], device="cpu"),
    data={name: Path(path) for name, _, path in (each.partition("=") for each in data)},
)
size, rows = setup.size, setup.size.rows
asked = [name for name in EXPERIMENTS if {name, "all"} & set(named.split("+"))]
stages = {name: list(EXPERIMENTS[name].stages(setup)) for name in asked if not EXPERIMENTS[name].lacks(setup)}
transfers = stages.get("transfer", [])
fits = []
if transfers:
    transfers.append([each.wanted(size) for each in transfer.from_series(setup)])
    fits = [*transfer._fits(setup), *transfer._fits_from_series(setup)]


def jobs(wanted: list[runs.Wanted]) -> Iterator[runs.Job]:
    return (job for each in wanted for job in each.jobs(size, setup.out))


done = set()
for name, mine in stages.items():
    every = {job.folder: job for stage in mine for job in jobs(stage)}
    there = {folder for folder, job in every.items() if job.result(rows) is not None}
    fitted = f", {sum(fit.file(setup).is_file() for fit in fits)} of {len(fits)} fits" if name == "transfer" else ""
    print(f"{name}: {len(there)} of {len(every)} runs{fitted}", file=sys.stderr)
    done |= there

dropped: dict[Path, str] = {}
for name, kept in (("ablations", "overridden"), ("frontier", "forward"), ("frontier-text", "forward")):
    for where, found in runs.there(setup, (each for stage in stages.get(name, ()) for each in stage)).items():
        for run in found:
            needed = where in ("full", ablations.INDEX) if name == "ablations" else run.seed == 0
            if needed and run.told(kept) is None:
                dropped[run.folder] = f"{kept} was not measured"
for folder, why in sorted(dropped.items()):
    print(f"  to be trained again: {folder}, {why}", file=sys.stderr)

deciding = {
    job.folder
    for job in jobs([*practice_runs.wanted(size), *(w for w in ablations.wanted(size) if w.name in ablations.PAPERS)])
}
for folder in sorted(done - dropped.keys()):
    metrics = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    if any("sample" in line for line in lines):
        metrics.write_text("".join(json.dumps({k: v for k, v in x.items() if k != "sample"}) + "\n" for x in lines))
    for file in sorted(folder.glob("*.json*")):
        print(file)
    if folder in deciding:
        for file in sorted((folder / "checkpoints" / "decisions").glob("*")):
            print(file)

# What others begin with, as long as one of them is not done: sources of transfer, those of a data set included.
begun = {Path(job.varied["start.run"]) for stage in transfers[1:] for job in jobs(stage) if job.folder not in done}
begun |= {fit.like for fit in fits if not fit.file(setup).is_file() and fit.source != transfer_series.SCRATCH}
for folder in sorted(begun):
    if (folder / "checkpoints").is_dir() and (folder in done or folder.parent.name == transfer_series.SOURCE):
        print(folder / "config.json")
        for file in sorted(only_layers(folder).iterdir()):
            print(file)
for folder in sorted({folder.parent for folder in done}):
    print(folder / "sweep.json")
for file in sorted(setup.out.glob("paper-*.json")) + sorted(setup.out.glob("series/*.json")):
    print(file)
