"""What the tests of several processes run in each of them: `torchrun … -m tests.training.scenarios FOLDER`.

All scenarios in one start of the processes, since starting takes longer than they do. Each process leaves
`found-<rank>.json` in the folder.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from torchcram import CramConfig
from torchcram.memory import RoutingPolicy
from torchcram.tasks import Srcd
from torchcram.training import checkpoint
from torchcram.training.config import RunConfig
from torchcram.training.decisions import load_decisions
from torchcram.training.distributed import World, launched
from torchcram.training.loop import Trainer

SETTINGS = {"length": 64, "novel_keys": 16, "values": 4, "patterns": 8}
STEPS, RELEASE = 8, 4
"""All tokens read in steps 0 to 3; from step 4 on the router chooses, and each read has its price."""


def small(world: World | None = None, said: list[str] | None = None) -> Trainer:
    """Uneven in every way: padding of shards (13 does not halve), a layer without a buffer, reads here and there."""
    task = Srcd.variant("srcd", **SETTINGS)
    model = CramConfig.preset("tiny", inputs=task.inputs, outputs=task.outputs).override(
        {"layers": 3, "block.width": 16, "semantic.rank": 13, "router.hidden": 7, "episodic.layers": [0, 2]}
        | {"contradiction.rank": 5}
    )
    config = RunConfig(task="srcd", settings=SETTINGS, model=model, steps=30, batch=4, evaluate_rows=8).override(
        {"optimizer.rate": 3e-3, "optimizer.warm_up": 2, "consolidation.audit": 0.1, "consolidation.ramp": 2}
    )
    return Trainer(config, say=[].append if said is None else said.append, world=world)


def losses(trainer: Trainer, until: int) -> list[float]:
    """Train on, released from step `RELEASE` on."""
    found = []
    while trainer.step < until:
        trainer.consolidator.released_at = RELEASE if trainer.step >= RELEASE else None
        found.append(trainer.train_step())
        trainer.step += 1
        trainer.consolidator.steps += 1
    return found


def resumed(folder: Path, world: World | None = None, said: list[str] | None = None) -> dict[str, object]:
    trainer = small(world, said)
    assert trainer.restore(folder)
    return {"step": trainer.step, "losses": losses(trainer, STEPS)}


def spoil_own_rows(trainer: Trainer) -> None:
    """NaN in the training data of the second process alone, until the learning rate is lowered."""
    batch = trainer.task.batch

    def spoiled(*, seed, **wanted):
        examples = batch(seed=seed, **wanted)
        if trainer.world.rank == 1 and trainer.rate_scale == 1 and seed == 0:
            examples.inputs["channels"].fill_(torch.nan)
        return examples

    trainer.task.batch = spoiled


def failure_of_a_save(trainer: Trainer, folder: Path, place: object, name: str, rank: int) -> list[str]:
    """What this process raises when one process runs out of disk at some point, and the checkpoints there are then."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    kept = getattr(place, name)
    if trainer.world.rank == rank:
        setattr(place, name, full)
    try:
        trainer.save(folder)
    except Exception as error:
        failure = type(error).__name__
    else:
        failure = "none"
    finally:
        setattr(place, name, kept)
    trainer.world.any(False)  # wait: the first process has cleared away what was half written
    return [failure, *sorted(path.name for path in folder.iterdir() if "step" in path.name)]


def scenarios(folder: Path, world: World) -> dict[str, object]:
    found: dict[str, object] = {}
    for how in ("ddp", "fsdp"):
        here = World(device=world.device, rank=world.rank, size=world.size, parallel=how)
        trainer = small(here)
        first = losses(trainer, 3)
        trainer.save(folder / how)
        first += losses(trainer, 6)
        trainer.save(folder / how)
        found[f"{how} losses"] = first + losses(trainer, STEPS)
        evaluation = trainer.evaluate(RoutingPolicy())
        found[f"{how} evaluation"] = evaluation.row() | evaluation.losses
        found[f"{how} counts"] = [evaluation.ledger.positions, *evaluation.ledger.pair_counts]
        found[f"{how} weights"] = {n: world.whole(p.detach()).tolist() for n, p in trainer.model.named_parameters()}
        found[f"{how} sharded"] = any(
            type(p).__name__ == "DTensor" for p in trainer.optimizer.param_groups[0]["params"]
        )
        found[f"one to {how}"] = resumed(folder / "one", here)
        found[f"{how} decisions"] = {name: x.tolist() for name, x in load_decisions(folder / how / "decisions").items()}
        spoil_own_rows(trainer)
        trainer.step += 1  # the batch of the next step was made before it was spoiled
        before = [world.whole(p.detach()).clone() for p in trainer.model.parameters()]
        found[f"{how} spoiled"] = all(math.isnan(trainer.train_step()) for _ in range(2))
        found[f"{how} untouched"] = all(
            torch.equal(world.whole(p.detach()), old) for p, old in zip(trainer.model.parameters(), before, strict=True)
        )
    for how, other in (("ddp", "fsdp"), ("fsdp", "ddp")):
        here = World(device=world.device, rank=world.rank, size=world.size, parallel=other)
        found[f"{how} to {other}"] = resumed(folder / how, here)

    damaged = folder / "damaged"
    with world.together():
        if world.first:
            shutil.copytree(folder / "fsdp", damaged)
            shard = sorted((damaged / "step-00000006").glob("*.safetensors"))[-1]
            data = bytearray(shard.read_bytes())
            data[len(data) // 2] ^= 4
            shard.write_bytes(data)
    said: list[str] = []
    found["damaged"] = resumed(damaged, World(**vars(world) | {"parallel": "fsdp"}), said)
    found["said"] = said

    spoiled = small(world)
    spoil_own_rows(spoiled)
    list(spoiled.run(folder / "spoiled", stop=lambda: spoiled.step >= 7))
    found["went back"] = [spoiled.step, spoiled.skipped, spoiled.rate_scale]
    found["full disk"] = [
        failure_of_a_save(spoiled, folder / "ddp", checkpoint, "_seal", rank=0),
        failure_of_a_save(spoiled, folder / "ddp", HuggingFaceStorageWriter, "write_data", rank=1),
    ]

    steps = small(world)
    stops = {0: 3, 1: 2}  # a signal reaches one process before the other
    list(steps.run(stop=lambda: steps.step >= stops[world.rank]))
    found["stopped at"] = steps.step
    return found


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    with launched("cpu") as world:
        (out / f"found-{world.rank}.json").write_text(json.dumps(scenarios(out, world)))
