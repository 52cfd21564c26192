"""Once every experiment has been run, no claim is left without an answer. The numbers here are made up."""

import shutil
from pathlib import Path

import pytest

from tests.paper.trying import trying
from torchcram.paper import transfer_series, verdicts
from torchcram.paper.claims import CLAIMS
from torchcram.paper.experiments import EXPERIMENTS

RESULTS = Path(__file__).parents[2] / "results"
TEXTS = ("wiki", "novels")


def probed(**step):
    """Rows of a probe of one model."""
    found = []
    for text in TEXTS:
        common = {"model": "a small model", "text": text, "weights": "pretrained", "positions": "later", **step}
        for group in ("early", "middle", "late", "overall"):
            for predictor, printed in (("linear", 0.6), ("mean", 0.4)):
                found.append({"what": "group", "group": group, "predictor": predictor, "printed": printed, **common})
                found[-1] |= {"r2": 0.5, "part": "without bias"}
        for measure in ("printed", "r2"):
            found.append({"what": "heads", "measure": measure, "high": 0.2, "middle": 0.3, "low": 0.5, **common})
        found.append({"what": "loss", "loss": 3.5 - step.get("step", 0) / 1000, "text": text, "model": "a small model"})
        found[-1] |= step
    return found


def compared(*models, **scores):
    rows = [
        {"what": "model", "model": model, "routing": routing, "split": split, "layer_reads": 0.3, **scores}
        for model in models
        for routing in (("routed", "dense") if model == "cram" else ("routed",))
        for split in (1, 2)
    ]
    return {"rows": [{**row, "layer_reads": 1.0 if row["routing"] == "dense" else 0.3} for row in rows]}


MODELS = ("cram", "transformer", "mamba", "seqboat")
ELSEWHERE = {
    "redundancy-smollm2": {"rows": probed()},
    "redundancy-training": {"rows": [row for step in (0, 100, 900) for row in probed(step=step)]},
    "timeseries-p12": compared(*MODELS, auroc=0.85),
    "timeseries-activity": compared(*MODELS, accuracy=0.7, groups=1311),
}


def test_other_models_stand_beside_gpt2():
    judged = verdicts.judge(ELSEWHERE)
    share = judged["redundancy/share"]
    assert share.status == "not testable here"
    assert share.measured.startswith("a small model: R 0.6, the mean's alone 0.4, centred R² 0.5 (`wiki`); R 0.6")
    assert share.files == ("redundancy-smollm2",)
    assert judged["redundancy/heads-low"].measured.startswith("a small model: 50\u00a0% by R")
    rise = judged["redundancy/rise-in-text"]
    assert rise.measured == "a small model: R 0.6 at step 100 → 0.6 at step 900"
    assert judged["redundancy/validation-loss/10K"].measured == "a small model: loss 3.4 at step 100 → 2.6 at step 900"
    assert "gpt2-medium" in judged["redundancy/gpt2-medium/late"].command


def test_without_any_probe_it_is_still_not_gpt2():
    judged = verdicts.judge({})
    for name, claim in CLAIMS.items():
        if name.startswith("redundancy/") and judged[name].status != "a setting, no result":
            assert judged[name].status == "not testable here", claim.id


def test_time_series_are_judged_as_models_route_by_themselves():
    judged = verdicts.judge(ELSEWHERE)
    assert judged["timeseries/cram/attention"].measured == "0.3 ± 0\u00a0× (2 splits)"
    assert judged["timeseries/fall"].measured == "70 ± 0\u00a0% (2 splits)"
    apart = [
        {**row, "auroc": 0.86} if row["model"] == "transformer" else row for row in ELSEWHERE["timeseries-p12"]["rows"]
    ]
    for rows, status in (
        (ELSEWHERE["timeseries-p12"]["rows"], "holds differently"),  # alike, at another number
        (apart, "does not hold"),
        (compared(*MODELS, auroc=0.9)["rows"], "holds"),
    ):
        assert verdicts.judge({"timeseries-p12": {"rows": rows}})["timeseries/physionet-in-text"].status == status
    assert judged["timeseries/activity-in-text"].files == ("timeseries-activity",)
    assert judged["timeseries/cram/mimic3"].status == "not testable here"


