"""The paper's claims as data: all of them, as printed, and readable without torch."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.paper import latex
from torchcram.paper.claims import (
    CLAIMS,
    CURVES,
    phase,
    practice,
    recipe,
    redundancy,
    srcd,
    theory,
    timeseries,
    transfer,
)
from torchcram.paper.claims.claim import Claim, Column, Place, table

SOURCE = Path(__file__).parents[2].parent / "shared" / "paper" / "cram.tex"
SUBJECTS = (redundancy, theory, srcd, phase, transfer, practice, timeseries, recipe)

needs_source = pytest.mark.skipif(not SOURCE.is_file(), reason="the paper's source is not here")


@pytest.fixture(scope="module")
def sections():
    return {name: latex.plain(text) for name, text in latex.sections(SOURCE.read_text(encoding="utf-8")).items()}


@needs_source
@pytest.mark.parametrize("name", CLAIMS)
def test_the_paper_prints_it(name, sections):
    claim = CLAIMS[name]
    for place in claim.places:
        assert place.words in sections[place.section], place
    numbers = re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", claim.printed)
    said = " ".join(place.words for place in claim.places)
    assert all(number in said for number in numbers)


@needs_source
@pytest.mark.parametrize("name", CURVES)
def test_the_paper_plots_it(name, sections):
    curve = CURVES[name]
    assert curve.printed in sections[curve.section]


# Digits that count nothing: names, numbers of lists, legends and terms of formulas.
NOT_NUMBERS = (
    r"GPT-2|Mamba-2|S4|AR\(1\)|Jamba \(1:7\)",
    r"\([1-5]\) we",
    r"O\(1\)|W_[12]|‖_2\^2|h\^\(k\+1\)|log\(1 \+ Δτ_t\)|_i=1\^M|\^\(ℓ-1\)|π_t\^\([23]\)|π\^\(2\)_t|σ\^2",
    r"Step 0|Step 3K|Step 3\.1K|Step 4K",
    r"at \(axis cs:[^)]*\)|\(\[xshift=-?3pt\]axis cs:[^)]*\)",  # where labels stand, and the caps of bars
)


@needs_source
def test_nothing_that_the_paper_prints_is_left_out():
    words = {}
    for claim in CLAIMS.values():
        for place in claim.places:
            words.setdefault(place.section, []).append(place.words)
    for curve in CURVES.values():
        words.setdefault(curve.section, []).append(curve.printed)
    left = []
    for name, source in latex.sections(latex.without_layout(SOURCE.read_text(encoding="utf-8"))).items():
        text = latex.plain(source)
        known = [*map(re.escape, words.get(name, [])), *NOT_NUMBERS]
        told = [found.span() for pattern in known for found in re.finditer(pattern, text)]
        left += [
            f"{name}: {text[max(0, number.start() - 40) : number.end() + 30]}"
            for number in re.finditer(r"\d+(?:\.\d+)?", text)
            if not any(start <= number.start() and number.end() <= end for start, end in told)
        ]
    assert not left


def test_ids_are_unique():
    assert len(CLAIMS) == sum(len(subject.CLAIMS) for subject in SUBJECTS)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("phase/fall", (37.8,)),
        ("transfer/fall", (0.48, 0.52)),
        ("srcd/cram/accuracy", (1.0,)),
        ("srcd/jamba/bound", (0.05,)),
        ("redundancy/gpt2/early", (0.77, 0.04)),
        ("redundancy/parameters", (124e6, 355e6)),
        ("recipe/rate", (3e-4,)),
        ("recipe/temperature", (1.0, 0.1)),
        ("theory/static-bound", ()),
    ],
)
def test_what_is_printed_becomes_numbers(name, values):
    assert CLAIMS[name].values == values


def test_a_formula_has_no_value():
    with pytest.raises(ValueError, match="theory/static-bound is formula, not a number"):
        _ = CLAIMS["theory/static-bound"].value


def test_percentages_are_shares():
    for claim in CLAIMS.values():
        if "%" in claim.printed:
            assert claim.unit == "share", claim.id
            assert all(0 <= value <= 1 for value in claim.values), claim.id


def test_dashes_are_no_claims():
    column = Column(name="ratio", unit="number", measures="ratio")
    assert [c.id for c in table("x", "1", "Table 9", [column], {"a": "A & –", "b": "B & 0.5"})] == ["x/b/ratio"]


def test_a_claim_stands_somewhere_and_has_a_known_unit():
    with pytest.raises(ValueError, match="x stands nowhere"):
        Claim(id="x", printed="1", unit="number", measures="", places=())
    with pytest.raises(ValueError, match="unit = 'percent' is not possible"):
        Claim(id="x", printed="1", unit="percent", measures="", places=(Place(section="1", words="1"),))


@pytest.mark.parametrize("curve", CURVES.values(), ids=lambda curve: curve.id)
def test_curves_go_from_left_to_right(curve):
    assert all(before[0] < after[0] for before, after in pairwise(curve.points))


def test_notes_on_the_numbers_that_contradict_each_other():
    """What notes say is computed here from what is printed."""
    value = {name: claim.values for name, claim in CLAIMS.items()}
    first, *_, last = (y for _, y in CURVES["phase/attention"].points)
    again = [y for _, y in CURVES["phase/attention-again"].points]
    ratios = (first / last, again[0] / again[-1], *(1 / value[f"{t}/ratio"][0] for t in ("srcd/cram", "ablation/full")))
    assert [round(ratio, 1) for ratio in ratios] == [23.6, 16.7, 52.6, 25.0]
    assert value["phase/fall"] == (first,)
    assert min(again) / 100 < value["theory/opt"][0]
    assert value["recipe/temperature-steps"] == value["phase/step-about"]
    heads = 0.34 * 1 + 0.41 * 0.8 + 0.25 * 0.5
    assert heads < min(value["redundancy/overall-in-text"])
    assert value["transfer/physionet/attention"][0] > value["timeseries/cram/attention"][0]
    alike = [value[f"timeseries/{model}/physionet"] for model in ("transformer", "mamba", "cram")]
    assert len(set(alike)) == 1
    asked = (
        value["recipe/batch"][0]
        * value["srcd/length"][0]
        * value["srcd/query-share"][0]
        * value["srcd/recurring-share"][0]
        / value["srcd/patterns"][0]
    )
    assert round(asked) == 23


def test_claims_need_no_torch():
    code = "import sys, torchcram.paper.claims; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "scipy"} & {name.partition(".")[0] for name in done.stdout.split()}
