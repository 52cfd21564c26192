"""What reads are worth: against the loss with and without them."""

import pytest
import torch

from torchcram import CramConfig
from torchcram.draws import Draws
from torchcram.memory import RoutingPolicy
from torchcram.models import Cram
from torchcram.tasks import HELD_OUT, Srcd
from torchcram.training import worth

SETTINGS = {"length": 64, "queries": 0.2, "novel_keys": 32, "values": 4, "patterns": 8}


def setting(rule: str = "choice") -> tuple[Cram, Srcd]:
    """A model that reads here and there, and whose reads matter."""
    torch.manual_seed(1)
    task = Srcd.variant("srcd", **SETTINGS)
    config = CramConfig.preset("tiny", inputs=task.inputs, outputs=task.outputs)
    model = Cram(config.override({"layers": 2, "block.width": 32, "router.rule": rule})).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.router.out.weight.normal_()
            block.router.out.bias[1] = 1.5
            block.episodic.outward.weight *= 3
            if block.router.worth is not None:
                block.router.worth.out.weight.normal_()
                block.router.price.fill_(1.0)
    return model, task


def test_it_is_the_loss_without_a_read_less_the_loss_with_it():
    """Of one layer's reads, one after the other; trials of many tokens at once disturb each other but little."""
    model, task = setting()
    examples = task.batch(seed=HELD_OUT, step=0, rows=range(1))
    out = model(examples.inputs, dt=examples.dt, policy=RoutingPolicy(trial=1e-12))
    actions = out.routing.long()
    layer = 1

    def loss(at: int, action: int) -> float:
        given = actions.clone()
        given[0, at, layer] = action
        with torch.no_grad():
            found = model(examples.inputs, dt=examples.dt, policy=RoutingPolicy(actions=given))
        return float(task.losses(found.predictions, examples)["value"] * task.scored(examples)["value"])

    reading = (actions[0, :, layer] == 1).nonzero().flatten().tolist()
    others = out.layers[layer].decision.instead[0]
    true = sum(loss(at, int(others[at])) - loss(at, 1) for at in reading) / len(reading)

    totals, count = 0.0, 0
    for number in range(600):
        draws = Draws(seed=number, step=0, rows=torch.arange(1))
        scored = task.scored(examples)["value"]
        tried = model(examples.inputs, dt=examples.dt, policy=RoutingPolicy(trial=0.1, scored=scored, draws=draws))
        main = task.losses(tried.predictions, examples)["value"]
        torch.autograd.grad(main, [one.trial.probe for one in tried.layers])
        trial = tried.layers[layer].trial
        totals, count = totals + float(trial.worth[trial.tried].sum()), count + int(trial.tried.sum())
    assert count > 100
    assert totals / count == pytest.approx(true, rel=0.25)


@pytest.mark.parametrize("rule", ["choice", "worth"])
def test_the_tables_tell_who_read_and_who_did_not(rule):
    model, task = setting(rule)
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = worth.measure(model, task, seed=3, rows=24)
    assert list(found.per_read) == list(found.per_skip) == list(task.kinds)
    assert all(len(row) == 2 for table in (found.per_read, found.per_skip) for row in table.values())
    assert found.reads is not None
    assert found.skips is not None
    assert bool(found.utility) == (rule == "worth")
    for curve, most in ((found.utility, 20.0), (found.quality, 1.0)):
        foretold = [point[0] for point in curve]
        assert foretold == sorted(foretold)
        assert all(0 <= told <= most and count >= 1 for told, _, count in curve)
    assert worth.measure(model, task, seed=3, rows=24) == found, "and nothing random is left to chance"
    assert not model.training
    for name, p in model.named_parameters():
        assert p.grad is None, name
        assert torch.equal(p, before[name])


def test_a_perfect_estimate_lies_on_the_line():
    table = torch.zeros(3, 3, dtype=torch.float64)
    values = torch.tensor([0.05, 0.2, 0.9, 0.95])
    worth._bin(table, (0.0, 0.1, 0.5), values, values)
    assert worth._curve(table) == [
        [pytest.approx(0.05), pytest.approx(0.05), 1],
        [pytest.approx(0.2), pytest.approx(0.2), 1],
        [pytest.approx(0.925), pytest.approx(0.925), 2],
    ]
