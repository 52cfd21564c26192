"""What a model is told of a batch, and where its answer comes from."""

import numpy as np
import pytest
import torch

from torchcram.timeseries.batches import Batch, pad
from torchcram.timeseries.network import WHICH, Network, NetworkConfig
from torchcram.timeseries.series import Sample, assemble
from torchcram.timeseries.summaries import FEATURES

NAN = np.nan


def batch() -> Batch:
    one = Sample(id=0, times=[1.0, 2.0, 4.0], values=[[1, NAN], [NAN, 2], [3, 4]], label=1, statics=[5.0, NAN])
    other = Sample(id=1, times=[7.0], values=[[NAN, 6]], label=0, statics=[NAN, 8.0])
    series = assemble([one, other], channels=["a", "b"], static_names=["u", "v"], classes=["no", "yes"])
    return pad(series, np.arange(2))


def network(**settings) -> Network:
    torch.manual_seed(0)
    given = NetworkConfig(channels=2, statics=2, classes=2, **settings)
    return Network(given.with_model("cram", "tiny")).eval()


def test_a_grid_tells_values_time_statics_and_summaries():
    seen = network().inputs(batch())
    assert seen.shape == (2, 3, 2 + 1 + 4 + 2 * len(FEATURES))
    np.testing.assert_array_equal(seen[0, 1, :2], [NAN, 2])
    assert seen[0, :, 2].tolist() == pytest.approx([0, np.log(2), np.log(4)])
    assert seen[:, 0, 3:7].tolist() == [[5, 0, 1, 0], [0, 8, 0, 1]]
    assert network(features="values").inputs(batch()).shape[2] == 7


def test_events_are_in_the_order_of_time_then_of_channels():
    told, dt, mask, last = network(layout="events")._events(batch())
    assert last.tolist() == [3, 0]
    assert mask.tolist() == [[True] * 4, [True, False, False, False]]
    assert told[WHICH][0].tolist() == [0, 1, 0, 1]
    assert told["channels"][0, :, 0].tolist() == [1, 2, 3, 4]
    assert dt.tolist() == [[0, 1, 2, 0], [0, 0, 0, 0]]
    assert told[WHICH][1, 0] == 1
    assert told["channels"][1, 0].tolist() == [6, 0, 0, 8, 0, 1]


def test_an_interval_is_one_token_with_the_last_of_each_channel():
    given = batch()
    made = network(interval=3.0)
    coarse = made._coarse(given, 3.0)  # since the sample began: 0 and 1, then 3
    assert coarse.times.tolist() == [[1, 3], [0, 0]]
    assert coarse.mask.tolist() == [[True, True], [True, False]]
    np.testing.assert_array_equal(coarse.values, [[[1, 2], [3, 4]], [[NAN, 6], [NAN, NAN]]])
    # Summaries are of all values, as they are without intervals.
    whole = network().inputs(given)
    torch.testing.assert_close(made.inputs(coarse)[0, :, 2:], whole[0, 1:, 2:])
    alone = network(interval=0.5)._coarse(given, 0.5)
    np.testing.assert_array_equal(alone.values[0], given.values[0])
    # A channel that was not measured in an interval is missing there, even if it was before.
    twice = Sample(id=0, times=[0.0, 1.0, 2.0, 3.0], values=[[1, 5], [2, NAN], [NAN, NAN], [NAN, 7]], label=1)
    series = assemble([twice], channels=["a", "b"], static_names=[], classes=["no", "yes"])
    np.testing.assert_array_equal(made._coarse(pad(series, np.arange(1)), 2.0).values, [[[2, 5], [NAN, 7]]])


def test_intervals_are_for_one_answer_on_a_grid():
    for settings in ({"layout": "events"}, {"per_step": True}):
        with pytest.raises(ValueError, match=r"interval = 2\.0 is not possible; allowed: None"):
            network(interval=2.0, **settings)
    with pytest.raises(ValueError, match="interval = 0 is not possible"):
        network(interval=0)


@pytest.mark.parametrize("settings", [{}, {"layout": "events"}, {"interval": 2.0}])
@pytest.mark.parametrize("answer", ["last", "mean"])
def test_padding_changes_no_answer(settings, answer):
    made, given = network(answer=answer, **settings), batch()
    with torch.no_grad():
        together = made(given)[0]
        alone = [
            made(
                Batch(
                    values=given.values[k : k + 1, :n],
                    times=given.times[k : k + 1, :n],
                    mask=given.mask[k : k + 1, :n],
                    statics=given.statics[k : k + 1],
                    labels=given.labels[k : k + 1],
                )
            )[0]
            for k, n in ((0, 3), (1, 1))
        ]
    torch.testing.assert_close(together, torch.cat(alone))


def test_the_last_time_stamp_answers():
    made, given = network(), batch()
    with torch.no_grad():
        logits, out, *_ = made(given)
    assert torch.equal(logits[0], out.predictions["label"][0, 2])
    assert torch.equal(logits[1], out.predictions["label"][1, 0])


def test_hidden_inputs_are_as_if_they_had_not_been_measured():
    made, given = network(hide=0.5), batch()
    assert torch.equal(made._hidden(made.inputs(given)).nan_to_num(), made.inputs(given).nan_to_num())
    made.train()
    torch.manual_seed(0)
    seen, whole = made._hidden(made.inputs(given)), made.inputs(given)
    changed = (seen.nan_to_num(9e9) != whole.nan_to_num(9e9)).any(1)
    assert 0 < changed.float().mean() < 1
    # A value is hidden by being missing, a feature by being nothing.
    assert bool(seen[..., :2].isnan().sum() > whole[..., :2].isnan().sum())
    assert not bool(seen[..., 2:].isnan().any())


def test_a_network_needs_a_model_and_events_one_answer():
    with pytest.raises(ValueError, match="has no sequence model"):
        Network(NetworkConfig(channels=1, statics=0, classes=2))
    with pytest.raises(ValueError, match="layout = 'events' is not possible; allowed: 'grid'"):
        NetworkConfig(channels=1, statics=0, classes=2, layout="events", per_step=True)


def test_a_sample_without_any_measurement_has_an_answer():
    nothing = Sample(id=0, times=[1.0], values=[[NAN, NAN]], label=1, statics=[1.0, 2.0])
    series = assemble([nothing], channels=["a", "b"], static_names=["u", "v"], classes=["no", "yes"])
    for layout in ("grid", "events"):
        with torch.no_grad():
            assert bool(network(layout=layout)(pad(series, np.arange(1)))[0].isfinite().all())


def test_a_policy_is_told_where_an_answer_is_asked_for():
    for layout, expected in (("grid", [[0, 0, 1], [1, 0, 0]]), ("events", [[0, 0, 0, 1], [1, 0, 0, 0]])):
        made = network(layout=layout)
        tokens = made._events(batch()) if layout == "events" else made._grid(batch())
        assert made._asked(batch(), tokens).int().tolist() == expected
