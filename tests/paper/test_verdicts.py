"""Verdicts: one for every claim, from numbers in result files alone, and another one if these say otherwise."""

import copy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from torchcram.cli.main import app
from torchcram.paper import verdicts
from torchcram.paper.claims import CLAIMS
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.paper.verdicts.verdict import figure, spread
from torchcram.tasks import srcd
from torchcram.training.recipes import configure

RESULTS = Path(__file__).parents[2] / "results"
DECIDED = ("holds", "holds differently", "does not hold")


@pytest.fixture(scope="module")
def results():
    return verdicts.read(RESULTS)


@pytest.fixture(scope="module")
def judged(results):
    return verdicts.judge(results)


def test_every_claim_has_a_verdict_and_a_command(judged):
    assert judged.keys() == CLAIMS.keys()
    assert all(verdict.command for verdict in judged.values())
    assert all(verdict.why or verdict.status == "holds" for verdict in judged.values())
    assert sum(verdicts.counts(judged).values()) == len(CLAIMS)


def test_what_is_decided_rests_on_files(judged):
    for name, verdict in judged.items():
        assert bool(verdict.files) == bool(verdict.measured), name
        assert verdict.files or verdict.status not in DECIDED, name
        assert all((RESULTS / f"{file}.json").is_file() for file in verdict.files), name


def test_without_files_nothing_is_decided():
    assert not {verdict.status for verdict in verdicts.judge({}).values()} & set(DECIDED)


@pytest.mark.parametrize("missing", ["srcd-medium", "baselines-srcd", "paper-theory", "paper-phase", "paper-practice"])
def test_a_file_less_is_no_error(results, missing):
    judged = verdicts.judge({name: data for name, data in results.items() if name != missing})
    assert not any(missing in verdict.files for verdict in judged.values())


@pytest.mark.parametrize(
    ("claim", "file", "wanted", "change", "expected"),
    [
        ("srcd/jamba/accuracy", "baselines-srcd", {"model": "jamba"}, {"accuracy": 0.0}, "holds"),
        ("srcd/baselines", "baselines-srcd", {"model": "transformer"}, {"accuracy": 0.68}, "holds"),
        ("srcd/accuracy", "srcd-medium", {"what": "recipe"}, {"accuracy": 0.7}, "does not hold"),
        ("srcd/reads", "srcd-medium", {"what": "recipe"}, {"reads": 0.3}, "does not hold"),
        (
            "ablation/no-loss/attention",
            "paper-ablations",
            {"claim": "ablation/no-loss/attention"},
            {"measured": 0.167},
            "holds",
        ),
        ("theory/static-srcd", "baselines-srcd", {"model": "gate"}, {"reads": 0.051}, "holds"),
        ("theory/convergence", "paper-theory", {"what": "theorem 2"}, {"holds": True}, "holds"),
        ("phase/fixed-points", "paper-phase", {"q": 1.0}, {"measured": "stable"}, "holds"),
        ("practice/gamma", "paper-practice", {"claim": "practice/gamma"}, {"high": 0.5}, "holds differently"),
    ],
)
def test_other_numbers_give_another_verdict(results, judged, claim, file, wanted, change, expected):
    changed = copy.deepcopy(dict(results))
    for row in changed[file]["rows"]:
        if all(row.get(key) == value for key, value in wanted.items()):
            row.update(change)
    assert judged[claim].status != expected
    assert verdicts.judge(changed)[claim].status == expected


@pytest.mark.parametrize(("shares", "status"), [((0.2, 0.23, 0.25), "holds"), ((0.02, 0.2, 0.44), "holds differently")])
def test_seeds_that_are_far_apart_have_the_printed_number_on_average_only(results, shares, status):
    changed = copy.deepcopy(dict(results))
    mine = [row for row in changed["baselines-srcd"]["rows"] if (row["what"], row["model"]) == ("final", "seqboat")]
    for row, share in zip([row for row in mine if row["steps"] == 2000], shares, strict=True):
        row["layer_reads"] = share
    found = verdicts.judge(changed)["srcd/seqboat/attention"]
    assert found.status == status
    assert ("on average only" in found.why) == (status == "holds differently")


