"""Run folders as data: what a crash or a resume left, and what cannot be a run."""

import json

import pytest

from tests.report.runs import STORY, entry, write
from torchcram.report.chart import Axis, apart, nice
from torchcram.report.runs import Run, median, moments


def test_a_last_line_cut_short_is_left_out(tmp_path):
    run = Run.read(write(tmp_path / "run", STORY[:3], end=json.dumps(STORY[3])[:200]))
    assert [one["step"] for one in run.entries] == [100, 200, 250]
    assert not run.finished


def test_after_a_resume_the_later_lines_count(tmp_path):
    again = entry(200, "acquire", 0.5)
    run = Run.read(write(tmp_path / "run", [*STORY[:3], again]))
    assert run.points("reads") == [(100, 1.0), (200, 0.5)], "what came after is no longer so"


@pytest.mark.parametrize("lines", ["", '{"step": 1', "null\n[1]\n"])
def test_a_run_without_an_evaluation_is_refused(lines, tmp_path):
    folder = write(tmp_path / "run", [], end=lines)
    with pytest.raises(ValueError, match=r"run has no evaluation to report: .* the first line comes after 100 steps"):
        Run.read(folder)


def test_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config.json"):
        Run.read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON"):
        Run.read(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config.json holds no settings"):
        Run.read(tmp_path)


def test_moments_tell_the_story_once(tmp_path):
    assert [(label, one["step"]) for label, one in moments(Run.read(write(tmp_path / "a")))] == [
        ("before release", 250),
        ("after release", 400),
        ("midway", 600),
        ("end", 800),
    ]
    assert [(label, one["step"]) for label, one in moments(Run.read(write(tmp_path / "b", STORY[:1])))] == [
        ("now", 100)
    ]


def test_the_median_is_taken_where_half_of_the_runs_are():
    curves = [[(1, 0.0), (2, 1.0)], [(1, 2.0), (2, 5.0)], [(1, 10.0), (3, 7.0)]]
    assert median(curves) == [(1, 2.0), (2, 3.0)]


def test_a_bent_axis_has_room_for_small_shares():
    axis = Axis(low=0, high=1, ticks=(), bend=0.005)
    places = [axis.place(share) for share in (0, 0.0156, 0.05, 1)]
    assert places[0] == 0
    assert places[3] == 1
    assert places[1] > 0.2
    assert places[2] - places[1] > 0.15


def test_labels_are_moved_apart_but_not_out():
    places = apart([50.0, 50.0, 50.0, 0.0], 15, 0, 60)
    assert places[3] == 0
    assert places[0] < places[1] < places[2] <= 60
    assert places[1] - places[0] >= 15


@pytest.mark.parametrize(("low", "high"), [(0, 1500), (0, 0.05), (-0.011, 0.09), (0, 131_072), (0.0101, 0.0102)])
def test_ticks_are_few_and_within(low, high):
    ticks = nice(low, high, 4)
    assert 2 <= len(ticks) <= 7
    assert min(ticks) >= low - 1e-9 * (high - low)
    assert max(ticks) <= high + 1e-9 * (high - low)
