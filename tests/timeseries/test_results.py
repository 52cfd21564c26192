"""The page about irregular time series is the one that its result files make."""

from pathlib import Path

from torchcram import results
from torchcram.report import timeseries

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_made_from_results():
    files = {
        path.stem.removeprefix("timeseries-"): results.read(path)
        for path in sorted((ROOT / "results").glob("timeseries-*.json"))
    }
    page = ROOT / "docs" / "timeseries-results.md"
    assert page.exists() == bool(files), "run torchcram timeseries-page"
    if files:
        assert page.read_text(encoding="utf-8") == timeseries.page(files)
