"""Compiled layers train as plain ones do."""

import pytest
import torch

from torchcram import CramConfig
from torchcram.tasks import Srcd
from torchcram.training.config import RunConfig
from torchcram.training.loop import Trainer

SETTINGS = {"length": 64, "novel_keys": 16, "values": 4, "patterns": 8}


def trainer(compile: bool) -> Trainer:
    task = Srcd.variant("srcd", **SETTINGS)
    model = CramConfig.preset("tiny", inputs=task.inputs, outputs=task.outputs)
    model = model.override({"layers": 1, "episodic.slots": 16, "contradiction.rank": 8})
    config = RunConfig(task="srcd", settings=SETTINGS, model=model, steps=10, batch=4, evaluate_rows=8, compile=compile)
    return Trainer(config, "cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_give_the_losses_of_plain_ones():
    losses = []
    for run in (trainer(False), trainer(True)):
        found = [run.train_step() for _ in range(2)]
        run.consolidator.released_at = 0  # the routed phase: bounded buffer, audits, fewer rows
        found += [run.train_step() for _ in range(3)]
        losses.append([*found, *run.evaluate().losses.values()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
