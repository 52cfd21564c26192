"""Training on samples in memory: what is learned from, what is chosen by, and when reads are released."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.timeseries import made
from torchcram.timeseries import UNKNOWN, as_series, estimators, fitting
from torchcram.timeseries.batches import pad, usual_gap
from torchcram.timeseries.fitting import FitConfig, Fitting, labelled
from torchcram.timeseries.network import Along, Answer, Network, NetworkConfig
from torchcram.timeseries.scaling import Scaling


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Constant(nn.Module):
    """Says the same of every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))

    def forward(self, batch, policy=None):
        return Answer(self.logits.expand(len(batch.mask), 2))


def cram(series, **settings):
    shape = {"channels": len(series.channels), "statics": 0, "classes": len(series.classes)}
    torch.manual_seed(0)
    return Network(NetworkConfig(**shape, per_step=series.per_step, **settings).with_model("cram", "tiny"))


def test_the_best_epoch_is_kept():
    data = made.classes(60)
    train, val = as_series(data), as_series({**data, "y": 1 - data["y"]})
    network = Constant()
    fit = Fitting(network, train, val, FitConfig(epochs=5, patience=9, rate=0.3))
    seen = [(epoch.val_loss, epoch.best, network.logits.detach().clone()) for epoch in fit.run()]
    losses = [loss for loss, _, _ in seen]
    assert np.argmin(losses) != len(losses) - 1
    assert torch.equal(network.logits, seen[int(np.argmin(losses))][2])
    assert [best for _, best, _ in seen] == [loss == min(losses[: k + 1]) for k, loss in enumerate(losses)]


def test_no_epoch_is_kept_before_the_earliest():
    data, rare = made.classes(60), (np.arange(60) < 6).astype(int)
    train, val = as_series({**data, "y": rare}), as_series({**data, "y": 1 - rare})  # the more is learned, the worse
    network = Constant()
    fit = Fitting(network, train, val, FitConfig(epochs=6, patience=2, rate=0.3, earliest=0.5))
    seen = [(epoch.val_loss, network.logits.detach().clone()) for epoch in fit.run()]
    losses = [loss for loss, _ in seen]
    assert np.argmin(losses) < 2
    kept = 2 + int(np.argmin(losses[2:]))
    assert torch.equal(network.logits, seen[kept][1])
    assert len(seen) == kept + 3, "patience is counted from the earliest epoch on"
    with pytest.raises(ValueError, match=r"earliest = 1.5 .*allowed"):
        FitConfig(earliest=1.5)


def test_classes_can_count_the_same():
    series = as_series({**made.classes(100), "y": (np.arange(100) < 10).astype(int)})
    shares = []
    for balance in (0.0, 1.0):
        network = Constant()
        list(Fitting(network, series, series, FitConfig(epochs=60, rate=0.05, balance=balance, decay=0.0)).run())
        shares.append(float(network.logits.detach().softmax(-1)[1]))
    assert shares == pytest.approx([0.1, 0.5], abs=0.03)


def test_reads_are_released_in_time_and_priced():
    series = as_series(made.classes(96))
    fit = Fitting(cram(series), series, series, FitConfig(epochs=4, batch=16, acquire=0.5, ramp=0.2))
    assert fit.steps == 24
    released = [(fit.consolidator.released_at, fit.consolidator.progress) for _ in fit.run()]
    assert released[0][0] is None
    assert released[-1] == (12, 1)
    assert fit.consolidator.steps == 24


def test_a_model_without_reads_to_give_up_has_no_phases():
    series = as_series(made.classes(40))
    fit = Fitting(Constant(), series, series, FitConfig(epochs=1))
    list(fit.run())
    assert fit.consolidator.phase == "train"


def test_nothing_is_left_after_the_ramp_is_refused():
    with pytest.raises(ValueError, match=r"ramp = 0\.5 is not possible; allowed: less than 0\.5"):
        FitConfig(acquire=0.5, ramp=0.5)


def test_samples_without_a_label_are_left_out():
    data = made.labels(6, 8)
    y = data["y"].astype(float)
    y[1] = np.nan
    y[2, 3:] = np.nan
    series = as_series({"X": data["X"], "y": y}, per_step=True)
    assert labelled(series).ids.tolist() == [0, 2, 3, 4, 5]
    pieces, begins, rows = fitting._pieces(labelled(series), 3, 0)
    assert rows.tolist() == [0, 3, 6, 8, 16, 19, 22, 24, 27, 30, 32, 35, 38]
    assert begins.tolist() == [0] * len(pieces)
    assert pieces.lengths.tolist() == [3, 3, 2, 3, *[3, 3, 2] * 3]
    assert (np.logical_or.reduceat(pieces.labels != UNKNOWN, pieces.offsets[:-1])).all()
    epochs = list(Fitting(cram(series), series, series, FitConfig(epochs=2, batch=2, window=3)).run())
    assert all(np.isfinite(epoch.loss) for epoch in epochs)


