"""The page's part about claims: all of them, between its marks, and nothing else of the page touched."""

from pathlib import Path

import pytest

from tests.cli.test_cli import run
from torchcram.paper import verdicts
from torchcram.paper.claims import CLAIMS
from torchcram.report import claims

RESULTS = Path(__file__).parents[2] / "results"
PAGE = f"# Mine\n\nbefore\n\n{claims.BEGIN}\nold\n{claims.END}\n\nafter | still\n"


def test_only_the_part_between_the_marks_changes():
    text = claims.renewed(PAGE, verdicts.read(RESULTS), folder="../results", experiments=())
    assert text.startswith(f"# Mine\n\nbefore\n\n{claims.BEGIN}\n")
    assert text.endswith(f"{claims.END}\n\nafter | still\n")
    assert "old" not in text.split(claims.BEGIN)[1].split(claims.END)[0].splitlines()
    assert claims.renewed(text, verdicts.read(RESULTS), folder="../results", experiments=()) == text


def test_every_claim_has_one_line_of_five_cells():
    text = claims.part(verdicts.read(RESULTS), folder="../results", experiments=())
    for name in CLAIMS:
        (line,) = [line for line in text.splitlines() if f"(`{name}`, " in line]
        assert line.replace("\\|", "").count("|") == 6, line
    assert text.index("`srcd/accuracy`") < text.index("<details>") < text.index("`srcd/cram/accuracy`")


def test_experiments_that_are_not_there_are_said_to_be_to_come():
    results = verdicts.read(RESULTS)
    (line,) = [x for x in claims.part(results, folder="", experiments=()).splitlines() if "(`transfer/fall`, " in x]
    assert line.endswith("(to come) |")
    known = claims.part(results, folder="", experiments=("transfer",))
    (line,) = [x for x in known.splitlines() if "(`transfer/fall`, " in x]
    assert not line.endswith("(to come) |")


def test_the_command_writes_the_page(tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "mine.md"
    page.write_text(PAGE, encoding="utf-8")
    done = run("paper", "--results", str(RESULTS), "--out", str(page))
    assert done.exit_code == 0
    assert "not yet measured" in done.output
    assert "(`srcd/accuracy`, abstract)" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [None, "# A page without marks\n", f"{claims.BEGIN}\n"])
def test_a_page_without_a_place_for_them_is_refused(tmp_path, text):
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text, encoding="utf-8")
    done = run("paper", "--results", str(RESULTS), "--out", str(page))
    assert done.exit_code == 1
