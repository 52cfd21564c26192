"""The teacher: the model as it was at release, which tolerance is measured against whatever becomes of its reads."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchcram.consolidation.controller import excess
from torchcram.memory import RoutingPolicy
from torchcram.models import build
from torchcram.training import checkpoint, state
from torchcram.training.checkpoint import Checkpoint
from torchcram.training.evaluate import evaluate

if TYPE_CHECKING:
    from torchcram.training.loop import Trainer

_FOLDER = "teacher"  # among the checkpoints


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Whether quality is kept: held-out losses of each head, in nats per scored position."""

    routed: dict[str, float]
    dense: dict[str, float]
    """With every token reading."""
    teacher: dict[str, float] | None
    """Of the model as it was at release, with every token reading all that was ever written; None: not kept."""
    excess: float
    """Of routed over dense now and, for heads that reads had helped, the teacher, for the worst head: what the
    tolerance is for."""


def keep(trainer: Trainer, checkpoints: Path) -> None:
    """Save the model as it is now."""
    given = Checkpoint(step=trainer.step, tensors=state.tensors(trainer.model), extra={})
    with trainer.world.together():
        if trainer.world.first:  # of a release before training had to go back
            shutil.rmtree(checkpoints / _FOLDER, ignore_errors=True)
    checkpoint.save(checkpoints / _FOLDER, given, world=trainer.world)


def kept(trainer: Trainer, checkpoints: Path, routed: dict[str, float], *, seed: int, rows: int) -> Kept | None:
    """Whether quality is kept on held-out sequences: their losses `routed`, against dense now and at release.

    None if no gate has released reads: then nothing was promised.
    """
    config, released = trainer.config, trainer.consolidator.released_at
    if released is None or config.consolidation.schedule == "paper" or config.consolidation.release is not None:
        return None
    dense = trainer.evaluate(trainer.consolidator.dense(), seed=seed, rows=rows).losses
    saved = checkpoint.newest(checkpoints / _FOLDER, trainer.say, trainer.world)
    if saved is None or saved.step != released:
        trainer.say("the model as it was at release is missing or damaged: quality is compared with dense reading now")
        return Kept(routed=routed, dense=dense, teacher=None, excess=excess(routed, dense, {}))
    model = build(config.model).to(trainer.device)
    state.restore(model, None, saved)
    policy = RoutingPolicy(reads="dense", keep_all=True)
    with trainer.world.sharing():
        before = evaluate(model, trainer.task, seed=seed, rows=rows, policy=policy, bf16=config.bf16).losses
    helped = {head: before[head] for head in trainer.consolidator.controller.at_release}
    return Kept(routed=routed, dense=dense, teacher=before, excess=excess(routed, dense, helped))
