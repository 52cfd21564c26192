"""Pages in a real browser: no complaints, charts that tell values, filters, and an explorer for mouse and keyboard."""

from pathlib import Path

import pytest

from tests.report.browser import browser, program
from tests.report.explored import recording
from tests.report.runs import STORY, write
from torchcram import report
from torchcram.paper import verdicts
from torchcram.paper.claims import CLAIMS
from torchcram.report import paper

pytestmark = pytest.mark.skipif(program() is None, reason="no chromium here")

RESULTS = Path(__file__).parents[2] / "results"
USABLE = 2.0  # seconds
VISIBLE = "[...document.querySelectorAll('.claims tbody tr')].filter((row) => row.offsetParent).length"
SAID = "document.querySelector('.explorer output').textContent"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "paper.html"
    report.save(path, paper.page({**verdicts.read(RESULTS), "explored": recording()}, experiments=()))
    return path


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def shown(opened, page):
    """The page, newly opened on a large light screen; it must not have complained by the end."""
    opened.complaints.clear()
    opened.size(1280)
    opened.prefer("light")
    opened.open(page)
    opened.run("localStorage.clear()")
    yield opened
    opened.run("0")  # whatever is still to be said
    assert opened.complaints == []


def test_it_is_usable_soon(shown, page):
    # Other programs may use the machine: the best of a few.
    assert min(shown.open(page) for _ in range(3)) <= USABLE
    assert shown.run(VISIBLE) == len(CLAIMS)


def test_filters(shown):
    shown.point('.chips [data-verdict="not"]', click=True)
    wrong = shown.run(VISIBLE)
    assert 0 < wrong < len(CLAIMS)
    assert shown.run("document.querySelector('.filters output').textContent") == f"{wrong} of {len(CLAIMS)} claims"
    shown.point('.chips [data-verdict="holds"]', click=True)
    assert shown.run(VISIBLE) > wrong
    shown.run("document.querySelector('.filters input[type=search]').focus()")
    shown.type("jamba accuracy")
    found = shown.run(VISIBLE)
    assert 0 < found < wrong
    shown.point(".filters [type=reset]", click=True)
    shown.run("new Promise((done) => setTimeout(done, 50))")
    assert shown.run(VISIBLE) == len(CLAIMS)
    shown.run(
        "(() => { const list = document.querySelector('.filters select'); list.value = 'transfer'; "
        "list.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    assert shown.run(VISIBLE) == sum(name.startswith("transfer/") for name in CLAIMS)
    shown.point(".filters [name=headline]", click=True)
    assert shown.run(VISIBLE) == sum(name.startswith("transfer/") for name in verdicts.HEADLINES)


def test_nothing_found_is_said(shown):
    shown.run("document.querySelector('.filters input[type=search]').focus()")
    shown.type("zebra")
    assert shown.run(VISIBLE) == 0
    assert shown.run("document.querySelector('.none').offsetParent !== null")


def test_charts_tell_values_by_mouse_and_by_keys(shown):
    assert shown.run("document.querySelectorAll('.figure svg.chart').length") == 20
    shown.point(".figure svg.chart", 0.3, 0.5)
    assert shown.run("document.querySelector('.tip').textContent").startswith("step ")
    shown.run("document.querySelector('.figure svg.chart').focus()")
    shown.press("End")
    assert shown.run("document.querySelector('.tip').textContent").startswith("step 10,000\nCRAM  1.6 %")
    shown.press("ArrowLeft")
    assert not shown.run("document.querySelector('.tip').textContent").startswith("step 10,000\nCRAM")
    assert shown.run("document.querySelector('.tip').style.display") == "block"


def test_the_explorer_steps_by_buttons(shown):
    assert shown.run(SAID) == "Position 8 of 8: novel query, key 7. It answers 5: right"
    weights = "[...document.querySelectorAll('.weights li')].map((e) => e.textContent).join()"
    assert shown.run(weights) == "No read here.,97 %store, key 7, value 5position 2,3 %dynamicsposition 1"
    shown.point('.explorer [aria-label="one position back"]', click=True)
    assert shown.run(SAID).startswith("Position 7 of 8: dynamics")
    shown.point('.explorer [aria-label="one position on"]', click=True)
    shown.point('.explorer [aria-label="one position on"]', click=True)
    assert shown.run(SAID).startswith("Position 8 of 8")  # the end
    shown.point(".explorer .moments button", click=True)
    assert shown.run(SAID).endswith("It answers 4: wrong, it is 5")
    panels = "[...document.querySelectorAll('.inside > div')].map((e) => e.dataset.action).join()"
    assert shown.run(panels) == "1,1"
    shown.point("#position-1", click=True)
    assert shown.run(SAID).startswith("Position 2 of 8: store, key 7, value 5")


def test_the_explorer_steps_by_keys(shown):
    shown.run("document.querySelector('.cells').focus()")
    shown.press("Home")
    assert shown.run(SAID).startswith("Position 1 of 8")
    shown.press("ArrowRight")
    shown.press("ArrowRight")
    assert shown.run(SAID).startswith("Position 3 of 8")
    held = "[...document.querySelectorAll('.cell.held')].map((e) => e.id).join()"
    assert shown.run(held) == "position-0,position-1"
    assert shown.run("document.querySelector('.cell.gone').id") == "position-2"
    shown.press("q")
    assert shown.run(SAID).startswith("Position 8 of 8: novel query")
    assert shown.run("document.querySelector('.cells').getAttribute('aria-activedescendant')") == "position-7"


def test_light_and_dark(shown):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = shown.run(ground)
    shown.prefer("dark")
    dark = shown.run(ground)
    assert light != dark
    shown.point(".theme", click=True)
    assert shown.run(ground) == light
    shown.point(".theme", click=True)
    assert shown.run(ground) == dark
    shown.prefer("light")
    assert shown.run(ground) == dark  # as was chosen
    shown.prefer("dark", media="print")
    assert shown.run(ground) == light


def test_a_phone_scrolls_in_one_direction(shown):
    shown.size(390, 844)
    assert shown.run("document.documentElement.scrollWidth") <= 390
    assert shown.run("getComputedStyle(document.querySelector('.claims tr')).display") == "block"


def test_paper_has_all_claims_and_no_buttons(shown):
    shown.prefer("light", media="print")
    assert shown.run(VISIBLE) == len(CLAIMS)
    assert shown.run("[...document.querySelectorAll('button')].every((e) => !e.offsetParent)")


def test_reports_of_runs_open_too(opened, tmp_path):
    write(tmp_path / "run", STORY)
    report.save(tmp_path / "report.html", report.page(report.read_all([tmp_path / "run"])))
    opened.complaints.clear()
    opened.size(1280)
    opened.prefer("light")
    opened.open(tmp_path / "report.html")
    opened.point("svg.chart", 0.5, 0.5)
    assert opened.run("document.querySelector('.tip').textContent").startswith("step ")
    assert opened.complaints == []


def test_the_first_key_leads_to_the_parts(shown):
    """Tab reaches links at the top; one of them leads far down."""
    for _ in range(2):
        shown.press("Tab")
    assert shown.run("document.activeElement.closest('.contents') !== null")
    shown.run("document.querySelector('.contents a[href=\"#memory\"]').focus()")
    shown.press("Enter")
    shown.run("new Promise((done) => setTimeout(done, 300))")
    top = shown.run("document.querySelector('#memory').getBoundingClientRect().top")
    assert -5 <= top <= 60
