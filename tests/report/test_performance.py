"""The page about speed is made from result files alone."""

from typer.testing import CliRunner

from torchcram import results
from torchcram.bench.scaling import stages
from torchcram.bench.whole import Size
from torchcram.cli.main import app
from torchcram.report import performance


def file(rows: list) -> dict:
    return {"machine": "a GPU", "commit": "abc", "command": "torchcram bench", "rows": rows}


FILES = {
    "train": file([{"what": "train", "length": n, "slots": 512, "ratio": r} for n, r in ((2048, 1.1), (131072, 25.0))]),
    "decode": file(
        [
            {"length": n, "batch": 32, "ours_ms": ms, "ratio": 90.0, "state_bytes": 10, "baseline_state_bytes": 3000}
            for n, ms in ((2048, 0.2), (131072, 0.204))
        ]
    ),
    "scaling": file(
        [
            {
                "what": "train, growth",
                "stage": performance.FEW,
                "slots": 512,
                "exponent": 0.04,
                "from": 8192,
                "to": 131072,
            }
        ]
    ),
}


def test_targets_say_whether_they_were_met():
    met = {target.what: target.met for target in performance.targets(FILES)}
    assert met["training step, 2,048 positions, M = 512"] is False
    assert met["training step, 131,072 positions, M = 512"] is True
    assert met["training step, 8,192 positions, M = 512"] is None
    assert met["growth of a training step with length, exponent"] is True
    assert met["decode, time at 131,072 ÷ at 2,048"] is True
    assert met["decode, memory after 131,072 positions, M = 512: times less"] is True


def test_only_what_is_against_a_transformer_counts():
    rows = [
        {"length": 2048, "slots": 512, "ratio": r, "baseline": b} for r, b in ((9.0, "mamba"), (1.2, "transformer, x"))
    ]
    assert performance.targets({"train": file(rows)})[0].found == 1.2


def test_stages_have_the_name_that_is_looked_for():
    assert performance.FEW in {stage.name for stage in stages(Size(), [512])}


def test_page_shows_every_row_and_no_column_without_numbers():
    page = performance.page(FILES)
    assert "| training step, 8,192 positions, M = 512 | ≥ 2\u00a0× | – | not measured |" in page
    assert "## A training step" in page
    assert "## A prefill" not in page
    lines = page[page.index("## One more token") :].splitlines()
    assert "| length | batch | ours ms | ratio |" in lines
    assert "| 131,072 | 32 | 0.204 | 90 |" in lines


def test_picture_has_a_curve_where_there_are_points():
    picture = performance.picture(FILES)
    assert picture.startswith("<svg")
    assert "131,072" in picture
    assert performance.picture({}).startswith("<svg"), "nothing measured is no error"


def test_command_writes_page_and_picture_from_what_there_is(tmp_path):
    for name, data in FILES.items():
        results.write(tmp_path / f"bench-{name}.json", name=f"bench-{name}", rows=data["rows"], machine="a GPU")
    out = tmp_path / "docs" / "performance.md"
    out.parent.mkdir()
    found = CliRunner().invoke(app, ["performance", "--results", str(tmp_path), "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert "# Performance" in out.read_text(encoding="utf-8")
    assert (out.parent / "images" / "performance.svg").read_text(encoding="utf-8").startswith("<svg")