@pytest.mark.parametrize("claim", ["timeseries/cram/activity", "timeseries/activity-in-text"])
def test_what_people_do_is_judged_on_the_whole_data_alone(claim):
    """Not on a fragment of it, and not on other data of the kind, whose numbers are told."""
    whole = {"timeseries-activity": compared(*MODELS, accuracy=0.181, groups=1311)}
    assert verdicts.judge(whole)[claim].status in ("holds", "holds differently")
    part = verdicts.judge({"timeseries-activity": compared(*MODELS, accuracy=0.181, groups=131)})[claim]
    other = verdicts.judge({"timeseries-wearable": compared(*MODELS, accuracy=0.181)})[claim]
    for found in (part, other, verdicts.judge({})[claim]):
        assert found.status == "not testable here"
        assert "a tenth of them, of one person of five" in found.why
        assert found.command.startswith("torchcram timeseries activity FOLDER")
    assert (part.measured, part.files) == ("", ())
    assert other.files == ("timeseries-wearable",)
    assert other.why.startswith("of another data set of the kind, wearable sensors")


def moved(target, measured=0.48, **more):
    claim = CLAIMS["transfer/activity/fall"]
    row = {
        "what": f"fall of srcd → {target}",
        "claim": claim.id,
        "printed": claim.value,
        "measured": measured,
        "runs": 3,
    }
    row |= {"model": "cram", "scale": "gpu", "target": target}
    row |= {"accuracy_from_scratch": 0.9, "accuracy_transferred": 0.88, **more}
    return verdicts.judge({"paper-transfer": {"rows": [row]}})[claim.id]


def test_transfer_to_what_people_do_is_judged_on_the_whole_data_alone():
    assert moved("activity", groups=1311).status == "holds"
    assert moved("activity", 0.1, groups=1311).status == "does not hold"
    assert moved("activity", groups=131).why.startswith("of a fragment: as printed; ")
    other = moved("wearable", groups=3)
    assert other.measured == "cram: 48\u00a0% (3 seeds)"
    assert "accuracy 90\u00a0% from scratch, 88\u00a0% after transfer" in other.why
    nothing = moved("wearable", None)
    for found in (moved("activity", groups=131), other, nothing, verdicts.judge({})["transfer/from/copy/activity"]):
        assert found.status == "not testable here"
        assert "a tenth of them" in found.why
        assert found.command.endswith("reproduce transfer --scale gpu --data activity=FOLDER")


@pytest.mark.parametrize(
    ("saved", "status"),
    [
        ((0.0, 0.25, 0.5, 0.7, 1.0), "holds differently"),
        ((0.0, 0.1, 0.95, 0.97, 1.0), "holds"),
        ((0.0, 0.5, 0.3, 0.2, 0.6), "does not hold"),
        ((0.9, 0.9, 0.9, 0.9, 0.9), "does not hold"),
    ],
)
def test_what_recurs_pays_from_a_half_on_or_little_by_little(saved, status):
    rows = [
        {"what": "reads over the recurring share", "recurring": share, "ratio": 1 - part, "seed": 0, "accuracy": 1.0}
        for share, part in zip((0.0, 0.25, 0.5, 0.7, 1.0), saved, strict=True)
    ]
    assert verdicts.judge({"paper-theory": {"rows": rows}})["phase/conditions"].status == status
    wrong = [{**row, "accuracy": 0.03} for row in rows]
    for few in (rows[:2], wrong):
        assert verdicts.judge({"paper-theory": {"rows": few}})["phase/conditions"].status == "not yet measured"


@pytest.mark.parametrize(("centre", "status"), [(620, "holds"), (200, "does not hold"), (None, "does not hold")])
def test_the_fall_of_the_papers_recipe_is_dated_by_its_own_length(centre, status):
    ours = {"what": "sigmoid in reads over training", "model": "cram", "measured": 400, "low": 390, "high": 410}
    ours |= {"released_at": 350, "steps": 1200}
    theirs = {**ours, "model": "cram, the paper's recipe", "measured": centre, "steps": 2000, "low": 600, "high": 640}
    if centre is None:
        theirs["what"] = "no fall"
    moved = {"what": "fall against the end of the temperature's fall", "model": "cram", "measured": 0.1}
    found = verdicts.judge({"paper-phase": {"rows": [ours, theirs, moved]}})["phase/step"]
    assert found.status == status
    assert "our recipe it moves by 0.1 steps" in found.why


