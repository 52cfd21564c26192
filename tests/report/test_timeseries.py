"""The page about time series says what the result files say, and warns where scores mean nothing."""

import pytest
from typer.testing import CliRunner

from torchcram import results
from torchcram.cli.main import app
from torchcram.report import timeseries


def model(name, auroc, split, *, routing="routed", low=0.0, **more):
    return {
        "what": "model",
        "model": name,
        "routing": routing,
        "split": split,
        "auroc": auroc,
        "auroc_low": auroc - 0.02 + low,
        "auroc_high": auroc + 0.02,
        "auprc": auroc - 0.3,
        "members": 3,
        **more,
    }


CHANCE = [{"what": "chance", "split": split, "auroc": 0.5, "auprc": 0.14} for split in (1, 2)]
ROWS = [
    model("cram", 0.88, 1, reads=0.015, parameters=1234),
    model("cram", 0.90, 2, reads=0.025, parameters=1234),
    model("cram", 0.88, 1, routing="off", reads=0.0),
    model("cram", 0.89, 2, routing="off", reads=0.0),
    model("trees", 0.51, 1),
    model("trees", 0.87, 2),
    model("majority", 0.5, 1),
    *CHANCE,
]
DIFFERENCES = [
    {
        "what": "difference",
        "measure": "auroc",
        "model": "trees",
        "routing": "routed",
        "split": s,
        "ahead": sign * 0.1,
        "low": min(sign * 0.05, sign * 0.2),
        "high": max(sign * 0.05, sign * 0.2),
    }
    for s, sign in ((1, 1), (2, -1))
]
OVERALL = {
    "what": "difference, all splits",
    "measure": "auroc",
    "model": "trees",
    "routing": "routed",
    "splits": 2,
    "ahead": 0.2,
    "sd": 0.1,
    "clear": 1,
}


def file(rows):
    return {"machine": "a machine", "commit": "abc", "command": "torchcram timeseries", "rows": rows}


def test_the_page_has_every_number():
    lines = timeseries.page({"p12": file([*ROWS, *DIFFERENCES, OVERALL])}).splitlines()
    assert "| model | splits | members | AUROC | AUPRC | reads | parameters |" in lines
    assert "| `cram` | 2 | 3 | 89.0 ± 1.4 | 59.0 ± 1.4 | 2 % | 1,234 |" in lines
    assert "| `cram`, no reads | 2 | 3 | 88.5 ± 0.7 | 58.5 ± 0.7 | 0 % | – |" in lines
    assert "| *chance* | 2 | – | 50.0 ± 0.0 | 14.0 ± 0.0 | – | – |" in lines
    assert "| *GRU-D (likewise)* | – | – | 81.9 | 46.1 | – | – |" in lines
    assert "| `trees` | AUROC | +20.0 ± 10.0 | 1 and 1 of 2 |" in lines
    assert "- split 1: `cram` and `cram`, no reads have exactly the same scores" in lines
    assert "- split 1: `trees` is not clearly better than chance in AUROC" in lines
    assert not any("majority` is" in line for line in lines)


def test_what_validation_chose_is_told():
    rows = [model("cram", 0.9, split, chosen=f'{{"rate": {split / 1000}}}') for split in (2, 1)]
    off = model("cram", 0.8, 1, routing="off", chosen='{"rate": 0.001}')
    text = timeseries.page({"toy": file([*rows, off, model("majority", 0.5, 1, chosen="{}"), *CHANCE])})
    assert "What validation chose for each split, by log loss:\n\n| model | setting | by split |" in text
    assert text.count("| `cram` | rate | 0.001, 0.002 |") == 1
    assert "What validation chose" not in timeseries.page({"toy": file(ROWS)})
    words = [model("cram", 0.9, 1, chosen='{"times": "order", "context": null}')]
    assert "| `cram` | times | order |\n| `cram` | context | None |" in timeseries.page(
        {"toy": file([*words, *CHANCE])}
    )


def test_a_single_split_shows_its_interval():
    lines = timeseries.page({"toy": file([ROWS[0], CHANCE[0], DIFFERENCES[0]])}).splitlines()
    assert "| `trees` | AUROC | +10.0 (+5.0 to +20.0) | 1 and 0 of 1 |" in lines
    assert "| `cram` | 1 | 3 | 88.0 | 58.0 | 1.50 % | 1,234 |" in lines


def test_the_same_said_of_several_splits_is_one_line():
    rows = [model("mamba", 0.51, split) for split in (1, 2)] + CHANCE
    assert "- splits 1, 2: `mamba` is not clearly better than chance in AUROC" in timeseries.page({"toy": file(rows)})


def test_worse_than_chance_is_not_better_than_chance():
    rows = [model("mamba", 0.3, 1, brier=0.2, brier_low=0.19, brier_high=0.21, groups=3), {**CHANCE[0], "brier": 0.12}]
    assert timeseries.warnings(rows) == [
        "split 1: `mamba` is not clearly better than chance in AUROC",
        "split 1: `mamba` is not clearly better than chance in Brier",
        "split 1: only 3 groups, so single samples were resampled",
    ]


def test_the_command_writes_it(tmp_path):
    words = ["timeseries-page", "--results", str(tmp_path), "--out", str(tmp_path / "page.md")]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 1
    assert "holds no timeseries-*.json" in found.output.replace("\n", "")
    results.save(tmp_path / "timeseries-toy.json", file(ROWS))
    assert CliRunner().invoke(app, words).exit_code == 0
    assert (tmp_path / "page.md").read_text() == timeseries.page({"toy": file(ROWS)})


def test_the_published_figures_are_shares_of_a_hundred():
    for rows in timeseries.PUBLISHED.values():
        for _, auroc, _ in rows:
            assert auroc == pytest.approx(84, abs=4)
