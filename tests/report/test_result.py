"""The picture for a first look: it shows what result files say, and is the one that is kept."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from torchcram.cli.main import app
from torchcram.paper import verdicts
from torchcram.report import frontier, result

ROOT = Path(__file__).parents[2]
LARGEST = 30_000  # bytes: it is loaded with the README


@pytest.fixture(scope="module")
def results():
    return verdicts.read(ROOT / "results")


def test_the_picture_that_is_kept_is_what_results_give(results):
    kept = (ROOT / "docs" / "images" / "result.svg").read_text(encoding="utf-8")
    assert kept == result.picture(results), "run: torchcram paper"
    assert len(kept) <= LARGEST
    assert "docs/images/result.svg" in (ROOT / "README.md").read_text(encoding="utf-8")
    ElementTree.fromstring(kept)  # well-formed


@pytest.mark.parametrize("task", frontier.TASKS)
def test_the_frontiers_that_are_kept_are_what_results_give(results, task):
    file = ROOT / "docs" / "images" / f"frontier-{task}.svg"
    kept = file.read_text(encoding="utf-8") if file.exists() else None
    assert kept == frontier.picture(results, task), "run: torchcram paper"


def test_dots_are_where_models_are(results):
    by_model = {dot.model: dot for dot in result.dots(results)}
    rows = [row for row in results["baselines-srcd"]["rows"] if row["what"] == "final"]
    for name in ("cram", "transformer"):
        mine = [row for row in rows if row["model"] == name and not row["setting"]]
        assert sorted(by_model[name].seeds) == sorted((row["reads"], row["accuracy_novel"]) for row in mine)
    assert "working" not in by_model  # nothing to look back with
    text = result.picture(results)
    assert all(f">{result._NAMES[name]}<" in text for name in by_model)


def test_other_numbers_give_another_picture(results):
    rows = [
        {**row, "accuracy_novel": 0.5} if row["model"] == "jamba" else row for row in results["baselines-srcd"]["rows"]
    ]
    changed = {**results, "baselines-srcd": {**results["baselines-srcd"], "rows": rows}}
    assert result.picture(changed) != result.picture(results)


def test_runs_of_experiments_come_before_the_explored_one(results):
    curve = [(10, 1.0), (20, 0.25)]
    rows = [
        {
            "what": "attention over training",
            "model": "cram",
            "seed": seed,
            "step": step,
            "reads": reads,
            "phase": "acquire",
        }
        for seed in (0, 1)
        for step, reads in curve
    ]
    text = result.picture({**results, "paper-phase": {"rows": rows}})
    assert "mean of 2 seeds" in text
    assert re.search(r"25\s% at the end", text)


@pytest.mark.parametrize("missing", ["baselines-srcd", "explored"])
def test_what_is_missing_is_told(results, missing):
    with pytest.raises(ValueError, match=r"there (is|are) no"):
        result.picture({name: data for name, data in results.items() if name != missing and "paper-" not in name})


def test_the_command_writes_it_beside_the_page(tmp_path):
    page = tmp_path / "docs" / "paper.md"
    page.parent.mkdir()
    page.write_text((ROOT / "docs" / "paper.md").read_text(encoding="utf-8"))
    done = CliRunner().invoke(app, ["paper", "--results", str(ROOT / "results"), "--out", str(page)])
    assert done.exit_code == 0, done.output
    assert (page.parent / "images" / "result.svg").read_text().startswith("<svg")