@pytest.mark.parametrize(("before", "told"), [(0.9, "at step 20 (20 to 90)"), (1.4, "at step 70 (50 to 90)")])
def test_a_fall_before_the_first_evaluation_is_dated_by_its_change_point(before, told):
    ours = {"what": "sigmoid in reads over training", "model": "cram", "measured": 400, "low": 390, "high": 410}
    ours |= {"released_at": 350, "steps": 1200}
    theirs = {**ours, "model": "cram, the paper's recipe", "steps": 2000}
    smooth = {**theirs, "measured": 20, "low": 20, "high": 90, "before": before}
    sudden = {**theirs, "what": "change-point in reads over training", "measured": 70, "low": 50, "high": 90}
    found = verdicts.judge({"paper-phase": {"rows": [ours, smooth, sudden]}})["phase/step"]
    assert f"with the paper's recipe {told} of 2,000" in found.measured


@pytest.mark.parametrize(
    ("low", "best", "status"), [(0.3, "power", "holds"), (0.3, "change-point", "holds differently"), (0.6, "power", "")]
)
def test_an_exponent_counts_where_its_law_is_the_best(low, best, status):
    common = {"model": "cram", "counted": "from the start"}
    gamma = {"what": "γ of one power law without a floor", "measured": 0.5, "low": low, "high": 0.7, **common}
    laws = [
        {"what": f"{law}, one curve for all patterns", "best": law == best, **common}
        for law in ("power", "change-point")
    ]
    found = verdicts.judge({"paper-practice": {"rows": [gamma, *laws]}})["practice/gamma"]
    assert found.status == (status or "does not hold")


def to_copy(measured=0.5, **more):
    """Verdicts where reads on copying fell by a share."""
    claim = CLAIMS["transfer/copy/fall"]
    row = {"what": "fall of srcd → copying", "claim": claim.id, "printed": claim.value, "measured": measured, "runs": 3}
    row |= {"model": "cram", "scale": "gpu", "accuracy_from_scratch": 0.9, "accuracy_transferred": 0.88, **more}
    judged = verdicts.judge({"paper-transfer": {"rows": [row]}})
    return judged[claim.id], judged["transfer/fall"]


def reads(before, after, before_sd=0.01, after_sd=0.01):
    from_scratch = {"layer_reads_from_scratch": before, "layer_reads_from_scratch_sd": before_sd}
    return {**from_scratch, "layer_reads_transferred": after, "layer_reads_transferred_sd": after_sd}


def test_a_fall_stands_beside_what_became_of_accuracy():
    found, short = to_copy()
    assert (found.status, short.status) == ("holds", "holds")
    assert found.why == "as printed; accuracy 90\u00a0% from scratch, 88\u00a0% after transfer"
    found, short = to_copy(accuracy_transferred=0.2)
    assert (found.status, short.status) == ("holds differently", "holds differently")
    assert found.why == "accuracy is lost; accuracy 90\u00a0% from scratch, 20\u00a0% after transfer"
    found, short = to_copy(accuracy_from_scratch=0.02)
    assert (found.status, short.status) == ("not testable here", "not testable here")
    assert found.why.startswith("at this size the target is not learned")
    found, _ = to_copy(scratch_released=1)
    assert found.why.endswith("2 of 3 from scratch were never released, and so read everywhere")


def test_a_fall_is_told_with_what_it_is_from_and_to():
    found, _ = to_copy(**reads(0.4, 0.2, 0.1, 0.05))
    assert "reads in a layer 40\u00a0% ± 10\u00a0% from scratch, 20\u00a0% ± 5\u00a0% after transfer" in found.why
    assert "seeds differ" not in found.why


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        (0.2, "20\u00a0%"),
        (0.0, "0\u00a0%"),
        (-0.25, "1.25 times as many reads"),
        (-3.99, "4.99 times as many reads"),
    ],
)
def test_where_more_is_read_it_says_how_many_times_as_many(measured, told):
    found, short = to_copy(measured, **reads(0.1, 0.1 * (1 - measured)))
    assert found.measured == f"cram: {told} (3 seeds)"
    assert short.measured == f"copy {told}"
    assert found.status == short.status == "does not hold"
    side = "more is read, not less" if measured < 0 else "a smaller fall than printed"
    assert found.why.startswith(side)


