"""The ends of a decoder's step, before the first layer and after the last, are what the model does there.

The kernels are held to the same with `pytest -m gpu`; see tests/ops/test_step.py for how to run them without a GPU.
"""

import os

import pytest
import torch

from tests.conftest import lively_model
from torchcram import Cram, CramConfig
from torchcram.memory import EPISODIC, Timeline
from torchcram.models.ends import Ends
from torchcram.models.inputs import Batch
from torchcram.ops import use
from torchcram.ops.step import squares

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FORMS = [
    pytest.param("fast", "cpu"),
    pytest.param("triton", "cpu" if INTERPRETED else "cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize(("batch", "unit", "dtype"), [(3, 1.0, torch.float32), (37, 2.5, torch.float16)])
@pytest.mark.parametrize(("form", "device"), FORMS)
@torch.no_grad()
def test_they_are_what_the_model_does(form, device, batch, unit, dtype):
    """With sequences that stay where they are, gaps from none to long ones, and late in a stream."""
    model = lively_model({"contradiction.rank": 0, "working.time_unit": unit}, seed=3).to(device, dtype)
    layers = model.config.layers
    assert Ends.suits(model)
    state = model.initial_state(batch)
    generator = torch.Generator().manual_seed(4)
    state.position.copy_(torch.randint(1000, (batch,), generator=generator))
    state.time.copy_(1e9 * torch.rand(batch, generator=generator, dtype=torch.float64))
    counts = torch.arange(3 + 3 * layers, device=device)
    ends, before = Ends(model, state, counts), counts.clone()
    tokens = torch.randint(model.config.inputs.tokens[0].vocabulary, (batch, 1), generator=generator).to(device)
    dt = (10 ** (8 * torch.rand(batch, 1, generator=generator) - 5)).to(device)
    dt[0] = 0
    mask = (torch.arange(batch, device=device) % 3 != 1).unsqueeze(1)
    inputs = Batch(tokens={"tokens": tokens}, channels=None, dt=torch.where(mask, dt, 0), mask=mask, start=None)
    timeline = Timeline.single(inputs.dt, mask, state.position.clone(), state.time.clone(), unit)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 4e-3, "atol": 4e-3}
    with use(form):
        x, now, parts = ends.begin(inputs)
    torch.testing.assert_close(x, model.encoder(inputs), **close)
    torch.testing.assert_close(parts, squares(x.squeeze(1)))
    for name in ("gap", "log_gap", "mask", "position", "time"):
        torch.testing.assert_close(getattr(now, name), getattr(timeline, name), rtol=1e-6, atol=0)

    last = torch.randn(batch, 1, x.shape[-1], generator=generator).to(device, dtype)
    tally = torch.randint(3, (layers, 3, batch), generator=generator).to(device)
    with use(form):
        found = ends.finish(last, squares(last.squeeze(1)), tally)
    expected, _ = model.heads(model.norm(last), timeline, None)
    torch.testing.assert_close(found["tokens"], expected["tokens"].squeeze(1), **close)
    assert torch.equal(state.position, timeline.position[:, 1])
    torch.testing.assert_close(state.time, timeline.time[:, 0])
    reads = tally[:, 0] == EPISODIC
    dense = int(((timeline.position[:, :1] + 1) * mask).sum())
    each = [x.sum(1).tolist() for x in (reads, tally[:, 2], tally[:, 1])]
    whole = [int(mask.sum()), int(reads.any(0).sum()), dense]
    assert (counts - before).tolist() == [*whole, *each[0], *each[1], *each[2]]


def test_what_there_are_no_kernels_for():
    small = CramConfig.preset("tiny", vocabulary=16)
    assert Ends.suits(Cram(small))
    pooled = small.override({"outputs": [{"name": "label", "kind": "classification", "size": 3}]})
    assert not Ends.suits(Cram(pooled))
    assert not Ends.suits(Cram(small.override({"inputs.channels": 2})))
    assert not Ends.suits(Cram(small.override({"inputs.frequencies": 0})))
    mixed = Cram(small)
    mixed.heads.double()
    assert not Ends.suits(mixed)
