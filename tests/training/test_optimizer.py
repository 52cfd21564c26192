"""Parameter groups and the learning-rate schedule."""

import itertools

import pytest
import torch

from torchcram import Cram, CramConfig
from torchcram.training import optimizer
from torchcram.training.config import OptimizerConfig


def test_every_parameter_is_in_one_group_and_only_matrices_decay():
    model = Cram(CramConfig.preset("tiny", inputs="tokens", vocabulary=8, outputs="tokens"))
    config = OptimizerConfig(decay=0.3, semantic=0.1)
    groups = optimizer.build(model, config).param_groups
    names = {p: name for name, p in model.named_parameters()}
    placed = [names[p] for group in groups for p in group["params"]]
    assert sorted(placed) == sorted(n for n, p in model.named_parameters() if p.requires_grad)
    decayed = {names[p] for group in groups if group["weight_decay"] for p in group["params"]}
    assert "blocks.0.working.outward.weight" in decayed
    assert "blocks.0.semantic.up.weight" in decayed
    for name in decayed:
        assert not any(part in name for part in ("norm", "bias", "router", "rate", "quality", "encoder.tokens"))
    (semantic,) = [group for group in groups if group["scale"] == 0.1]
    assert {names[p] for p in semantic["params"]} == {n for n in placed if ".semantic." in n}


def test_the_rate_rises_is_held_and_falls():
    config = OptimizerConfig(rate=1.0, warm_up=10, settle=0.5, last=0.1)
    rates = [optimizer.rate(config, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:51] == pytest.approx([1.0] * 42)
    assert all(a > b for a, b in itertools.pairwise(rates[50:]))
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_settling_from_the_start_is_the_papers_cosine():
    config = OptimizerConfig(rate=1.0, warm_up=0, settle=1.0, last=0.0)
    rates = torch.tensor([optimizer.rate(config, step, 100) for step in range(100)])
    torch.testing.assert_close(rates, 0.5 * (1 + torch.cos(torch.pi * torch.arange(100) / 100)))