def test_the_papers_recipe_executes_all_reads_and_chooses_few(results, judged):
    """Of two files, which would contradict each other without the reason."""
    small = [row for row in results["paper-srcd"]["rows"] if row["what"] == "run" and "recipe" in row["model"]]
    assert {row["reads_executed"] for row in small} == {1}
    chosen = 100 * sum(row["reads"] for row in small) / len(small)
    why = judged["srcd/reads"].why
    assert "with the paper's own recipe 100\u00a0% (2,000 steps" in why
    assert f"since q_t needs the very reads that it is to spare; its router chooses {chosen:.2f} ± " in why
    assert "paper-srcd" in judged["srcd/reads"].files


def _of_runs(claim, *measured):
    rows = [
        {"what": "runs", "claim": claim, "seed": seed, "printed": CLAIMS[claim].value, "measured": value}
        for seed, value in enumerate(measured)
    ]
    return {"paper-tried": {"command": "torchcram reproduce tried --scale cpu", "rows": rows}}


@pytest.mark.parametrize(
    ("claim", "measured", "expected"),
    [
        ("transfer/fall", (0.45, 0.5, 0.55), "holds"),
        ("transfer/fall", (0.1, 0.12, 0.11), "does not hold"),
        ("redundancy/gpt2/early", (0.80,), "holds"),
        ("ablation/fast/accuracy", (0.998,), "holds"),
        ("ablation/fast/accuracy", (0.95,), "does not hold"),
        ("transfer/from/copy/mimic3", (0.079,), "holds"),
        ("transfer/from/copy/mimic3", (0.1,), "does not hold"),
        ("practice/gamma", (0.42, 0.44), "holds"),
    ],
)
def test_rows_of_runs_that_name_a_claim_are_judged(claim, measured, expected):
    verdict = verdicts.judge(_of_runs(claim, *measured))[claim]
    assert verdict.status == expected
    assert verdict.files == ("paper-tried",)
    assert f"({len(measured)} seed" in verdict.measured


def _summed(claim, **models):
    """Rows as experiments write them: one a model, of several runs."""
    rows = [
        {
            "what": "a column of a table",
            "claim": claim,
            "printed": CLAIMS[claim].value,
            "measured": value,
            "sd": 0.001,
            "low": value - 0.001,
            "high": value + 0.001,
            "runs": 5,
            "model": model.replace("_", " "),
            "scale": "gpu",
        }
        for model, value in models.items()
    ]
    return {"paper-tried": {"command": "torchcram reproduce tried --scale gpu", "rows": rows}}


def test_models_that_differ_are_judged_apart():
    claim = "ablation/fast/accuracy"
    verdict = verdicts.judge(_summed(claim, cram=0.999, cram_otherwise=0.7))[claim]
    assert verdict.status == "holds differently"
    assert verdict.measured.startswith("cram: 99.9 ± 0.1\u00a0% (5 seeds); cram otherwise: 70 ± ")
    assert verdict.why == "a column of a table; not with cram otherwise; less than printed"
    assert verdicts.judge(_summed(claim, one=0.7, two=0.6))[claim].status == "does not hold"
    assert verdicts.judge(_summed(claim, one=1.0, two=0.999))[claim].status == "holds"


def test_a_scale_that_tells_nothing_is_not_heard():
    claim = "ablation/fast/accuracy"
    tried = _summed(claim, cram=1.0)
    tried["paper-tried"]["rows"][0]["caveat"] = "too small"
    assert verdicts.judge(tried)[claim].status == "not yet measured"


@pytest.mark.parametrize(("gamma", "expected"), [(0.29, "holds"), (0.2, "holds differently"), (0.45, "does not hold")])
def test_exponents_of_ablations_are_compared_with_what_the_table_says_in_words(gamma, expected):
    claim = "ablation/no-quality/gamma"
    row = {"what": "γ", "claim": claim, "printed": CLAIMS[claim].printed, "measured": gamma, "scale": "gpu"}
    assert verdicts.judge({"paper-ablations": {"rows": [row]}})[claim].status == expected


def test_what_was_measured_at_the_larger_size_comes_first_on_srcd(results, judged):
    claim = "srcd/cram/accuracy"
    assert verdicts.judge({**results, **_summed(claim, cram=0.5)})[claim] == judged[claim]
    assert verdicts.judge(_summed(claim, cram=0.5))[claim].status == "does not hold"


def test_scores_on_data_sets_are_judged_by_split():
    rows = [{"what": "model", "model": "cram", "split": split, "auroc": 0.84} for split in range(5)]
    verdict = verdicts.judge({"timeseries-p12": {"rows": rows}})["timeseries/cram/physionet"]
    assert verdict.status == "does not hold"
    assert verdict.measured == "0.84 ± 0 (5 splits)"


