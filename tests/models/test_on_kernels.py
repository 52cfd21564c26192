"""A whole model with every kernel, and without any: the same predictions, losses and gradients.

With `TRITON_INTERPRET=1` it runs on a CPU (see tests/ops/test_kernels.py); on a GPU under autocast, too, since some
kernels are for narrow numbers alone.
"""

import os

import pytest
import torch
from torch.nn.functional import cross_entropy

from torchcram import RoutingPolicy
from torchcram.draws import Draws
from torchcram.ops import use

pytestmark = pytest.mark.gpu
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
POLICIES = {
    "dense": {"reads": "dense"},
    "routed": {"audit": 0.2},
    "evaluated": {},
}
# The index asks other operations; without it rows are one sequence long, and the buffer's kernels are used.
CHANGES = {"contradiction.rank": 0, "semantic.rank": 16, "episodic.slots": 8}


def run(model, form, policy, tokens, dt, start, narrow):
    learns = model.training
    model.zero_grad()
    draws = Draws(seed=0, step=0, rows=torch.arange(len(tokens), device=DEVICE))
    how = RoutingPolicy(draws=draws if learns else None, **policy)
    with use(form), torch.set_grad_enabled(learns), torch.autocast(DEVICE, torch.bfloat16, enabled=narrow):
        out = model(tokens, dt=dt, start=start, policy=how, keep_state=not learns)
        if not learns:
            return out, {"logits": out.logits}
        loss = cross_entropy(out.logits.flatten(0, 1).float(), tokens.flatten()) + sum(out.losses.values())
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return out, {"loss": loss.detach(), **gradients}


@pytest.mark.parametrize("narrow", [False, *([True] if DEVICE == "cuda" else [])])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", POLICIES)
def test_a_model_is_the_same_with_kernels_and_without(lively, events, kind, packed, narrow):
    model = lively(CHANGES, seed=3).to(DEVICE).train(kind != "evaluated")
    tokens, dt = (x.to(DEVICE) for x in events(2, 40, seed=5))
    start = None
    if packed:
        start = torch.zeros_like(tokens, dtype=torch.bool)
        start[0, 11] = start[1, 30] = True
    plain, expected = run(model, "fast", POLICIES[kind], tokens, dt, start, narrow)
    found_in, found = run(model, "triton", POLICIES[kind], tokens, dt, start, narrow)
    if not narrow:
        assert torch.equal(found_in.routing, plain.routing)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].isfinite().all(), name
        if narrow and name not in ("loss", "logits"):
            continue  # a token that was nearly routed otherwise may be
        off = (found[name] - value).norm() / value.norm().clamp_min(1e-6)
        assert off < (0.1 if narrow else 1e-4), name
