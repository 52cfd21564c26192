"""The page about the paper: all claims, every figure, an explorer, and nothing that has to be fetched."""

import html
import json
import re
from pathlib import Path

import pytest

from tests.cli.test_cli import run
from tests.report.explored import recording
from torchcram.paper import verdicts
from torchcram.paper.claims import CLAIMS, CURVES
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.paper.verdicts import Verdict
from torchcram.report import curves, explorer, figures, paper

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def page():
    return paper.page({**verdicts.read(RESULTS), "explored": recording()}, experiments=EXPERIMENTS)


def test_every_claim_is_a_row_that_can_be_filtered(page):
    rows = re.findall(r'<tr id="([^"]+)" data-verdict="(\w+)" data-section="(\w+)"', page)
    assert sorted(html.unescape(name) for name, _, _ in rows) == sorted(CLAIMS)
    assert {section for _, _, section in rows} == set(verdicts.SECTIONS)
    chips = set(re.findall(r'<button type="button" data-verdict="(\w+)"', page))
    assert {verdict for _, verdict, _ in rows} <= chips


@pytest.mark.parametrize(("left", "said"), [(0, None), (1, "1 is not yet measured, "), (2, "2 are not yet measured, ")])
def test_what_is_not_measured_is_said_only_if_there_is_any(left, said):
    some = verdicts.judge(verdicts.read(RESULTS))
    judged = {name: verdict for name, verdict in some.items() if verdict.status == "holds"}
    judged |= {f"open/{i}": Verdict(status="not yet measured") for i in range(left)}
    told = paper._header(judged)
    assert ("not yet measured, " in told) == bool(left)
    assert said is None or said in told


def test_code_in_claims_and_verdicts_is_shown_as_code(page):
    assert "<code>--preset paper --schedule paper</code> has it" in page
    table = page.partition('<table class="claims">')[2].partition("</table>")[0]
    assert "`" not in table


def test_every_curve_of_the_paper_is_drawn(page):
    """A curve's last value, as its read-out tells it."""
    told = html.unescape(page)
    for name in ("phase/attention", "phase/attention-again"):
        step, value = CURVES[name].points[-1]
        assert f"step {step:,.0f}\\nCRAM  {value:g} %" in told
    assert told.count("density") >= 4
    assert "γ" in told
    items = {curve.item for curve in CURVES.values()}
    assert all(item in page for item in items)


def test_the_run_is_drawn_beside(page):
    assert "Attention over training, here" in page
    assert page.count(">here</h4>") == 6


def test_runs_of_the_experiments_are_drawn_rather_than_the_explored_one():
    def over(model, seed, step, phase, reads):
        known = {"what": "attention over training", "model": model, "seed": seed, "scale": "gpu", "mean_quality": 0.5}
        return {**known, "step": step, "phase": phase, "reads": reads}

    rows = [
        over(model, seed, step, "acquire" if step < 100 else "settle", reads + 0.1 * seed)
        for model in ("cram", "cram, the paper's recipe", "mamba")
        for seed in (0, 1)
        for step, reads in ((0, 0.9), (50, 0.8), (100, 0.2))
    ]
    rows.append({"what": "quality at release", "model": "cram", "density at 0.250": 1.5, "density at 0.750": 2.5})
    rows.append({**rows[0], "caveat": "too small", "model": "tiny"})
    averaged = {"what": "averaged curve", "model": "cram", "counted": "from the start", "k": 1.0, "share_read": 1.0}
    results = {
        "paper-phase": {"rows": rows},
        "paper-practice": {"rows": [averaged, {**averaged, "k": 30.0, "share_read": 0.25}]},
        "explored": recording(),
    }
    found = curves.over_training(results, "reads")
    assert found.curves.keys() == {"cram", "cram, the paper's recipe"}
    assert found.curves["cram"] == [(0, pytest.approx(0.95)), (50, pytest.approx(0.85)), (100, pytest.approx(0.25))]
    assert found.released == 100
    assert "mean of 2 seeds" in found.note
    assert curves.densities(results).curves == {"at release": [(0.25, 1.5), (0.75, 2.5)]}
    assert curves.practice(results).curves == {"cram": [(1.0, 1.0), (30.0, 0.25)]}
    told = html.unescape(figures.section(results))
    assert "\\nthe paper's recipe  25 %" in told


def test_a_page_can_be_made_without_a_recording_or_runs():
    page = paper.page(
        {name: data for name, data in verdicts.read(RESULTS).items() if name not in ("explored", "paper-phase")},
        experiments=(),
    )
    assert "Not yet measured here" in page
    assert 'id="explorer"' not in page


def test_nothing_is_fetched_and_nothing_slips_in(page):
    assert not re.findall(r'(?:src|href)=(?!"#)', page)
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", page)
    assert "<RUN>" not in page  # a command of the recording, escaped
    assert len(page) < 8_000_000


def test_the_recording_is_understood():
    found = explorer.data(recording())
    assert [moment["step"] for moment in found["moments"]] == [10, 20]
    assert [moment["reads"] for moment in found["moments"]] == [8, 1]
    assert [moment["right"] for moment in found["moments"]] == [0, 1]
    layer = found["moments"][1]["layers"][1]
    assert layer["reads"] == {7: [(1, 0.97), (0, 0.03)]}
    assert layer["evicted"][2] == [2]
    assert json.dumps(found)


def test_the_command_writes_it(tmp_path):
    done = run("report", "--paper", "--results", str(RESULTS), "--out", str(tmp_path / "paper.html"))
    assert done.exit_code == 0
    assert "The paper, claim by claim" in (tmp_path / "paper.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words", [["report"], ["report", "--paper", "runs/one"], ["report", "--paper", "--picture", "a.svg"]]
)
def test_other_words_are_refused(words):
    assert run(*words).exit_code == 2


def test_a_folder_without_results_is_refused(tmp_path):
    done = run("report", "--paper", "--results", str(tmp_path), "--out", str(tmp_path / "paper.html"))
    assert done.exit_code == 1