def test_numbers_are_written_with_their_spread():
    assert spread([0.5, 0.7], "share") == "60 ± 14\u00a0% (2 seeds)"
    assert spread([0.99999], "share") == "99.99\u00a0% (1 seed)"
    assert spread([1.0, 1.0], "share") == "100 ± 0\u00a0% (2 seeds)"
    assert figure(12345.6, "number") == "12346"
    assert figure(0.000123, "times") == "0.000123\u00a0×"


def test_commands_are_commands_of_ours(judged):
    known = set(typer.main.get_command(app).commands)
    for verdict in judged.values():
        for command in verdict.command.split("; "):
            program, name, *_ = shlex.split(command)
            assert program == "torchcram"
            assert name in known, command


def test_settings_are_those_of_the_papers_schedule(judged):
    run, task = configure("srcd", "paper", schedule="paper"), srcd.SrcdConfig()
    here = {
        "recipe/width": run.model.block.width,
        "recipe/layers": run.model.layers,
        "recipe/euler-steps": run.model.working.steps,
        "recipe/slots": run.model.episodic.slots,
        "recipe/rank": run.model.semantic.rank,
        "recipe/semantic-rate": run.optimizer.semantic,
        "recipe/beta-1": run.optimizer.beta1,
        "recipe/beta-2": run.optimizer.beta2,
        "recipe/weight-decay": run.optimizer.decay,
        "recipe/rate": run.optimizer.rate,
        "recipe/batch": run.batch,
        "recipe/steps": run.steps,
        "recipe/gamma": run.consolidation.consolidation,
        "srcd/query-share": task.queries,
        "srcd/recurring-share": task.recurring,
        "srcd/patterns": task.patterns,
        "srcd/length": task.length,
        "srcd/dynamics": srcd._MEMORY,
        "srcd/gaps": srcd._SHAPE,
        "srcd/gap-limits": srcd._SHORTEST,
    }
    for name, value in here.items():
        assert judged[name].status == "a setting, no result"
        assert CLAIMS[name].value == value, name


def test_nothing_but_python_is_needed():
    probe = (
        "import sys\nfrom torchcram.paper import verdicts\n"
        f"verdicts.judge(verdicts.read({str(RESULTS)!r}))\n"
        "assert not {'torch', 'numpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)


def test_what_is_calculated_from_the_papers_own_figures_says_nothing_of_runs(results, tmp_path, monkeypatch):
    """Rows as the command writes them today, beside those that are kept; of neither what was trained."""
    kept = copy.deepcopy(dict(results))
    for name in ("paper-phase", "paper-practice"):
        kept[name]["rows"] = [row for row in kept[name]["rows"] if "scale" not in row]
    judged = verdicts.judge(kept)
    untrained = {name: replace(each, train=lambda _: iter(())) for name, each in EXPERIMENTS.items()}
    monkeypatch.setattr("torchcram.cli.reproduce.EXPERIMENTS", untrained)
    for name in ("phase", "practice"):
        done = CliRunner().invoke(app, ["reproduce", name, "--scale", "ci", "--out", str(tmp_path)])
        assert done.exit_code == 0, done.output
    again = verdicts.judge({**kept, **verdicts.read(tmp_path)})
    for name in ("phase/step", "phase/fall", "practice/gamma", "practice/rickard"):
        assert again[name].status == judged[name].status, name
        assert again[name].why == judged[name].why, name


def _judged(claim, *rows):
    rows = [{"what": "x", "claim": claim, "printed": CLAIMS[claim].value, "scale": "gpu", **row} for row in rows]
    return verdicts.judge({"paper-phase": {"rows": rows, "command": "torchcram reproduce phase --scale gpu"}})[claim]


def test_runs_that_differ_wildly_agree_with_nothing():
    printed = CLAIMS["phase/step"].value
    assert _judged("phase/step", {"model": "a", "measured": 1.05 * printed, "sd": 1.0, "runs": 3}).status == "holds"
    wild = _judged("phase/step", {"model": "a", "measured": 1.5 * printed, "sd": 2 * printed, "runs": 3})
    assert wild.status == "does not hold"


def test_a_model_in_which_it_did_not_happen_counts():
    found = _judged(
        "phase/step",
        {"model": "a", "measured": CLAIMS["phase/step"].value},
        {"model": "b", "what": "no fall", "measured": None},
    )
    assert found.status == "holds differently"
    assert "b: none" in found.measured
