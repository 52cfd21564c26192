"""The page about a pretrained model says what was measured, and no more."""

import re

import pytest

from torchcram.report import redundancy as report
from torchcram.report.words import SPACE


def group(weights="pretrained", predictor="linear", **scores):
    given = {"printed": 0.5, "excess": 0.2, "r2": 0.4, "cosine": 0.6, **scores}
    bounds = {f"{key}_{end}": None for key in given for end in ("low", "high")}
    which = {"what": "group", "group": "overall", "weights": weights, "predictor": predictor}
    return {**which, "positions": "later", "part": "without bias", **bounds, **given}


def worth(cost, low=None, high=None, recovered=None, **which):
    found = {"intact": 3.0, "loss": 3.0 + cost, "cost": cost, "cost_low": low, "cost_high": high}
    return {**which, **found, "recovered": recovered, "recovered_low": None, "recovered_high": None}


def layers(predictor, *costs, order="best first"):
    which = {"what": "layers", "order": order, "predictor": predictor}
    return [worth(*cost, **which, count=2 * count) for count, cost in enumerate(costs, start=1)]


def rows(*, linear, mean=((0.5,),), whole=(2.0, 1.5, 2.5), r2=0.4, **bounds):
    """linear, mean: Costs of more and more layers on a half of the text; whole: of all layers, on all of it."""
    about = {"what": "about", "text": "held.txt", "model": "some"}
    groups = [group(r2=r2, **bounds), group(predictor="mean", printed=0.3), group("random", r2=0.81)]
    straight = layers("linear", *((9.0,),) * (len(linear) - 1), whole, order="first to last")
    return [about, *groups, *layers("linear", *linear), *layers("mean", *mean), *straight]


def copies(replaced, loss, low, high, predictor=""):
    said = {"what": "copying", "replaced": replaced, "predictor": predictor, "chance": 5.0}
    return {**said, "loss": loss, "loss_low": low, "loss_high": high}


def said(**given):
    return report.verdict(rows(**given)).replace(SPACE, " ")


def test_a_verdict_counts_layers_by_the_upper_end_of_an_interval():
    linear = ((0.01, 0.0, 0.02), (0.02, 0.01, 0.0299), (0.02, 0.01, 0.031), (0.0, -0.1, 0.01), (7.0, 6.5, 7.5))
    told = said(linear=linear, mean=((0.02, 0.0, 0.029), (1.0, 0.5, 1.5)), r2_low=0.35, r2_high=0.45)
    assert "tells 40 % (35 % to 45 %) of the variance" in told
    assert "R as the paper measures it is 0.5, the mean's alone 0.3" in told
    assert "in 4 of 10 layers, chosen on the other half of the text, it cost at most 1 % of the loss" in told
    assert "(the mean, put into layers in the same order, in 2)" in told
    assert told.endswith("in all layers, 2 (1.5 to 2.5) nats a token."), "on the whole text, not on a half of it"


