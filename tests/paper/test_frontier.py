"""The frontier: every model along its dial, on SRCD and on text."""

import pytest
from typer.testing import CliRunner

from tests.paper.trying import check, trying
from torchcram.cli.main import app
from torchcram.paper import frontier
from torchcram.paper.experiments import EXPERIMENTS


def test_what_is_beaten():
    places = [
        {"model": "a", "accuracy": 0.9, "reads": 0.1},
        {"model": "b", "accuracy": 0.8, "reads": 0.2},
        {"model": "c", "accuracy": 0.95, "reads": 0.3},
        {"model": "a", "accuracy": 0.8, "reads": 0.15},
    ]
    # Of the same model, another setting is no rival.
    assert [frontier.unbeaten(each, places, "accuracy", "reads") for each in places] == [True, False, True, True]
    bits = [{"model": "a", "bits_per_byte": 2.0, "reads": 0.1}, {"model": "b", "bits_per_byte": 1.9, "reads": 0.1}]
    assert [frontier.unbeaten(each, bits, "bits_per_byte", "reads") for each in bits] == [False, True]
    # A hair more accuracy does not make up for twice the time.
    hair = [{"model": "a", "accuracy": 0.99999, "ms": 20.0}, {"model": "b", "accuracy": 0.9999, "ms": 10.0}]
    assert [frontier.unbeaten(each, hair, "accuracy", "ms") for each in hair] == [False, True]
    same = [{"model": "a", "accuracy": 0.99, "ms": 10.0}, {"model": "b", "accuracy": 0.991, "ms": 10.1}]
    assert all(frontier.unbeaten(each, same, "accuracy", "ms") for each in same)


def test_a_text_needs_both_files(tmp_path):
    (tmp_path / "a.txt").write_text("A text.")
    words = ["reproduce", "frontier-text", "--out", str(tmp_path / "out"), "--data", f"text={tmp_path / 'a.txt'}"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "frontier-text needs data: give --data text-held-out=PATH" in done.output
    assert EXPERIMENTS["frontier-text"].lacks(trying(tmp_path)) == "give --data text=PATH --data text-held-out=PATH"


def check_places(rows, task, models, quality):
    check(rows)
    assert {row["task"] for row in rows} == {task}
    assert {row["model"] for row in rows} == models
    places = [row for row in rows if row["what"] == "place on the frontier"]
    assert len(places) == 2 * len(models)
    assert all(row["forward_ms"] > 0 and row[quality] is not None for row in places)
    assert any(row["unbeaten by reads"] for row in places)


@pytest.mark.slow
def test_rows_on_srcd_are_complete(tried):
    check_places(list(frontier.run(trying(tried))), "srcd", set(frontier.MODELS), "accuracy")


@pytest.mark.slow
def test_rows_on_text_are_complete(tried, tmp_path):
    files = {}
    for name in frontier.TEXT:
        files[name] = tmp_path / f"{name}.txt"
        files[name].write_text("A text of which some is learned and some is looked up. " * 4)
    said = []
    rows = list(frontier.run_on_text(trying(tried, data=files, say=said.append)))
    # At this width its heads alone are larger than CRAM.
    assert [text for text in said if "left out" in text] == [text for text in said if text.startswith("entropy is")]
    check_places(rows, "text", set(frontier.MODELS) - {"entropy"}, "bits_per_byte")
