"""The documents: their numbers come from result files, their examples run, their links lead somewhere."""

import math
import os
import re
import statistics
import subprocess
from pathlib import Path

import pytest
import typer

from torchcram import results
from torchcram.cli.main import app
from torchcram.paper import verdicts
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.report import baselines, claims, comparison, explorer, performance, redundancy_document

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "experiments" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def bench_row(what: str, **wanted):
    rows = results.read(ROOT / "results" / "bench-cpu.json")["rows"]
    (row,) = [r for r in rows if r["what"] == what and all(r[k] == v for k, v in wanted.items())]
    return row


@pytest.mark.parametrize(
    ("what", "wanted", "target"),
    [
        ("gathered read, forward", {}, 12),
        ("gathered read, forward and backward", {}, 8),
        ("parallel working memory, forward", {"batch": 1}, 10),
    ],
)
def test_readme_shows_the_measured_speed(what, wanted, target):
    row = bench_row(what, **wanted)
    assert f"{row['ratio']:.0f} ×" in (ROOT / "README.md").read_text()
    assert row["ratio"] >= target


def test_readme_shows_the_measured_growth():
    growth = bench_row("stream in chunks")["growth"]
    assert f"{growth:+.1%}" in (ROOT / "README.md").read_text()
    assert growth < 0.05


def test_readme_shows_how_fast_a_training_step_is_on_a_gpu():
    rows = results.read(ROOT / "results" / "bench-train.json")["rows"]
    found = {row["length"]: row["ratio"] for row in rows if row["slots"] == 512 and "transformer" in row["baseline"]}
    text = " ".join((ROOT / "README.md").read_text().split())
    first, *others = (f"{found[length]:.3g} × at {length:,}" for length in (2048, 8192, 32768, 131072))
    assert f"[{first} positions, {', '.join(others)}](docs/performance.md)" in text


def test_the_page_about_speed_is_of_the_result_files():
    files = {
        name: results.read(file)
        for name, stem in performance.NAMES.items()
        if (file := ROOT / "results" / f"{stem}.json").exists()
    }
    text = (ROOT / "docs" / "performance.md").read_text()
    assert performance.page(files, performance.by_hand(text)) == text


def worst_of_seeds(name: str) -> tuple[list, tuple[float, float, float], re.Pattern]:
    """Rows of CRAM as it is recommended, the worst of them, and what the README shows of that."""
    found = results.read(ROOT / "results" / f"{name}.json")["rows"]
    rows = [row for row in found if row.get("what") in (None, "recipe")]
    worst = (
        min(row["accuracy"] for row in rows),
        min(row["accuracy_novel"] for row in rows),
        max(row["reads"] / row["opt"] for row in rows),
    )
    figures = [f"{math.floor(1e4 * x) / 100:.2f}%" for x in worst[:2]]
    cells = " | ".join([str(len(rows)), *figures, rf"\d\.\d\d% \({worst[2]:.2f} ×\)"]).replace("|", r"\|")
    return rows, worst, re.compile(rf"\(results/{name}\.json\) \| {cells} \|")


@pytest.mark.parametrize(
    ("name", "accuracy", "novel", "reads"),
    [("srcd-demo", 0.999, 0.995, 1.1), ("srcd-medium", 0.999, 0.999, 1.07), ("srcd-paper", 0.999, 0.999, 1.07)],
)
def test_readme_shows_the_worst_of_the_seeds(name, accuracy, novel, reads):
    rows, worst, shown = worst_of_seeds(name)
    seeds = sorted(row["seed"] for row in rows)
    assert seeds == [0, 1, 2, 3, 4] if name != "srcd-paper" else seeds and len(set(seeds)) == len(seeds)
    assert worst[0] >= accuracy
    assert worst[1] >= novel
    assert worst[2] <= reads
    assert all(row["dynamics_mse"] <= 1.3 * row["dynamics_floor"] for row in rows)
    assert all(row["layer_reads"] <= 0.005 for row in rows if row["preset"] == "large")
    assert shown.search((ROOT / "README.md").read_text()), shown.pattern


