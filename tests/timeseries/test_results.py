"""The page about irregular time series is the one that its result files make."""

import statistics
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


def test_readme_shows_the_results_on_physionet():
    rows = results.read(ROOT / "results" / "timeseries-p12.json")["rows"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())

    def of(model):
        return [
            row for row in rows if (row["what"], row.get("model"), row.get("routing")) == ("model", model, "routed")
        ]

    cram, trees = of("cram"), of("trees")
    auroc, auprc = (timeseries._spread([row[name] for row in cram]) for name in ("auroc", "auprc"))
    assert f"an AUROC of {auroc} and an AUPRC of {auprc}" in readme
    levels = [f"{100 * statistics.mean(row[name] for row in trees):.1f}" for name in ("auroc", "auprc")]
    assert f"trees are at {levels[0]} and {levels[1]}" in readme
    assert max(row["reads"] for row in cram) < 0.001, "reads hardly anywhere"
    ahead = {row["model"]: row for row in rows if row["what"] == "difference, all splits" and row["measure"] == "auroc"}
    assert all(abs(ahead[each]["ahead"]) < 0.003 for each in ("transformer", "mamba", "seqboat", "mtand"))
    dense = next(row for row in rows if row["what"] == "difference, all splits" and row["routing"] == "dense")
    assert abs(dense["ahead"]) < dense["sd"], "no better with all reading"
