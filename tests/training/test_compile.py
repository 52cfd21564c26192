"""Compiled layers train as plain ones do."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from torchcram import CramConfig
from torchcram.models import build
from torchcram.ops import Lengths
from torchcram.tasks import Srcd
from torchcram.training.config import RunConfig
from torchcram.training.loop import Trainer

SETTINGS = {"length": 64, "novel_keys": 16, "values": 4, "patterns": 8}


def trainer(compile: bool, rank: int = 8, layers: int = 1) -> Trainer:
    task = Srcd.variant("srcd", **SETTINGS)
    model = CramConfig.preset("tiny", inputs=task.inputs, outputs=task.outputs)
    model = model.override({"layers": layers, "episodic.slots": 16, "contradiction.rank": rank})
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


@pytest.mark.filterwarnings("ignore")
def test_a_layer_that_is_given_room_for_its_lists_is_one_graph():
    """Without an index of its own nothing in it is left to the interpreter; only room for lists is compiled in."""
    torch.compiler.reset()
    plain, whole = (trainer(False, rank=0, layers=2) for _ in range(2))
    counter = CompileCounterWithBackend("aot_eager")
    for block in whole.model.blocks:
        block.compile(fullgraph=True, backend=counter)
    losses, graphs = [], []
    for run in (plain, whole):
        run.stepper.lengths = Lengths()
        found = []
        for step in range(6):
            if step == 1:
                run.consolidator.released_at = 0  # the routed phase: bounded buffer, audits, fewer rows
            if step > 2:
                for each in run.stepper.lengths._kinds.values():
                    each["rows"].room = each["events"].room = 60
                run.consolidator.config = replace(run.consolidator.config, audit=0.1 * step)
            found.append(run.train_step())
            graphs.append(counter.frame_count)
            run.step += 1
        losses.append(found)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert graphs[6:] == [0, 1, 1, 2, 2, 2], "routed; then with less room, and with any share of audits"


@pytest.mark.filterwarnings("ignore")
def test_a_call_without_room_for_its_lists_is_not_compiled():
    torch.compiler.reset()
    run = trainer(False, rank=0)
    counter = CompileCounterWithBackend("eager")
    for block in run.model.blocks:
        block.compile(backend=counter)
    before = run.evaluate().losses
    assert counter.frame_count == 0
    run.stepper.lengths = Lengths()
    run.train_step()
    assert counter.frame_count == 0, "it is not known yet how much room they need"
    run.train_step()
    assert counter.frame_count > 0
    assert before


@pytest.mark.filterwarnings("ignore")
def test_a_model_without_buffers_has_no_lists_to_wait_for():
    torch.compiler.reset()
    run = trainer(False, rank=0)
    model = build(run.config.model.override({"episodic.layers": []}))
    counter = CompileCounterWithBackend("eager")
    for block in model.blocks:
        block.compile(backend=counter)
    model(run.task.batch(seed=0, step=0, rows=range(2)).inputs)
    assert counter.frame_count > 0