def test_several_seeds_of_the_papers_size_are_shown_by_their_worst(tmp_path, monkeypatch):
    data = results.read(ROOT / "results" / "srcd-paper.json")
    row = {**data["rows"][0], "accuracy": 1.0, "accuracy_novel": 1.0, "opt": 0.0149, "reads": 0.0149}
    other = {**row, "seed": 1, "accuracy": 0.99959, "accuracy_novel": 0.99829, "reads": 0.0152}
    (tmp_path / "results").mkdir()
    results.save(tmp_path / "results" / "srcd-paper.json", {**data, "rows": [row, other]})
    monkeypatch.setattr("tests.test_documents.ROOT", tmp_path)
    _, _, shown = worst_of_seeds("srcd-paper")
    assert shown.search("[size](results/srcd-paper.json) | 2 | 99.95% | 99.82% | 1.52% (1.02 ×) | 1.49% |")


def test_readme_agrees_with_the_page_of_baselines():
    text = " ".join((ROOT / "README.md").read_text().split())
    rows = results.read(ROOT / "results" / "baselines-srcd.json")["rows"]
    usual = [g for g in comparison.groups(rows, "final") if {row["steps"] for row in g.rows} == {2000}]
    thrice = {g.model: g for g in usual if sorted(row["seed"] for row in g.rows) == [0, 1, 2]}
    assert len(thrice) == 12
    assert "CRAM and eleven other models" in text
    ours = thrice["cram"]
    assert {model for model, g in thrice.items() if g.solves} == {"cram", "transformer", "jamba"}
    assert thrice["transformer"].reads == thrice["jamba"].reads == 1
    assert f"CRAM does with reads at {ours.reads:.2%} of them".replace("%", " %") in text
    for model in ("gate", "entropy"):
        solved = thrice[model].solved
        assert len(solved) == 2
        assert all(reads <= ours.solved[seed] for seed, reads in solved.items()), "and with those read no more"
    assert f"({thrice['gate'].worst('accuracy'):.2%} at worst".replace("%", " %") in text
    assert len(thrice["mod"].solved) == 2
    assert not thrice["seqboat"].solved
    costs = comparison.costs(rows)
    mine = costs["cram", ""]
    rivals = {g.model: costs[g.timed] for g in thrice.values() if g.model != "cram"}
    times = {model: cost.speed("forward_ms", mine.commit) for model, cost in rivals.items()}
    told = f"{mine.speed('forward_ms'):.0f} ms on an H200, the Transformer's {times['transformer']:.1f} ms"
    assert f"CRAM's forward pass takes {told}" in text
    assert max(times.values()) < mine.speed("forward_ms"), "all others take less"
    smaller = sum(cost.state < mine.state for cost in rivals.values())
    assert smaller == 6
    assert "six of them have a smaller state" in text


def down(share: float) -> str:
    return f"{math.floor(1e4 * share + 1e-9) / 100:.2f}"


def up(ratio: float) -> str:
    return f"{math.ceil(100 * ratio - 1e-9) / 100:.2f}"


@pytest.mark.parametrize(
    ("what", "line", "overridden", "accuracy", "reads"),
    [
        ("no override", "no key bound anew", None, 0.999, 1.15),
        ("override 10%", "10 % of the recurring keys bound anew", 0.99, 0.995, 1.3),
        ("override 50%", "50 %", 0.99, 0.99, 1.3),
        ("rebound twice", "50 %, twice", 0.99, 0.99, 1.3),
        ("drift midway", "all of them, from the middle on", 0.99, 0.99, 1.3),
        ("another table", "a table never seen in training", None, 0.99, 1.3),
    ],
)
def test_readme_shows_what_stale_memory_costs(what, line, overridden, accuracy, reads):
    cells = []
    for preset in ("tiny", "medium"):
        rows = results.read(ROOT / "results" / "staleness.json")["rows"]
        rows = [r for r in rows if (r["what"], r["preset"]) == (what, preset) and r["index_rank"]]
        assert sorted((r["seed"], r["trained_overridden"]) for r in rows) == [
            (s, o) for s in range(3) for o in (0, 0.1)
        ]
        worst = min(r.get("accuracy_overridden", 1.0) for r in rows) if overridden else None
        right, ratio = min(r["accuracy"] for r in rows), max(r["reads"] / r["least"] for r in rows)
        assert worst is None or worst >= overridden
        assert right >= accuracy
        assert ratio <= reads
        cells.append(f"{'–' if worst is None else down(worst) + '%'}, {down(right)}%, {up(ratio)}")
    assert f"| {line} | {' | '.join(cells)} |" in (ROOT / "README.md").read_text()


