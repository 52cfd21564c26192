"""The frontier: every model along its dial, on SRCD and on text."""

import pytest

from tests.paper.trying import check, trying
from torchcram.paper import frontier


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


def test_text_needs_both_files(tried, tmp_path, monkeypatch):
    monkeypatch.setattr(frontier, "_curves", lambda *_: iter(()))
    with pytest.raises(ValueError, match="--data text alone is not enough; give text and text-held-out"):
        list(frontier.run(trying(tried, data={"text": tmp_path})))


@pytest.mark.slow
def test_rows_are_complete(tried, tmp_path):
    files = {}
    for name in frontier.TEXT:
        files[name] = tmp_path / f"{name}.txt"
        files[name].write_text("A text of which some is learned and some is looked up. " * 4)
    said = []
    rows = list(frontier.run(trying(tried, data=files, say=said.append)))
    check(rows)
    # At this width its heads alone are larger than CRAM.
    assert [text for text in said if "left out" in text] == [text for text in said if text.startswith("entropy is")]
    models = {"srcd": set(frontier.MODELS), "text": set(frontier.MODELS) - {"entropy"}}
    for task, quality in (("srcd", "accuracy"), ("text", "bits_per_byte")):
        mine = [row for row in rows if row["task"] == task]
        assert {row["model"] for row in mine} == models[task]
        places = [row for row in mine if row["what"] == "place on the frontier"]
        assert len(places) == 2 * len(models[task])
        assert all(row["forward_ms"] > 0 and row[quality] is not None for row in places)
        assert any(row["unbeaten by reads"] for row in places)
