"""List what a later call needs of run folders: finished runs without checkpoints. Prints one path a line.

python experiments/packing.py OUT SCALE [name=PATH …]
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from torchcram.paper import ablations, practice_runs, runs, transfer
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.paper.setup import SIZES, Setup

out, scale, *data = sys.argv[1:]
setup = Setup(
    scale=scale,
    out=Path(out),
    sized=replace(SIZES[scale], device="cpu"),
    data={name: Path(path) for name, _, path in (each.partition("=") for each in data)},
)
size, rows = setup.size, setup.size.rows
stages = {name: list(each.stages(setup)) for name, each in EXPERIMENTS.items() if not each.lacks(setup)}
stages["transfer"].append([each.wanted(size) for each in transfer.from_series(setup)])
done = {
    job.folder
    for mine in stages.values()
    for stage in mine
    for each in stage
    for job in each.jobs(size, setup.out)
    if job.result(rows) is not None
}
dropped: dict[Path, str] = {}
# Fits of PhysioNet's own models are made again where others still begin with them.
# What others begin with is needed as long as one of them is not done; models do not travel.
begun = {
    Path(job.varied["start.run"])
    for each in (*stages["transfer"][1], *stages["transfer"][2])
    for job in each.jobs(size, setup.out)
    if job.folder not in done
}
fits = [*transfer._fits(setup), *transfer._fits_from_series(setup)]
begun |= {fit.like for fit in fits if not fit.file(setup).is_file()}
dropped |= dict.fromkeys(begun & done, "others begin with it")
for name, kept in (("ablations", "overridden"), ("frontier", "forward"), ("frontier-text", "forward")):
    for where, mine in runs.there(setup, (each for stage in stages.get(name, ()) for each in stage)).items():
        for run in mine:
            asked = where in ("full", ablations.INDEX) if name == "ablations" else run.seed == 0
            if asked and run.told(kept) is None:
                dropped[run.folder] = f"{kept} was not measured"
deciding = {
    job.folder
    for each in (*practice_runs.wanted(size), *(w for w in ablations.wanted(size) if w.name in ablations.PAPERS))
    for job in each.jobs(size, setup.out)
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
for folder in sorted({folder.parent for folder in done}):
    print(folder / "sweep.json")
again = any(job.folder not in done for each in stages["transfer"][2] for job in each.jobs(size, setup.out)) or any(
    not fit.file(setup).is_file() for fit in transfer._fits_from_series(setup)
)
for file in sorted(setup.out.glob("paper-*.json")) + sorted(setup.out.glob("series/*.json")):
    if not (again and file.name.startswith("p12-cram-from-scratch")):
        print(file)
wanted = len(
    {job.folder for mine in stages.values() for stage in mine for each in stage for job in each.jobs(size, setup.out)}
)
print(f"{sum(fit.file(setup).is_file() for fit in fits)} of {len(fits)} fits to time series are done", file=sys.stderr)
print(
    f"{len(done)} of {wanted} runs are done; {len(dropped)} of them stay behind, to be trained again", file=sys.stderr
)
for folder, why in sorted(dropped.items()):
    print(f"  {folder}: {why}", file=sys.stderr)