def test_the_alarm_rings_in_time_and_never_falsely():
    rows = [r for r in results.read(ROOT / "results" / "staleness.json")["rows"] if r["what"] == "alarm"]
    rows = [r for r in rows if r["index_rank"]]
    assert len(rows) == 12
    assert all(r["queries_to_ring"] <= 200 and r["false_alarms"] == 0 and r["positions"] >= 10**6 for r in rows)


def test_the_signals_side_by_side():
    rows = [r for r in results.read(ROOT / "results" / "signals.json")["rows"] if r["preset"] == "tiny"]
    text = (ROOT / "docs" / "consolidation.md").read_text()
    settings = {(r["rate"], r["price"], r["tolerance"]) for r in rows}
    assert len(settings) == 12
    for setting in settings:
        cells = []
        for signal in ("quality", "utility", "gate"):
            mine = [r for r in rows if (r["rate"], r["price"], r["tolerance"]) == setting and r["signal"] == signal]
            above = sum(r["excess"] > r["tolerance"] for r in mine)
            worst = (
                (
                    down(min(r["accuracy"] for r in mine)),
                    down(min(r["accuracy_novel"] for r in mine)),
                    up(max(r["reads"] / r["opt"] for r in mine)),
                )
                if mine
                else ("–",)
            )
            cells.append(", ".join(worst) + (f" ({above} above)" if above else ""))
            assert len(mine) == (0 if worst == ("–",) else 3)
            assert not above or signal == "gate" or setting[0] == 0.006
        assert f"| {' | '.join(f'{x:g}' for x in setting)} | {' | '.join(cells)} |" in text


@pytest.mark.parametrize(("length", "slots"), [(8192, 256), (32768, 512), (131072, 2048)])
def test_readme_shows_longer_sequences(length, slots):
    rows = results.read(ROOT / "results" / "srcd-length.json")["rows"]
    (row,) = [r for r in rows if (r["length"], r["slots"], r["steps"]) == (length, slots, 3000)]
    figures = (math.floor(1e4 * row[name]) / 100 for name in ("accuracy", "accuracy_novel"))
    assert row["accuracy"] >= 0.99
    line = " | ".join([f"{length:,}", f"{slots:,}", *(f"{x:.2f}%" for x in figures)])
    assert f"| {line} |" in (ROOT / "README.md").read_text()


def test_making_data_is_a_small_share_of_a_step():
    rows = results.read(ROOT / "results" / "bench-data.json")["rows"]
    assert {"cpu" in row["torch"] for row in rows} == {True, False}
    assert all(row["share"] <= 0.05 for row in rows)


def test_the_document_on_redundancy_is_the_one_made_from_results():
    names = ("smollm2", "training")
    paths = [*(ROOT / "results" / f"redundancy-{name}.json" for name in names), ROOT / "docs" / "redundancy.md"]
    there = [path.exists() for path in paths]
    assert all(there) or not any(there), "results and document come together"
    if all(there):
        pretrained, training = map(results.read, paths[:2])
        assert paths[2].read_text(encoding="utf-8") == redundancy_document.page(pretrained, training)


