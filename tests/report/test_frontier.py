"""Charts of what is traded: drawn from rows of experiments, whatever of them there is. The numbers here are made up."""

import html
import re

from torchcram.paper.frontier import _ALIKE, _CHEAPER
from torchcram.report import frontier, paper
from torchcram.report.words import SPACE


def place(model, task, reads, **quality):
    told = {"place": "price=0.05", "unbeaten by reads": model == "cram", "unbeaten by forward_ms": True}
    return {"what": "place on the frontier", "task": task, "model": model, "reads": reads, **told, **quality}


def rows():
    """Of two models on both tasks, at two prices, and over what recurs."""
    found = []
    for model, shift in (("cram", 0.0), ("gate", 0.1)):
        for reads in (0.015, 0.05):
            found.append(place(model, "srcd", reads + shift, accuracy=0.9 + reads, forward_ms=5 + 10 * shift))
            found.append(place(model, "text", reads + shift, bits_per_byte=2.5 - reads, forward_ms=7.0))
        found += [
            {"what": "run on the frontier", "task": task, "seed": seed, "model": model, "place": "price=0.05"}
            | {"reads": 0.02 + 0.01 * seed, quality: 0.9, **({} if seed else {"forward_ms": 5.0})}
            for task, quality in (("srcd", "accuracy"), ("text", "bits_per_byte"))
            for seed in (0, 1, 2)
        ]
    return found


def prices():
    common = {"accuracy_novel": 0.99, "guessing_bound": 0.05}
    found = [
        {"what": "reads at a price", "model": model, "price": price, "reads": 0.02 / price, "seed": seed, **common}
        for model in ("gate", "cram")
        for price in (0.05, 0.5)
        for seed in (0, 1)
    ]
    for share in (0.0, 0.5, 1.0):
        found.append(
            {"what": "reads over the recurring share", "model": "cram", "recurring": share, "ratio": 1 - share}
            | {"accuracy": 1.0}
        )
    return found


def of(task):
    return {"rows": [row for row in rows() if row["task"] == task]}


RESULTS = {"paper-frontier": of("srcd"), "paper-frontier-text": of("text"), "paper-theory": {"rows": prices()}}


def test_every_figure_is_drawn():
    told = frontier.section(RESULTS)
    assert all(title in told for title in ("The frontier: SRCD", "The frontier: language", "Theorem 1", "Theorem 3"))
    assert told.count("<svg") == 2 + 2 + 2 + 1
    said = html.unescape(told)
    assert r"positions that read 1.50\u00a0%\ncram" in said
    assert "mean of 3 seeds" in said
    assert "static bound, about 5" in said


def test_it_is_said_who_is_best_and_who_is_slow():
    def run(model, where, accuracy, reads, ms):
        where = {"place": where, "seed": 0, "accuracy": accuracy, "reads": reads, "forward_ms": ms}
        return {"what": "run on the frontier", "task": "srcd", "model": model, **where}

    runs = [run("cram", "a", 0.9, 0.5, 9.0), run("cram", "b", 0.8, 0.1, 8.0), run("mod", "c", 0.7, 0.2, 5.0)]
    told = frontier._standing("srcd", [*runs, run("gate", "d", 0.95, 0.3, 6.0)]).replace(SPACE, " ")
    assert "CRAM is best at 90 % with 50 % reads in 9 ms" in told
    assert "of the others gate is, at 95 % with 30 % reads in 6 ms." in told
    assert told.endswith("No other model takes as long as CRAM.")
    assert "as long as" not in frontier._standing("srcd", [*runs, run("gate", "d", 0.95, 0.3, 10.0)])
    assert frontier._standing("srcd", runs[:2]) == ""


def test_points_are_marked():
    assert frontier.section({"paper-frontier": RESULTS["paper-frontier"]}).count("<circle") == 2 * 4


def test_what_tells_nothing_is_not_drawn():
    small = [{**row, "caveat": "too small"} for row in (*rows(), *prices())]
    assert frontier.section({"paper-frontier": {"rows": small}, "paper-theory": {"rows": small}}) == ""
    assert frontier.section({}) == ""
    without = [{key: value for key, value in row.items() if key != "forward_ms"} for row in rows()]
    assert frontier.section({"paper-frontier": {"rows": without}}).count("<svg") == 2


def test_documents_show_both_frontiers_as_pictures_and_as_numbers():
    told = frontier.document(RESULTS, "../results")
    for task, file in (("srcd", "paper-frontier"), ("text", "paper-frontier-text")):
        assert f"(images/frontier-{task}.svg)" in told
        assert f"[{file}](../results/{file}.json)" in told
        drawn = frontier.picture(RESULTS, task)
        assert drawn is not None
        assert drawn.count("<svg") == 3  # the drawing, and in it reads and time
        assert drawn.count("<style>") == 1
        assert "data-hover" not in drawn
    assert "| gate | `price=0.05` | 90 ± 0\u00a0% (3 seeds) | 3 ± 1\u00a0% (3 seeds) | 5 | time |" in told
    assert "(3 seeds) | 5 | reads and time |" in told
    assert "| gate | `price=0.05` | 0.9 ± 0 (3 seeds) |" in told
    for same in ("half a point of accuracy", "a hundredth of a bit"):
        assert f"In the last column, {same}, or a twentieth of the reads or of the time, makes no difference." in told
    assert _ALIKE == {"accuracy": 0.005, "bits_per_byte": 0.01}
    assert _CHEAPER == 1 / 20
    assert frontier.document({}, "") == ""
    assert frontier.picture({}, "srcd") is None


def test_a_model_has_one_colour_in_all_charts():
    told = frontier.section(RESULTS)
    assert set(re.findall(r'class="fill (\S+) halo"[^>]*>gate<', told)) == {"action1"}
    assert set(re.findall(r'class="fill (\S+) halo strong"[^>]*>cram<', told)) == {"ink"}


def test_the_page_leads_to_its_parts():
    page = paper.page(RESULTS, experiments=())
    assert '<nav class="contents"' in page
    for name in ("claims", "figures", "traded", "sources"):
        assert f'<a href="#{name}">' in page
        assert f'<section id="{name}">' in page
    assert 'href="#memory"' not in page
    assert 'href="#traded"' not in paper.page({}, experiments=())