def test_pieces_are_cut_elsewhere_each_time_and_keep_their_labels():
    series = as_series(made.labels(3, 20), per_step=True)
    for phase in (0, 1, 5, 7):
        pieces, begins, rows = fitting._pieces(series, 8, phase)
        assert rows.tolist() == pieces.offsets[:-1].tolist()
        assert begins.tolist() == [0] * len(pieces)  # time goes on from piece to piece
        last = pad(pieces, np.array([len(pieces) - 1]), begins=begins)
        assert last.times[0, -1] == 19
        assert last.dt[0, 0] == 0
        assert pieces.lengths.max() <= 8
        np.testing.assert_array_equal(pieces.labels, series.labels)
        np.testing.assert_array_equal(pieces.times, series.times)
        assert pieces.offsets[1] == (phase or 8)
    fit = Fitting(cram(series), series, series, FitConfig(epochs=3, batch=1, window=8))
    list(fit.run())
    assert fit.consolidator.steps <= fit.steps


def test_a_piece_is_told_of_what_came_before_it(monkeypatch):
    data = made.labels(3, 20)
    data["X"][:, ::3] = np.nan
    series = as_series(data, per_step=True)
    fit = Fitting(cram(series), series, series, FitConfig(epochs=2, batch=2, window=8), unit=2.0)
    seen = []
    network = fit.network.forward
    monkeypatch.setattr(
        fit.network, "forward", lambda batch, *rest, **more: (seen.append(batch), network(batch, *rest, **more))[1]
    )
    list(fit.run())
    whole = pad(series, np.arange(3), unit=2.0)
    expected = fit.network.inputs(whole)
    cut = [batch for batch in seen if batch.values.shape[1] <= 8]
    assert len(cut) >= 2
    for batch in cut:
        inputs = fit.network.inputs(batch)
        for row in range(len(inputs)):
            length = int(batch.mask[row].sum())
            begin = round(float(batch.times[row, 0]) * 2)
            places = expected[:, begin : begin + length].nan_to_num(7)
            alike = (places == inputs[row, :length].nan_to_num(7)).all(dim=2).all(dim=1)
            assert alike.any(), "the inputs of a piece are those of its part of the whole"
    plain = Fitting(cram(series), series, series, FitConfig(epochs=1, window=20))
    assert plain._summaries is None


def test_long_samples_come_in_smaller_batches():
    short, long = as_series(made.classes(96)), as_series(made.labels(20, 100), per_step=True)
    assert Fitting(cram(short), short, short, FitConfig(batch=16)).batch == 16
    fit = Fitting(cram(long), long, long, FitConfig(batch=16, positions=500))
    assert fit.batch == 5
    assert fit.steps == fit.epochs * 4


def test_checks_see_all_kinds_of_samples(monkeypatch):
    monkeypatch.setattr(fitting, "_CHECKED", 200)
    data = made.classes(100)
    order = np.argsort(data["y"], kind="stable")
    series = as_series({name: value[order] for name, value in data.items()})
    checked = Fitting(cram(series), series, series, FitConfig(epochs=1))._checked
    assert 10 < len(checked) < 30
    assert len(np.unique(checked.labels)) == 2


def test_scale_and_unit_come_from_the_samples_learned_from(monkeypatch):
    seen = {}

    def remember(self, network, train, val, config, *, unit, device):
        seen.update(unit=unit, train=train, val=val)
        raise FloatingPointError

    monkeypatch.setattr(estimators.Fitting, "__init__", remember)
    train, val = made.classes(40), made.classes(20, seed=1)
    val = {**val, "X": 100 * val["X"], "time": 100 * val["time"]}
    with pytest.raises(FloatingPointError):
        estimators.CramClassifier(device="cpu", progress=False).fit(train, val)
    series = as_series(train)
    assert seen["unit"] == usual_gap(series)
    scaling = Scaling.fit(series)
    np.testing.assert_array_equal(seen["train"].values, scaling.apply(series).values)
    np.testing.assert_array_equal(seen["val"].values, scaling.apply(as_series(val)).values)