def test_the_page_of_baselines_is_the_one_made_from_results():
    srcd, mqar = (results.read(ROOT / "results" / f"baselines-{name}.json") for name in ("srcd", "mqar"))
    assert (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8") == baselines.page(srcd, mqar)


def test_recall_is_as_good_as_was_aimed_at():
    """With few more reads than there are questions, where nothing can be learned by heart."""
    rows = [r for r in results.read(ROOT / "results" / "baselines-mqar.json")["rows"] if r["what"] == "final"]
    ours = [r for r in rows if r["model"] == "cram"]
    assert {r["task"] for r in ours} == {"mqar", "forgetting-mqar"}
    assert all(r["accuracy"] >= 0.99 for r in ours)
    assert all(r["reads"] <= 1.2 * r["opt"] for r in ours if r["task"] == "mqar")


def test_the_claims_of_the_page_about_the_paper_are_those_made_from_results():
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    found = verdicts.read(ROOT / "results")
    made = claims.renewed(text, found, folder="../results", experiments=EXPERIMENTS)
    assert text == made, "run `torchcram paper`"


def test_the_recorded_run_shows_what_consolidation_does():
    path = ROOT / "results" / "explored.json"
    assert path.stat().st_size <= 300_000
    found = explorer.data(results.read(path))
    first, *_, last = found["moments"]
    assert not first["released"]
    assert first["reads"] == len(found["kind"])
    assert last["released"]
    assert 0 < last["reads"] < last["asked"]
    assert last["right"] == last["asked"]
    assert {kind["name"] for kind in found["kinds"]} == {found["kinds"][kind]["name"] for kind in found["kind"]}
    assert all(layer["evicted"] for moment in found["moments"] for layer in moment["layers"])


def test_the_example_of_the_papers_claims_runs(capsys):
    text = (ROOT / "docs" / "usage.md").read_text()
    code = re.search(r"## The paper's claims.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    exec(compile(code, "docs/usage.md", "exec"), {})
    assert capsys.readouterr().out.startswith("37.8× 37.8 ['abstract', ")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(document):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


def test_readme_examples_run(capsys):
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 2
    for code in examples:
        exec(compile(code, "README.md", "exec"), {})
        assert "positions: reads" in capsys.readouterr().out


def test_timeseries_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "timeseries.md").read_text(), re.DOTALL).group(1)
    names = {}
    exec(compile(code, "docs/timeseries.md", "exec"), names)
    assert names["labeller"].predict(names["X"]).shape == (80, 12)