@pytest.mark.parametrize(
    ("after", "deviation", "status"),
    [
        (0.05, 0.005, "holds"),
        (0.05, 0.1, "not testable here"),
        (0.03, 0.1, "not testable here"),
        (0.09, 0.005, "does not hold"),  # no more than none, and less than printed
        (0.4, 0.1, "does not hold"),  # whatever seeds differ by, more is read
    ],
)
def test_where_seeds_tell_a_fall_neither_from_none_nor_from_the_printed_one_nothing_follows(after, deviation, status):
    found, short = to_copy(1 - after / 0.1, **reads(0.1, after, 0.02, deviation))
    assert (found.status, short.status) == (status, status)
    assert ("seeds differ too much for 3 of them to tell" in found.why) == (status == "not testable here")


def test_the_range_of_falls_rests_on_targets_that_decide():
    of = {"runs": 3, "model": "cram", "scale": "gpu", "accuracy_from_scratch": 0.9, "accuracy_transferred": 0.9}
    falls = {"transfer/copy/fall": 0.51, "transfer/from/srcd/associative": -1.0, "transfer/activity/fall": 0.48}
    rows = [
        {**of, "what": name, "claim": name, "printed": CLAIMS[name].value, "measured": fall}
        | {"target": "wearable" if "activity" in name else name.rpartition("/")[0]}
        for name, fall in falls.items()
    ]
    found = verdicts.judge({"paper-transfer": {"rows": rows}})["transfer/fall"]
    assert found.measured == "copy 51\u00a0%; associative 2 times as many reads; wearable sensors 48\u00a0%"
    assert found.status == "holds differently"
    assert "Of wearable sensors nothing follows" in found.why
    alone = verdicts.judge({"paper-transfer": {"rows": rows[-1:]}})["transfer/fall"]
    assert alone.status == "not testable here"


def test_commands_name_the_data_that_they_take():
    judged = verdicts.judge(verdicts.read(RESULTS))
    assert judged["transfer/physionet/fall"].command.endswith("reproduce transfer --scale gpu --data p12=FOLDER")
    assert judged["transfer/from/physionet/mimic3"].command.endswith("--data p12=FOLDER --data mimic3=FOLDER")
    assert judged["transfer/from/physionet/activity"].command.endswith("--data p12=FOLDER --data activity=FOLDER")
    assert judged["transfer/from/physionet/mimic3"].status == "not testable here"
    assert judged["timeseries/cram/mimic3"].command.startswith("torchcram timeseries mimic3")


@pytest.mark.slow
def test_no_claim_is_left_without_an_answer(tried, tmp_path, monkeypatch):
    """Rows of every experiment, as they come, of models too small to mean anything: here only that they are there."""

    def made_up(setup, wanted):
        for fit in wanted:
            file = fit.file(setup)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text('{"auroc": 0.8, "accuracy": 0.6, "reads": 0.3, "layer_reads": 0.2, "seconds": 1}')

    monkeypatch.setattr(transfer_series, "finish", made_up)
    monkeypatch.setattr("torchcram.paper.transfer.from_series", lambda _: [])
    if (tried / "runs").exists():
        shutil.copytree(tried / "runs", tmp_path / "runs")  # what other tests have trained already
    setup = trying(tmp_path, data=dict.fromkeys(transfer_series.TARGETS, tmp_path))
    found = {**verdicts.read(RESULTS), **ELSEWHERE}
    for name, experiment in EXPERIMENTS.items():
        if experiment.lacks(setup):
            continue
        rows = [{key: value for key, value in row.items() if key != "caveat"} for row in experiment.run(setup)]
        found[f"paper-{name}"] = {"rows": rows, "command": f"torchcram reproduce {name} --scale gpu"}
    judged = verdicts.judge(found)
    left = {name for name, verdict in judged.items() if verdict.status == "not yet measured"}
    # Needs several shares, where this size has one besides the usual; and models of a data set that others begin with.
    assert left - {"phase/conditions"} == {f"transfer/from/physionet/{task}" for task in ("copy", "associative")}