def test_heads_further_down_are_trained():
    series = as_series(made.classes(40))
    torch.manual_seed(0)
    config = NetworkConfig(channels=3, statics=0, classes=2).with_model("entropy", "tiny")
    network = Network(config)
    early = [parameter for name, parameter in network.named_parameters() if ".early." in name]
    before = [parameter.detach().clone() for parameter in early]
    list(Fitting(network, series, series, FitConfig(epochs=1)).run())
    assert early
    assert not any(torch.equal(a, b) for a, b in zip(before, early, strict=True))
    with pytest.raises(
        ValueError, match="answer = 'mean' is not possible; allowed: 'last' for a model that looks back"
    ):
        NetworkConfig(channels=3, statics=0, classes=2, answer="mean").with_model("entropy", "tiny")


def test_a_loss_that_is_never_finite_is_told():
    series = as_series(made.classes(40))
    network = Constant()
    nn.init.constant_(network.logits, torch.nan)
    with pytest.raises(FloatingPointError, match="a smaller learning rate may help"):
        list(Fitting(network, series, series, FitConfig(epochs=1)).run())


def test_bfloat16_runs():
    series = as_series(made.classes(20))
    (epoch,) = Fitting(cram(series), series, series, FitConfig(epochs=1, bf16=True)).run()
    assert np.isfinite(epoch.val_loss)


def test_a_label_rests_on_no_more_than_its_context(monkeypatch):
    data = made.labels(4, 30)
    series = as_series(data, per_step=True)
    network = cram(series, features="summaries")
    fit = Fitting(network, series, series, FitConfig(epochs=2, batch=4, context=8))
    seen = []
    forward = network.forward
    monkeypatch.setattr(
        network, "forward", lambda batch, *rest, **more: (seen.append(batch), forward(batch, *rest, **more))[1]
    )
    epochs = list(fit.run())
    assert all(batch.values.shape[1] <= 8 for batch in seen)
    assert all(batch.summaries is None and bool((batch.times[:, 0] == 0).all()) for batch in seen)
    monkeypatch.undo()
    said, ledger = fitting.predict(network, series, context=8)
    kept = [epoch.val_loss for epoch in epochs if epoch.best][-1]
    assert fitting.log_loss(series.labels, said) == pytest.approx(kept)
    assert ledger.positions > len(series.times)  # those that pieces share are executed twice

    changed = {"X": data["X"].copy(), "y": data["y"]}
    changed["X"][:, 0] += 5
    other, _ = fitting.predict(network, as_series(changed, per_step=True), context=8)
    differs = (np.abs(said - other).max(1) > 1e-9).reshape(4, 30).any(0)
    assert differs[:4].all()
    assert not differs[8:].any()
    whole, _ = fitting.predict(network, as_series(changed, per_step=True))
    assert np.abs(whole - fitting.predict(network, series)[0]).reshape(4, 30, 2)[:, 8:].max() > 1e-9


def test_a_context_of_one_or_other_times_are_refused():
    with pytest.raises(ValueError, match="context = 1 is not possible"):
        FitConfig(context=1)
    with pytest.raises(ValueError, match="times = 'index' is not possible; allowed: 'real' or 'order'"):
        FitConfig(times="index")


class Early(nn.Module):
    """Answers at two tokens, of which the last one counts and the first never learns otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2, 2))

    def forward(self, batch, policy=None):
        every = self.logits.expand(len(batch.mask), 2, 2)
        mask = torch.tensor([[True, True]]).expand(len(batch.mask), 2)
        return Answer(every[:, 1], along=Along(every, mask))


@pytest.mark.parametrize("replicate", [0.0, 0.5])
def test_answers_before_the_last_can_be_trained(replicate):
    series = as_series({**made.classes(100), "y": (np.arange(100) < 10).astype(int)})
    network = Early()
    list(Fitting(network, series, series, FitConfig(epochs=60, rate=0.05, decay=0.0, replicate=replicate)).run())
    first, last = network.logits.detach().softmax(-1)[:, 1].tolist()
    assert last == pytest.approx(0.1, abs=0.03)
    assert first == pytest.approx(0.1 if replicate else 0.5, abs=0.03)


@pytest.mark.parametrize("layout", ["grid", "events"])
def test_padding_does_not_count_among_answers_before_the_last(layout):
    series = as_series(made.classes(12))
    batch = pad(series, np.arange(12))
    network = cram(series, layout=layout).eval()
    answer = network(batch)
    assert torch.equal(answer.along.logits[torch.arange(12), answer.along.mask.sum(1) - 1], answer.logits)
    real = batch.mask.sum() if layout == "grid" else (~batch.values.isnan()).sum()
    assert answer.along.mask.sum() == real
