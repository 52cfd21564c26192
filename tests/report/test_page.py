"""The page: true to the metrics, whole in itself, loud about failure, safe with whatever the files hold."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.report.runs import KINDS, STORY, entry, write
from tests.training.test_loop import trainer
from torchcram import report
from torchcram.training.run import RunFolder


def page(*folders) -> str:
    return report.page(report.read_all(folders)).replace("\u00a0", " ")


def words(text: str) -> str:
    """What a reader sees, without scripts, styles and tags."""
    text = re.sub(r"<(script|style).*?</\1>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


NEVER = [entry(step, "acquire", 1.0, accuracy_novel=0.06) for step in (400, 600, 800)]


def test_the_page_needs_nothing_from_outside(tmp_path):
    text = page(write(tmp_path / "run"))
    for tag, attributes in Tags(text).found:
        assert tag not in {"link", "iframe", "img", "object", "embed"}
        assert not {"src", "href", "srcset", "action"} & set(attributes), (tag, attributes)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", text)
    outside = set(re.findall(r"https?://[^\"'\s<]+", text))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_numbers_are_those_of_the_last_evaluation(tmp_path):
    seen = words(page(write(tmp_path / "run")))
    assert "Attention fell from 100 % to 1.72 % of the positions; the least possible is 1.60 %." in seen
    assert "accuracy 98.75 % recurring 100 %, novel 95.83 %" in seen
    assert "reads 1.72 % of the positions, 1.07 × OPT" in seen
    assert "layer_reads 0.86 %" in seen
    assert "pairs 0.57 %" in seen
    assert "audits 0 %" in seen
    assert "reads of novel 100 %" in seen
    assert "released_at 300" in seen
    assert "error is 1.23 × the least possible" in seen
    assert "Novel tokens still read; dynamics, store and recurring tokens no longer do" in seen
    assert "routing kept within the tolerance of 0.01 nats" in seen
    assert "consolidation.tolerance 0.01" in seen
    assert "warning" not in {attributes.get("class") for _, attributes in Tags(page(tmp_path / "run")).found}


def test_reads_by_kind_opt_bound_and_phases_are_drawn(tmp_path):
    drawing = report.picture(report.read_all([write(tmp_path / "run")])).replace("\u00a0", " ")
    texts = [node.text for node in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")]
    for label in ("dynamics", "store", "recurring", "novel", "all positions", "acquire", "consolidate", "settle"):
        assert label in texts
    assert "OPT 1.60 %: only novel queries read" in texts
    assert "static bound 5 %: every query reads" in texts
    assert "released at step 300" in texts
    assert "training step" in texts


def test_a_lower_share_is_drawn_lower_and_small_ones_stay_apart(tmp_path):
    drawing = report.picture(report.read_all([write(tmp_path / "run")]))
    path = re.search(r'class="line bolder ink" d="([^"]+)"', drawing).group(1)
    heights = [float(point.split()[1]) for point in re.split("[ML]", path)[1:]]
    assert heights[0] == heights[2]
    assert heights[2:] == sorted(heights[2:])
    opt = float(re.search(r'class="line ink dash" d="M[\d.]+ ([\d.]+)h[^>]+>(?!.*line ink dash)', drawing).group(1))
    assert 0 < opt - heights[-1] < 20  # 1.72 % just above 1.6 %
    assert opt - heights[3] > 40


def test_the_ratio_of_step_times_is_of_medians_of_phases(tmp_path):
    seen = words(page(write(tmp_path / "run")))
    assert "A step took 200 ms while every position read and 100 ms once settled, 2 × as fast" in seen
    assert "dense ÷ settled 2 ×" in seen


def test_a_missing_phase_is_told_instead_of_a_ratio(tmp_path):
    seen = words(page(write(tmp_path / "run", STORY[:5])))
    assert "No ratio of step times: no evaluation in phase settle" in seen


def test_a_run_that_was_never_released_says_so_loudly(tmp_path):
    text = page(write(tmp_path / "run", NEVER))
    loud = re.findall(r'<p class="warning" role="alert">(.*?)</p>', text)
    assert loud[0].startswith("Never released: in 800 steps")
    assert "still reads everywhere" in loud[0]
    assert loud[1] == "Only 6 % of the novel queries are answered right: retrieval was not learned."
    assert "attention was never released" in re.search("<h1>(.*?)</h1>", text).group(1)
    assert "released_at never" in words(text)


def test_a_run_under_way_is_reported_as_such(tmp_path):
    seen = words(page(write(tmp_path / "run", STORY[:2])))
    assert "still learning to read: at step 200 of 800 every position reads" in seen
    assert "Never released" not in seen
    assert "of 800, under way" in seen


def test_several_runs_have_a_row_each_a_mean_and_thin_curves(tmp_path):
    other = [{**one, "reads": min(1.0, one["reads"] + 0.01)} for one in STORY]
    folders = [write(tmp_path / "a"), write(tmp_path / "b", other, seed=1), write(tmp_path / "c", NEVER, seed=2)]
    text = page(*folders)
    seen = words(text)
    assert "Attention fell to between 1.72 % and 2.72 % of the positions in 2 of 3 runs" in seen
    assert "c: Never released" in seen
    rows = [words(row).split() for row in re.findall(r"<tr.*?</tr>", text)]
    assert [row[:2] for row in rows if row and row[0] in {"a", "b", "c"}][:3] == [["a", "0"], ["b", "1"], ["c", "2"]]
    assert "34.81 % ± 56.46 %" in seen  # mean and standard deviation of 1.72, 2.72 and 100 %
    chart = re.search(r'<div class="wide">(.*?)</svg>', text).group(1)
    assert len(re.findall(r'class="line thin ink" d="M[\d. ]+L[^"]+L', chart)) == 3
    assert "seed 0, 1, 2" in seen


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    runs = report.read_all([write(tmp_path / "x" / "run"), write(tmp_path / "y" / "run")])
    assert len({run.name for run in runs}) == 2


def test_the_sequence_shows_every_evaluation_and_some_to_print(tmp_path):
    text = page(write(tmp_path / "run"))
    assert "One held-out sequence: 1 of its first 70 positions read" in words(text)
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text).group(1))
    assert data["actions"] == [one["sample"]["actions"] for one in STORY]
    assert data["words"][0] == "step 100 (acquire): 70 of 70 positions read"
    still = text[text.index('<div class="still">') :]
    for moment in ("before release: step 250", "after release: step 400", "midway: step 600", "end: step 800"):
        assert moment in still
    assert (
        'class="fill novel" d="M1 0h1v1h-1z"' in still.replace('d="M0 0h1v1h-1z', "") or 'class="fill novel"' in still
    )
    assert '<path class="fill action1" data-action="1" d="M0 2.35h1v1h-1z"/>' in still


def test_distributions_of_quality_are_shown_for_each_kind_and_layer(tmp_path):
    text = page(write(tmp_path / "run"))
    for kind in ("dynamics", "store", "recurring", "novel"):
        for layer in (1, 2):
            assert f'aria-label="Quality of {kind} in layer {layer}"' in text
    assert "before release, step 250" in words(text)


def test_what_reads_are_worth_is_told_by_kind_and_layer(tmp_path):
    told = {
        "per_read": {kind: [None, 2.5 if kind == "novel" else None] for kind in KINDS},
        "per_skip": {kind: [0.001, 0.002] for kind in KINDS},
        "reads": 2.5,
        "skips": 0.0015,
        "utility": [[0.005, 0.004, 900.0], [2.0, 2.5, 30.0]],
        "quality": [[0.15, 0.2, 40.0], [0.95, 0.9, 800.0]],
    }
    ended = [*STORY[:-1], {**STORY[-1], "worth": told}]
    html = page(write(tmp_path / "run", ended))
    seen = words(html)
    assert "A read made is worth 2.5 nats, one not made would have been worth 0.0015" in seen
    assert "made, layer 2" in seen
    assert "What û foretells of a read" in seen
    assert "What q̂ foretells of recall" in seen
    bare = words(page(write(tmp_path / "bare", [*STORY[:-1], {**STORY[-1], "worth": {**told, "utility": []}}])))
    assert "What û foretells" not in bare
    assert "is worth" not in words(page(write(tmp_path / "none")))


def test_what_comes_from_files_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    quoted = '"><img src=x onerror=alert(1)>'
    entries = [
        {**one, "phase": evil, "kind_reads": {**one["kind_reads"], evil: [0.5, 0.5, 0.5], quoted: [0.1, 0.1, 0.1]}}
        for one in STORY
    ]
    entries[-1]["sample"] = {"kind": evil, "actions": [evil]}
    text = page(write(tmp_path / "<b>run", entries, task=evil, preset=quoted, seed=evil))
    assert "<b>run" not in text
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert len([tag for tag, _ in Tags(text).found if tag == "script"]) == 2  # the page's own, and its data


@pytest.mark.parametrize("missing", ["histograms", "sample", "seconds", "kind_reads", "opt", "excess", "mean_quality"])
def test_metrics_without_a_key_still_make_a_page(missing, tmp_path):
    entries = [{key: value for key, value in one.items() if key != missing} for one in STORY]
    assert "Attention fell from 100 % to 1.72 %" in words(page(write(tmp_path / "run", entries)))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), None, "many"])
def test_numbers_that_are_none_leave_a_gap(odd, tmp_path):
    entries = [*STORY[:-1], {**STORY[-1], "loss": odd, "excess": odd, "dynamics_mse": odd, "accuracy_novel": odd}]
    text = page(write(tmp_path / "run", entries))
    assert "novel –" in words(text)
    assert not re.search(r'd="[^"]*(nan|inf)', text)


def test_what_training_writes_is_what_a_report_reads(tmp_path):
    run = trainer(steps=10)
    with RunFolder(tmp_path / "run") as folder:
        folder.begin(run.config)
        for progress in run.run():
            folder.record(progress.entry())
            final = progress.evaluation
    seen = words(page(tmp_path / "run"))
    assert f"layer_reads {100 * final.ledger.layer_reads:.0f} %" in seen
    assert "One held-out sequence: 64 of its first 64 positions read" in seen
    assert "Never released" in seen
    assert "Layer 2: reads at 100 % of the positions" in seen


def test_reports_need_no_torch(tmp_path):
    write(tmp_path / "run")
    probe = (
        "import sys\nfrom torchcram.cli.main import app\n"
        f"try:\n    app(['report', {str(tmp_path / 'run')!r}, '--out', {str(tmp_path / 'page.html')!r}])\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'scipy', 'matplotlib', 'plotly', 'jinja2'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
