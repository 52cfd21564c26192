"""The page about speed is made from result files alone."""

import pytest
from typer.testing import CliRunner

from torchcram import results
from torchcram.bench import breakdown
from torchcram.cli.main import app
from torchcram.report import performance


def file(rows: list) -> dict:
    return {"machine": "a GPU", "commit": "abc", "command": "torchcram bench", "rows": rows}


FILES = {
    "train": file(
        [
            *(
                {"what": "train", "length": n, "batch": b, "slots": 512, "ours_ms": ms, "ratio": r}
                for n, b, ms, r in ((2048, 32, 90.0, 1.1), (8192, 8, 100.0, 1.9), (131072, 1, 204.0, 25.0))
            ),
            {"what": "train", "length": 2048, "slots": 512, "ratio": 1.3, "baseline": "mamba, some kernels"},
            {"what": "train", "length": 131072, "slots": 4096, "ratio": 11.0},
        ]
    ),
    "decode": file(
        [
            {
                "length": n,
                "batch": 32,
                "slots": slots,
                "ours_ms": ms,
                "ratio": 90.0,
                "baseline_share_of_bandwidth": 0.75,
                "state_bytes": 10 * slots // 512,
                "baseline_state_bytes": 3000,
            }
            for n, slots, ms in ((2048, 512, 0.2), (131072, 512, 0.204), (131072, 2048, 0.3))
        ]
    ),
    "length": file(
        [
            {"model": "cram", "length": 131072, "slots": slots, "accuracy_novel": novel}
            for slots, novel in ((512, 0.8), (2048, 0.997), (4096, 1.0))
        ]
    ),
    "breakdown": file(
        [
            {"model": model, "what": "train", "kind": performance.OVERHEAD, "length": 2048, "share": share}
            for model, share in (("transformer", 0.5), ("cram", 0.07))
        ]
    ),
    "runs": file([{"model": "cram", "length": 8192, "dense_to_settled": 1.2, "host_waits": 1.0}]),
    "paper": file([{"steps": 2000, "seconds": 900.0}, {"steps": 10000, "seconds": 420.0}]),
}


def test_targets_say_whether_they_were_met():
    met = {target.what: target.met for target in performance.targets(FILES)}
    assert met["training step, 2,048 positions, M = 512"] is False
    assert met["training step, 131,072 positions, M = 512"] is True
    assert met["training step, 131,072 positions, M = 4096"] is False
    assert met["training step, 32,768 positions, M = 512"] is None
    assert met["growth of a training step of as many positions with length, exponent"] is True
    assert met["growth of a prefill of as many positions with length, exponent"] is None
    assert met["decode after 131,072 positions, batch 32"] is True
    assert met["decode, time at 131,072 ÷ at 2,048"] is True
    assert met["decode, memory after 131,072 positions, M = 512: times less"] is True
    assert met["the same with M = 2,048, which solves SRCD there: times less"] is True
    assert met["training step, 2,048 positions, against Mamba-2"] is True
    assert met["choosing, listing and moving: share of a training step, 2,048 positions"] is True
    assert met["waits of the host in a training step"] is False
    assert met["a step before release ÷ after, 8,192 positions"] is False
    assert met["training at the paper's size, 10,000 steps: minutes"] is True


def test_a_transformer_that_decodes_far_below_the_bandwidth_is_counted_as_if_it_did_not():
    row = {"length": 131072, "batch": 1, "slots": 512, "ratio": 5.0, "baseline_share_of_bandwidth": 0.35}
    found = {target.what: target.found for target in performance.targets({"decode": file([row])})}
    assert found["decode after 131,072 positions, batch 1"] == pytest.approx(2.5)


def test_what_was_written_by_hand_is_kept():
    first = performance.page(FILES)
    assert performance.by_hand(first) == ""
    written = f"\n{performance.WRITTEN}\n\nMuch.\n"
    page = performance.page(FILES, written)
    assert page == first + written
    assert performance.by_hand(page) == written


def test_without_a_run_of_ten_thousand_steps_it_is_told_by_what_steps_take():
    files = {
        "quality": file([{"model": "cram", "steps": 2000, "alone_seconds": 100.0}]),
        "runs": file([{"model": "cram", "length": 2048, "step_ms": 40.0}]),
    }
    found = {target.what: target.found for target in performance.targets(files)}
    what = "training at the paper's size, 10,000 steps: minutes, by what steps take in a run of 2,000"
    assert found[what] == pytest.approx((100 + 8000 * 0.04) / 60)


@pytest.mark.parametrize("power", [0.0, 0.5, 2.0])
def test_growth_is_the_exponent_of_a_power_law_of_a_positions_time(power):
    rows = [
        {"length": n, "batch": max(1, 65536 // n), "ours_ms": 3.0 * n**power * max(65536, n)}
        for n in (8192, 32768, 131072)
    ]
    short = {"length": 2048, "batch": 32, "ours_ms": 1.0}
    assert performance.growth([short, *rows]) == pytest.approx(power)
    assert performance.growth([short, rows[0]]) is None


def test_nothing_measured_is_nothing_met():
    assert {target.met for target in performance.targets({})} == {None}


def test_only_what_is_against_a_transformer_counts():
    rows = [
        {"length": 2048, "slots": 512, "ratio": r, "baseline": b} for r, b in ((9.0, "mamba"), (1.2, "transformer, x"))
    ]
    assert performance.targets({"train": file(rows)})[0].found == 1.2


def test_names_are_those_that_benchmarks_give():
    assert performance.OVERHEAD == breakdown.OVERHEAD


def test_page_shows_every_row_and_no_column_without_numbers():
    page = performance.page(FILES)
    assert "| training step, 32,768 positions, M = 512 | ≥ 5.5\u00a0× | – | not measured |" in page
    assert "## A training step" in page
    assert "## A prefill" not in page
    lines = page[page.index("## One more token") :].splitlines()
    assert "| length | batch | slots | ours ms | ratio | baseline share of bandwidth |" in lines
    assert "| 131,072 | 32 | 512 | 0.204 | 90 | 0.75 |" in lines


def test_picture_has_a_curve_where_there_are_points():
    picture = performance.picture(FILES)
    assert picture.startswith("<svg")
    assert "131,072" in picture
    assert performance.picture({}).startswith("<svg"), "nothing measured is no error"


def test_command_writes_page_and_picture_from_what_there_is(tmp_path):
    for name, data in FILES.items():
        file = performance.NAMES[name]
        results.write(tmp_path / f"{file}.json", name=file, rows=data["rows"], machine="a GPU")
    out = tmp_path / "docs" / "performance.md"
    out.parent.mkdir()
    found = CliRunner().invoke(app, ["performance", "--results", str(tmp_path), "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert "# Performance" in out.read_text(encoding="utf-8")
    assert (out.parent / "images" / "performance.svg").read_text(encoding="utf-8").startswith("<svg")