def test_training_example_runs():
    text = (ROOT / "docs" / "usage.md").read_text()
    code = re.search(r"## Training.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    names = {}
    exec(compile(code, "docs/usage.md", "exec"), names)
    assert names["consolidator"].steps == 10


def test_layer_example_runs():
    import torch

    text = (ROOT / "docs" / "usage.md").read_text()
    code = re.search(r"## The layer alone.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    x, dt = torch.randn(2, 5, 256), torch.rand(2, 5)
    names = {"x": x, "dt": dt, "next_x": x, "next_dt": dt}
    exec(compile(code, "docs/usage.md", "exec"), names)
    assert names["later"].x.shape == (2, 5, 256)


def test_decoding_example_runs():
    import torch

    from torchcram import Cram, CramConfig

    text = (ROOT / "docs" / "usage.md").read_text()
    code = re.search(r"For a loop of your own.*?```python\n(.*?)```", text, re.DOTALL).group(1)
    model = Cram(CramConfig.preset("tiny", vocabulary=16)).eval()
    names = {"model": model, "prompt": torch.randint(16, (2, 5)), "token": torch.tensor([1, 2])}
    exec(compile(code, "docs/usage.md", "exec"), names)
    assert names["predictions"]["tokens"].shape == (2, 16)


def test_readme_shows_the_wearable_sensor():
    rows = results.read(ROOT / "results" / "timeseries-wearable.json")["rows"]

    def found(model: str, routing: str = "routed", column: str = "macro_f1") -> list[float]:
        return [
            row[column] for row in rows if row.get("model") == model and row["routing"] == routing and column in row
        ]

    def mean(model: str, routing: str = "routed", column: str = "macro_f1") -> str:
        assert len(found(model, routing, column)) == 5
        return f"{100 * statistics.mean(found(model, routing, column)):.1f}"

    spread = f"{100 * statistics.stdev(found('cram')):.1f}"
    text = " ".join((ROOT / "README.md").read_text().split())
    assert mean("mamba", column="accuracy") > mean("cram", column="accuracy")
    for words in (
        f"its macro-F1 is {mean('cram')} ± {spread} with {mean('cram', column='reads')} % reads",
        f"and {mean('cram', 'off')} without any",
        f"Mamba's is {mean('mamba')} (and its accuracy is higher), a Transformer's {mean('transformer')}",
        f"SeqBoat's {mean('seqboat')}, that of trees {mean('trees')}",
    ):
        assert words in text, words


def test_readme_shows_both_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


SCRIPTS = [path for path in sorted((ROOT / "experiments").glob("*.sh")) if "TORCHCRAM:-" in path.read_text()]


def told_by(script: Path, folder: Path, **given: str) -> list[list[str]]:
    """The words of each command that a script would run."""
    program = folder / "told"
    program.write_text('#!/bin/sh\nprintf "%s\\t" "$@"; echo\n')
    program.chmod(0o755)
    lines = subprocess.run(
        ["bash", str(script), str(folder / "results")],
        env={**os.environ, "TORCHCRAM": str(program), **given},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [line.rstrip("\t").split("\t") for line in lines]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_commands_of_experiments_exist_with_their_options(script, tmp_path):
    told = told_by(script, tmp_path)
    assert told
    for words in told:
        command = typer.main.get_command(app)
        while hasattr(command, "commands"):
            name, *words = words
            command = command.commands[name]
        command.make_context(name, words)  # an unknown option, or a missing argument, is an error


def test_others_are_trained_at_the_papers_size_as_was_best_for_them(tmp_path):
    words = told_by(ROOT / "experiments" / "paper-scale.sh", tmp_path, STEPS="70")
    rows = results.read(ROOT / "results" / "baselines-srcd.json")["rows"]
    trained = {each[each.index("--model") + 1]: each for each in words if "--model" in each}
    assert list(trained) == ["transformer", "jamba", "mamba", "seqboat"]
    for model, given in trained.items():
        best = [row for row in rows if row["what"] == "final" and row["model"] == model]
        (rate,) = {row["rate"] for row in best}
        assert rate == float(next(word for word in given if word.startswith("optimizer.rate=")).partition("=")[2])
        assert "steps=70" in given
    assert "model.attention.window=1024" in trained["seqboat"]
    assert all("window=1024" in row["setting"] for row in rows if (row["what"], row["model"]) == ("final", "seqboat"))
    steps, long = [each for each in words if each[:2] == ["bench", "steps"]]
    assert [each.split("/")[2] for each in steps if each.startswith("runs/")] == ["cram-0", *trained]
    assert {"task.length=8192", "batch=8"} < set(long)
    (quality,) = [each for each in words if each[:2] == ["bench", "quality"]]
    assert quality[quality.index("--times") + 1] == steps[steps.index("--json") + 1]
    assert steps[steps.index("--state-length") + 1] == "131072"
    (collect,) = [each for each in words if each[0] == "collect"]
    assert f"cost={steps[steps.index('--json') + 1]}" in collect
    assert sum(word.startswith("final=") for word in collect) == 5


def test_the_command_of_the_papers_experiments_exists_with_its_options():
    (line,) = re.findall(r"-m torchcram reproduce (.*?) \"", (ROOT / "experiments" / "paper.sh").read_text())
    line = line.replace("${1//+/ }", "theory frontier")  # a pool, such as theory+frontier
    given = {"$scale": "gpu", "$2": "12", "$out": "runs"}
    typer.main.get_command(app).commands["reproduce"].make_context(
        "reproduce", [given.get(word, word) for word in line.split()]
    )


def test_the_first_screen_of_the_readme_shows_the_result_and_two_commands():
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:14])
    assert "(docs/images/result.svg)" in screen
    minutes = [
        row["seconds"] / 60 for row in results.read(ROOT / "results" / "srcd-demo.json")["rows"] if "seconds" in row
    ]
    assert (math.floor(min(minutes)), math.ceil(max(minutes))) == (5, 8)
    assert "(five to eight minutes on one core)" in screen
    targets = re.findall(r"^make (\w+)", screen, re.MULTILINE)
    assert len(targets) == 2
    assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in targets)


def test_every_experiment_is_listed():
    listed = (ROOT / "experiments" / "README.md").read_text()
    assert all(f"`{path.name}" in listed for path in (ROOT / "experiments").glob("*.sh"))