def test_a_verdict_says_no_more_than_was_measured():
    told = said(linear=((0.01,), (2.0,)), whole=(1.9,))
    assert "in 2 of 4 layers" in told
    assert "(the mean, put into layers in the same order, cost more than that in the first 2 already)" in told
    assert told.endswith("1.9 nats a token. This text is too short to tell how sure the costs are.")
    given = [{**row, "count": row["count"] // 2} if "count" in row else row for row in rows(linear=((0.01,), (2.0,)))]
    assert "in the same order, cost more than that in the first already)" in report.verdict(given)
    told = said(linear=((0.01,), (2.0,)))
    assert told.endswith("2.5) nats a token. Half of this text is too short to tell how sure the number of layers is.")
    told = said(linear=((0.02, -0.1, 0.5), (2.0, 1.5, 2.5)))
    assert "even in 2 of 4 layers, chosen on the other half of the text, it cost 0.7 % (-3.3 % to 16.7 %)" in told
    assert "of the loss, which may be more than 1 %; in all" in told
    told = said(linear=((0.06, 0.045, 0.09), (2.0, 1.5, 2.5)))
    assert "it cost 2 % (1.5 % to 3 %) of the loss, which is more than 1 %; in all" in told
    assert "tells nothing of the variance" in said(linear=((0.01,), (2.0,)), r2=-0.1)
    too_little = "some: too little was measured for a verdict; give more text, and more --tested-tokens."
    assert said(linear=()) == too_little
    assert said(linear=((0.1,),), r2=None) == too_little


@pytest.mark.parametrize(("loss", "hardly"), [(3.0, False), (4.1, False), (4.2, True), (6.0, True)])
def test_a_model_that_hardly_predicts_a_text_is_told_of(loss, hardly):
    given = [*rows(linear=((0.01,), (2.0,))), {"what": "loss", "loss": loss}]
    told = f"The model's own loss on this text is {loss:g} nats a token"
    assert report.own_loss(given) == f"{told}.", "earlier files do not tell the vocabulary"
    assert "hardly" not in report.verdict(given)
    given[0]["vocabulary"] = 100  # ln 100 = 4.605
    assert report.own_loss(given) == f"{told}; a uniform guess over its vocabulary costs 4.61."
    words = f" But the model hardly predicts this text: its loss is {loss:g}, a guess costs 4.61, so costs say little."
    assert (words in report.verdict(given)) == hardly
    assert report.own_loss(rows(linear=())) == ""


def test_the_control_stands_beside_the_model():
    (line,) = report.groups(rows(linear=((0.1,),)))
    assert dict(zip(report.HEADS, line, strict=True))["R², random weights"] == "0.81"
    without = [row for row in rows(linear=((0.1,),)) if row.get("weights") != "random"]
    assert report.groups(without)[0][-1] == "–"


@pytest.mark.parametrize("control", [True, False])
def test_the_ladder_ends_with_the_control(control):
    which = {"what": "layer", "layer": 0, "positions": "later", "part": "without bias", "predictor": "linear"}
    given = [{**which, "weights": "pretrained", "r2": 0.25}, *([{**which, "weights": "random", "r2": 0.75}] * control)]
    cells = re.findall("<t[hd]>(.*?)</t[hd]>", report._ladder(given))
    assert cells == ["layer", "linear", "linear, random weights", "1", "0.25", "0.75" if control else "–"]


def test_single_layers_show_costs_and_shares():
    which = {"what": "one layer", "layer": 0}
    given = [
        worth(0.5, 0.4, 0.6, 0.0, **which, predictor="mean"),
        worth(0.1234, 0.1, 0.15, 0.75, **which, predictor="linear"),
        worth(0.3, **which, predictor="adapter"),
    ]
    cells = re.findall("<t[hd]>(.*?)</t[hd]>", report._alone(given))
    assert cells[1:4] == ["the mean: cost", "linear: cost", "narrow, with a ReLU: cost"]
    assert cells[4:6] == ["linear: recovered", "narrow, with a ReLU: recovered"]
    assert cells[6:] == ["1", "0.5 (0.4 to 0.6)", "0.1234 (0.1 to 0.15)", "0.3", "0.75", "–"]


def test_copying_is_shown_for_the_layer_that_is_missed_most():
    given = [copies("nothing", 1.0, 0.9, 1.1)]
    given += [copies(f"layer {layer}", loss, loss, loss, "linear") for layer, loss in enumerate((2.0, 4.0, 3.0))]
    given += [copies("all layers", 9.0, 8.5, 9.5, "linear")]
    assert [layer for layer, _ in report.single(given, "linear")] == [1, 2, 3]
    cells = re.findall("<td>(.*?)</td>", report._copies(given))
    assert cells[:3] == ["nothing", "–", "1 (0.9 to 1.1)"]
    assert cells[3:6] == ["layer 2, with the highest loss of all here", "linear", "4 (4 to 4)"]
    assert cells[6:] == ["all layers", "linear", "9 (8.5 to 9.5)"]


def test_a_curve_begins_where_its_own_windows_do():
    given = rows(linear=((0.1,), (2.0,)))
    for row in given:
        if "intact" in row:
            row["intact"] = 3.25
    drawn = report._removed([*given, {"what": "loss", "loss": 9.0}])
    assert "3.25" in drawn
    assert ">9<" not in drawn
