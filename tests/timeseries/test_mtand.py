"""mTAND attends to what was measured, when it was measured, and to nothing else."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.timeseries.samples import by_last_value, in_float64, random_series, toy_accuracy
from torchcram.timeseries.batches import pad
from torchcram.timeseries.rivals import Mtand


def small(seed: int, **changes) -> Mtand:
    torch.manual_seed(seed)
    settings = {"channels": 3, "statics": 2, "classes": 2, "span": 10.0, "hidden": 6, "embedding": 8, "heads": 2}
    return Mtand(**settings | {"reference": 5} | changes).double().eval()


@torch.no_grad()
def sharpen(model: Mtand, factor: float) -> Mtand:
    """With scores so many times as far apart."""
    model.query.weight.mul_(factor)
    model.query.bias.mul_(factor)
    return model


def attended_by_the_paper(model: Mtand, times: torch.Tensor, values: np.ndarray, queries: torch.Tensor) -> torch.Tensor:
    """[queries, hidden] of one sample: a softmax for each head and channel, over the times it was measured at."""

    def embedded(t):
        t = t.reshape(1)
        return torch.cat([model.trend(t), torch.sin(model.waves(t))])

    width = model.key.out_features // model.heads
    rows = []
    for q in queries:
        found = []
        for head in range(model.heads):
            part = slice(head * width, (head + 1) * width)
            for channel in range(values.shape[1]):
                at = np.flatnonzero(~np.isnan(values[:, channel]))
                if len(at) == 0:
                    found.append(0.0)
                    continue
                scores = [
                    (model.query(embedded(q))[part] @ model.key(embedded(times[n]))[part]).item() / math.sqrt(width)
                    for n in at
                ]
                weights = torch.softmax(torch.tensor(scores, dtype=torch.float64), 0)
                found.append((weights @ torch.from_numpy(values[at, channel])).item())
        ever = (~np.isnan(values)).any(0).astype(float).tolist()
        rows.append(model.mix(torch.tensor(found + ever, dtype=torch.float64)))
    return torch.stack(rows)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sharpness", [1, 30])
@pytest.mark.parametrize("per_step", [False, True])
@torch.no_grad()
def test_it_follows_the_equations(seed, sharpness, per_step):
    series = random_series(seed, per_step=per_step)
    model = sharpen(small(seed, per_step=per_step), sharpness)
    for sample in range(3):
        batch = in_float64(pad(series, np.array([sample])))
        times = batch.times[0] / 10.0
        queries = times if per_step else torch.linspace(0, 1, 5).double()
        attended = attended_by_the_paper(model, times, batch.values[0].numpy(), queries)
        states, _ = model.recurrent(attended[None])
        known = (~batch.statics[0].isnan()).double()
        statics = torch.cat([batch.statics[0].nan_to_num(), known])
        expected = torch.stack([model.out(torch.cat([state, statics])) for state in states[0]])
        logits, out, early, _ = model(batch)
        assert out is None
        assert early == ()
        torch.testing.assert_close(logits[0], expected if per_step else expected[-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sharpness", [1, 1000])
@pytest.mark.parametrize("per_step", [False, True])
def test_padding_changes_nothing(sharpness, per_step):
    series = random_series(5, per_step=per_step)
    model = sharpen(small(5, per_step=per_step), sharpness)
    whole = in_float64(pad(series, np.arange(len(series))))
    together = model(whole).logits
    # Whatever time padding has, nothing was measured then.
    elsewhere = model(replace(whole, times=torch.where(whole.mask, whole.times, 77.0))).logits
    for sample in range(len(series)):
        alone = model(in_float64(pad(series, np.array([sample])))).logits
        for logits in (together, elsewhere):
            same = logits[sample, : alone.shape[1]] if per_step else logits[sample]
            torch.testing.assert_close(same, alone[0], rtol=1e-10, atol=1e-10)


def test_a_time_stamp_without_measurements_changes_nothing():
    batch = in_float64(pad(random_series(2, longest=6), np.arange(6)))
    model = small(2)

    def with_first(value: float):
        # The new stamp is at the time of the first, so that the times of the others stay.
        values = torch.cat([torch.full_like(batch.values[:, :1], value), batch.values], dim=1)
        return replace(
            batch,
            values=values,
            times=torch.cat([batch.times[:, :1], batch.times], dim=1),
            mask=torch.cat([batch.mask[:, :1], batch.mask], dim=1),
        )

    torch.testing.assert_close(model(with_first(torch.nan))[0], model(batch)[0], rtol=1e-12, atol=1e-12)
    assert (model(with_first(0.0))[0] - model(batch)[0]).abs().min() > 1e-8


def test_a_channel_that_was_never_measured_is_not_one_that_was_always_zero():
    batch = in_float64(pad(random_series(3), np.array([0])))
    assert batch.values[..., -1].isnan().all()
    model = small(3)
    zero = batch.values.clone()
    zero[..., -1] = 0
    logits = model(batch).logits
    assert logits.isfinite().all()
    assert (model(replace(batch, values=zero))[0] - logits).abs().max() > 1e-6


@pytest.mark.parametrize("per_step", [False, True])
def test_when_it_was_measured_matters(per_step):
    batch = in_float64(pad(random_series(4, per_step=per_step, missing=0), np.arange(6)))
    model = small(4, per_step=per_step)
    later = replace(batch, times=batch.times + 2.0)
    apart = replace(batch, times=batch.times * 1.5)
    for other in (later, apart):
        assert (model(other)[0] - model(batch)[0]).abs().amax(-1)[batch.mask if per_step else ...].min() > 1e-8


def test_attention_of_any_sharpness_stays_finite():
    batch = pad(random_series(6), np.arange(6))
    torch.manual_seed(0)
    model = Mtand(channels=3, statics=2, classes=2, span=10.0, embedding=8, heads=2, hidden=6)
    logits = sharpen(model, 1000)(batch).logits
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@torch.no_grad()
def test_a_channel_that_was_measured_once_has_that_value_at_all_times():
    batch = pad(random_series(0, missing=0, longest=6), np.array([0]))
    batch.values[..., 1] = torch.nan
    batch.values[0, 1, 1] = 4.0
    torch.manual_seed(0)
    model = Mtand(channels=3, statics=2, classes=2, span=10.0, embedding=8, heads=2, hidden=9)
    model.mix.weight.copy_(torch.eye(9))
    model.mix.bias.zero_()
    # Beside the other channels' nearest values the one of this channel weighs next to nothing.
    found = sharpen(model, 100_000)._attended(batch, batch.times / 10.0)
    torch.testing.assert_close(found[0, :, [1, 4]], torch.full((128, 2), 4.0))


@pytest.mark.parametrize("per_step", [False, True])
def test_all_of_it_learns(per_step):
    model = small(0, per_step=per_step)
    model(in_float64(pad(random_series(0, per_step=per_step), np.arange(6))))[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


def test_it_learns_to_tell_by_the_last_value():
    torch.manual_seed(0)
    train, test = by_last_value(0, 512), by_last_value(1, 256)
    batches = pad(train, np.arange(len(train))), pad(test, np.arange(len(test)))
    model = Mtand(
        channels=2, statics=0, classes=2, span=batches[0].times.max().item(), hidden=32, embedding=32, reference=16
    )
    assert toy_accuracy(model, *batches, steps=150, rate=0.005) > 0.9


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="multiple of heads, 3"):
        small(0, heads=3)
    with pytest.raises(ValueError, match="span is 0"):
        small(0, span=0)
