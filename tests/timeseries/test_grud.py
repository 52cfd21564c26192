"""GRU-D does what its paper says, for each sample by itself."""

import numpy as np
import pytest
import torch

from tests.timeseries.samples import by_last_value, in_float64, random_series, toy_accuracy
from torchcram.timeseries.batches import pad
from torchcram.timeseries.rivals import GruD


def lively(seed: int, **changes) -> GruD:
    """With decays that matter, as after some training."""
    torch.manual_seed(seed)
    settings = {"channels": 3, "statics": 2, "classes": 2, "hidden": 5} | changes
    model = GruD(**settings).double().eval()
    with torch.no_grad():
        for weight in (model.fade_weight, model.fade_bias, model.forget.weight, model.forget.bias):
            weight.normal_(0, 0.5)
    return model


def by_the_paper(model: GruD, times: list[float], values: np.ndarray) -> list[torch.Tensor]:
    """States of one sample, one time stamp and one equation after another."""
    channels, hidden = values.shape[1], model.renew.in_features
    w, v = model.inward.weight.split(channels, dim=1)
    w_r, w_z, w_h = w.split(hidden)
    v_r, v_z, v_h = v.split(hidden)
    b_r, b_z, b_h = model.inward.bias.split(hidden)
    u_r, u_z = model.gates.weight.split(hidden)
    h, last, since = torch.zeros(hidden).double(), model.means.clone(), torch.zeros(channels).double()
    states = []
    for step in range(len(times)):
        if step > 0:
            for d in range(channels):
                gap = times[step] - times[step - 1]
                since[d] = gap if not np.isnan(values[step - 1, d]) else gap + since[d]
        told, m = torch.zeros(channels).double(), torch.zeros(channels).double()
        for d in range(channels):
            if np.isnan(values[step, d]):
                gamma = torch.exp(-torch.clamp(model.fade_weight[d] * since[d] + model.fade_bias[d], min=0))
                told[d] = gamma * last[d] + (1 - gamma) * model.means[d]
            else:
                told[d], m[d] = float(values[step, d]), 1.0
                last[d] = told[d]
        h = torch.exp(-torch.clamp(model.forget.weight @ since + model.forget.bias, min=0)) * h
        r = torch.sigmoid(w_r @ told + u_r @ h + v_r @ m + b_r)
        z = torch.sigmoid(w_z @ told + u_z @ h + v_z @ m + b_z)
        new = torch.tanh(w_h @ told + model.renew.weight @ (r * h) + v_h @ m + b_h)
        h = (1 - z) * h + z * new
        states.append(h)
    return states


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("per_step", [False, True])
def test_it_follows_the_equations(seed, per_step):
    series = random_series(seed, per_step=per_step)
    model = lively(seed, per_step=per_step, means=torch.randn(3))
    for sample in range(len(series)):
        batch = in_float64(pad(series, np.array([sample])))
        with torch.no_grad():
            states = by_the_paper(model, batch.times[0].tolist(), batch.values[0].numpy())
            statics = [0.0 if np.isnan(x) else x for x in batch.statics[0].tolist()]
            flags = [0.0 if np.isnan(x) else 1.0 for x in batch.statics[0].tolist()]
            rows = [torch.cat([h, torch.tensor(statics + flags, dtype=torch.float64)]) for h in states]
            expected = torch.stack([model.out.weight @ row + model.out.bias for row in rows])
            logits, out, early, along = model(batch)
        assert out is None
        assert early == ()
        assert (along is None) == per_step
        torch.testing.assert_close(logits[0], expected if per_step else expected[-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("per_step", [False, True])
def test_padding_changes_nothing(per_step):
    series = random_series(5, per_step=per_step)
    model = lively(5, per_step=per_step)
    together = model(in_float64(pad(series, np.arange(len(series))))).logits
    for sample in range(len(series)):
        alone = model(in_float64(pad(series, np.array([sample])))).logits
        same = together[sample, : alone.shape[1]] if per_step else together[sample]
        torch.testing.assert_close(same, alone[0], rtol=1e-12, atol=1e-12)


def test_span_is_a_unit_of_time():
    batch = in_float64(pad(random_series(1), np.arange(6)))
    model, other = lively(1), lively(1, span=10.0)
    with torch.no_grad():
        other.fade_weight.mul_(10)
        other.forget.weight.mul_(10)
    torch.testing.assert_close(other(batch)[0], model(batch)[0])


@pytest.mark.parametrize("per_step", [False, True])
def test_all_of_it_learns_from_the_start(per_step):
    torch.manual_seed(0)
    model = GruD(channels=3, statics=2, classes=2, hidden=5, per_step=per_step)
    model(pad(random_series(3, per_step=per_step), np.arange(6)))[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(dim=-1).all(), name


def test_it_learns_to_tell_by_the_last_value():
    torch.manual_seed(0)
    train, test = by_last_value(0, 512), by_last_value(1, 256)
    model = GruD(channels=2, statics=0, classes=2, hidden=16, dropout=0.0)
    batches = pad(train, np.arange(len(train))), pad(test, np.arange(len(test)))
    assert toy_accuracy(model, *batches, steps=120, rate=0.02) > 0.93


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"means have shape \(2,\); expected \(3,\)"):
        GruD(channels=3, statics=0, classes=2, means=torch.zeros(2))
    with pytest.raises(ValueError, match="span is 0"):
        GruD(channels=3, statics=0, classes=2, span=0)
