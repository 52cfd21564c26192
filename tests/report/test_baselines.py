"""The page about baselines says what the result files say."""

import json
import re

import pytest
from typer.testing import CliRunner

from torchcram.cli.main import app
from torchcram.report import baselines
from torchcram.report.comparison import groups
from torchcram.report.comparison_words import verdicts
from torchcram.report.recall_words import notes
from torchcram.tasks import Srcd


def row(what, model, accuracy, reads, *, setting="", rate=1e-3, **more):
    return {
        "what": what,
        "model": model,
        "setting": setting,
        "task": "srcd",
        "rate": rate,
        "seed": 0,
        "layer_reads": reads,
        "accuracy": accuracy,
        "accuracy_recurring": 1.0,
        "accuracy_novel": accuracy - 0.0001,
        "dynamics_mse": 0.0101,
        "dynamics_floor": 0.01,
        "opt": 0.015,
        "reads": reads,
        "pairs": reads / 2,
        "writes": 1.0,
        "parameters": 1_234_567,
        "commit": "def",
        **more,
    }


def files(*rows):
    about = {"setting": "Small.", "machine": "a machine", "commit": "abc", "command": "torchcram sweep"}
    mqar = [
        row("final", "cram", 1.0, 0.13, opt=0.125, steps=3000, task="mqar", compared=0.25),
        row("final", "transformer", 0.995, 1.0, setting="without rotary", opt=0.125, task="forgetting-mqar"),
    ]
    return {**about, "rows": list(rows)}, {**about, "rows": mqar}


INPUTS = {"inputs": Srcd().inputs, "outputs": Srcd().outputs}

ROWS = (
    row("rate", "cram", 0.9, 0.02, rate=5e-4),
    row("final", "cram", 0.9999, 0.0150),
    row("final", "cram", 0.9991, 0.0152, seed=1),
    row("final", "cram", 0.9995, 0.0151, seed=2),
    row("final", "transformer", 0.9998, 1.0),
    row("final", "mod", 0.9997, 0.2, setting="capacity 12.5 %"),
    row("final", "mamba", 0.71, 0.0),
    row("cost", "cram", 1, 1, state_length=131_072, state_bytes=2**20, tokens_per_second=123_456.0, forward_ms=1.25),
    row("curve", "mod", 0.95, 0.05, setting="capacity 5 %"),
    row("cost", "mod", 1, 1, setting="capacity 5 %", forward_ms=2.0),
    row("timed", "mod", 0.97, 0.04, setting="capacity 5 %"),
)


def test_the_page_has_every_number():
    text = baselines.page(*files(*ROWS))
    expected = [
        "| `cram` | 3 | 99.95 % (99.91 %) | 100 % | 99.94 % (99.90 %) | 1.01 | 1.51 % (1.52 %) | 0.76 % | 0 % | 100 %"
        " | 1,234,567 | 1.0 MiB | 123k | 1.2 | def |",
        "| `mod` capacity 12.5 % | 1 | 99.97 % | 100 % | 99.96 % | 1.01 | 20 % | 10 % | 0 % | 100 % | 1,234,567"
        " | – | – | – | – |",
        "| `mod` | capacity 5 % | 95 % | 94.99 % | 5 % | 2.50 % | 2 | def | 97 %, reads 4 % |",
        "| `mod` | capacity 12.5 % | 99.97 % | 99.96 % | 20 % | 10 % | – | – | – |",
        "| model | 0.0005 | 0.001 |",
        "| `cram` | 90 % (2 %) | **99.99 % (1.50 %)** |",
        "| forgetting-mqar | `transformer` without rotary | – | 0.001 | 1 | 1,234,567 | 99.50 % | 100 % | 8 | 50 %"
        " | 0 % |",
        "| mqar | `cram` | 3,000 | 0.001 | 1 | 1,234,567 | 100 % | 13 % | 1.04 | 6.50 % | 25 % |",
    ]
    for line in expected:
        assert line in text.splitlines()
    assert "Small. a machine; commit abc." in text


def test_rates_are_compared_within_a_seed():
    rows = (*ROWS, row("rate", "cram", 0.8, 0.5, rate=2e-3, seed=2))
    lines = baselines.page(*files(*rows)).splitlines()
    assert "| `cram` | 90 % (2 %) | **99.99 % (1.50 %)** | – |" in lines
    assert "| `cram`, seed 2 | – | **99.95 % (1.51 %)** | 80 % (50 %) |" in lines


def test_it_says_who_never_left_chance():
    srcd, mqar = files(*ROWS)
    assert "never left chance" not in baselines.page(srcd, mqar)
    mqar["rows"].append(row("final", "mamba", 0.0003, 0.0, opt=0.125, task="mqar"))
    assert "never left chance: `mamba` (0.001 with 1 seed)." in baselines.page(srcd, mqar)
    mqar["rows"] += [row("rate", "mamba", 0.0002, 0.0, rate=2e-3, seed=seed, task="mqar") for seed in range(2)]
    assert "never left chance: `mamba` (0.001 with 1 seed, 0.002 with 2 seeds)." in baselines.page(srcd, mqar)
    mqar["rows"].append(row("rate", "mamba", 0.5, 0.0, rate=4e-3, task="mqar"))
    assert "never left chance" not in baselines.page(srcd, mqar), "at another rate it did"


def test_many_commands_are_folded_away():
    srcd, mqar = files(*ROWS)
    assert "<details>" not in baselines.page(srcd, mqar)
    many = "\n".join(f"torchcram sweep {k}" for k in range(9))
    text = baselines.page({**srcd, "command": many}, mqar)
    assert text.endswith(f"### SRCD\n\n<details><summary>9 commands</summary>\n\n```sh\n{many}\n```\n\n</details>\n")
    assert text.count("[at the end](#commands)") == 2


def test_it_says_what_the_table_of_mqar_does_not_show():
    def mqar(what, model, accuracy, *, reads=1.0, task="mqar", **more):
        return row(what, model, accuracy, reads, opt=0.125, task=task, **more)

    plain = {"setting": "rotary=false, heads=1"}
    rows = [
        *(mqar("final", "transformer", x, seed=i, steps=8000, **plain) for i, x in enumerate((0.999, 0.998, 0.96))),
        mqar("rate", "transformer", 0.97, seed=2, rate=2e-3, steps=8000, **plain),
        mqar("final", "mamba", 0.0003, reads=0.0),
        mqar("final", "jamba", 0.0003, setting="convolution=1", commit="old"),
        mqar("final", "jamba", 0.995, setting="heads=1", rate=2e-3),
        mqar("rate", "jamba", 0.0003, setting="heads=1"),
        *(mqar("final", "cram", 0.999, reads=x, seed=i) for i, x in enumerate((0.125, 0.126, 0.5))),
        *(mqar("final", "cram", 1.0, reads=x, seed=i, task="forgetting-mqar") for i, x in enumerate((0.2, 0.18, 0.5))),
    ]
    plainer, slow, stuck, shown, older, many = notes(rows)
    assert plainer.startswith(
        "`transformer` has neither rotary positions nor several heads here: these are its settings"
    )
    assert slow == (
        "`transformer` on mqar stays below 99 % with seed 2, one of 3, whatever was tried: 8,000 steps at rate 0.001"
        " 96 %, 8,000 steps at rate 0.002 97 %."
    )
    assert "never left chance: `mamba` (0.001 with 1 seed), `jamba` convolution=1 (0.001 with 1 seed)." in stuck
    assert (
        "not what such a model can hold; `jamba` heads=1, too, is at chance at 0.001, and at 99.50 % at 0.002" in shown
    )
    assert older.startswith(
        "`jamba` convolution=1 is of commit old, when Jamba's attention had no short convolution yet"
    )
    assert many == (
        "`cram` on forgetting-mqar reads more than is needed: 20 % in the median, 50 % with seed 2, where 12.50 %"
        " would do."
    )
    assert notes([mqar("final", "cram", 0.999, reads=0.125)]) == []


def test_the_test_that_a_note_names_is_there():
    from tests.training import test_recall

    (*_, told) = notes([row("final", "mamba", 0.0003, 0.0, task="mqar", opt=0.125)])
    name = re.search(r"`(test_\w+)` in tests/training/test_recall.py", told).group(1)
    assert hasattr(test_recall, name)


def test_it_says_where_a_model_is_that_the_main_table_does_not_have():
    assert "has no" not in baselines.page(*files(*ROWS))
    text = baselines.page(*files(*ROWS, row("curve", "seqboat+cost", 0.7, 0.0, setting="cost=0.01")))
    assert "The main table of SRCD has no `seqboat+cost`, run with one seed a setting: see [Quality" in text


def test_it_says_who_solves_it_and_with_how_many_reads():
    said = verdicts(groups(ROWS, "final"))
    assert said == [
        "With reads, of which 1.50 % is the least possible: `cram` 1.51 %, `mod` capacity 12.5 % (1 seed) 20 %,"
        " `transformer` (1 seed) 100 %.",
        "Of those that solve it with every seed, CRAM reads least (1.51 %).",
        "Not at 99.90 % with every seed: `mamba` (novel 70.99 %).",
    ]


def test_it_says_where_cram_is_not_ahead():
    rivals = (row("final", "gate", 0.9999, 0.014), row("final", "mamba", 1.0, 0.0))
    said = verdicts(groups((*ROWS[2:5], *rivals), "final"))
    assert said[0] == "Without any attention, by a state that is large enough: `mamba`."
    assert said[2] == "CRAM is not ahead of `mamba`, `gate`."
    failed = (row("final", "cram", 0.9999, 0.015), row("final", "cram", 0.99, 0.015), *rivals)
    said = verdicts(groups(failed, "final"))
    assert "`gate` (1 seed) 1.40 %" in said[1]
    assert said[2:] == [
        "CRAM does not reach 99.90 % with every seed.",
        "Not at 99.90 % with every seed: `cram` (novel 99.48 %, at worst 98.99 %; 1 of 2 seeds do, with reads of"
        " 1.50 %).",
    ]
    assert not any("CRAM" in line for line in verdicts(groups(rivals, "final")))


def test_it_says_who_reads_no_more_with_the_seeds_that_solve_it():
    """Beside CRAM's reads with the same seeds: with others, a model may have other reads to do."""
    rivals = (
        *(row("final", "entropy", accuracy, 0.0149, seed=seed) for seed, accuracy in enumerate((0.7, 0.9996, 0.9998))),
        row("final", "gate", 0.9999, 0.01505),
        row("final", "gate", 0.9985, 0.0140, seed=1),
        row("final", "gate", 0.9999, 0.01515, seed=2),
        row("final", "mod", 0.9999, 0.2),
        row("final", "mod", 0.8, 0.2, seed=1),
    )
    curve = groups([row("curve", "gate", 0.9999, 0.0150, setting="price=0.2", seed=7)], "curve")
    *_, about, others, _ = verdicts(groups((*ROWS[1:4], *rivals), "final"), curve)
    assert about == "Of those that solve it with every seed, CRAM reads least (1.51 %)."
    assert others == (
        "With the seeds that solve it, these read no more than CRAM (the same seeds, where it has them): "
        "`entropy` (2 of 3: 1.49 %, CRAM 1.52 %), `gate` price=0.2 (1 of 1: 1.50 %, CRAM 1.51 %)."
    )
    seeds = (row("final", "cram", 0.9999, reads, seed=seed) for seed, reads in enumerate((0.0156, 0.0148, 0.0150)))
    said = verdicts(groups((*seeds, *rivals), "final"))
    assert "`gate` (2 of 3: 1.51 %, CRAM 1.53 %)" in said[2], "though CRAM's median of all seeds is less"


def test_it_begins_with_where_cram_is_not_ahead():
    def cost(model, commit, **numbers):
        return row("cost", model, 1, 1, commit=commit, **numbers)

    size = {"state_length": 131_072}
    rows = (
        *ROWS[1:6],
        cost("cram", "a", forward_ms=20.0, tokens_per_second=3e5, state_bytes=3 * 2**20, **size),
        cost("transformer", "a", forward_ms=5.0, tokens_per_second=2e5, state_bytes=2**30, **size),
        cost("transformer", "b", forward_ms=7.0, tokens_per_second=1e5),
    )
    text = baselines.page(*files(*rows))
    short = text[text.index("## In short") : text.index("## What they are")]
    told = (
        "Time of a forward pass, where both were timed at the same commit (a): CRAM 20 ms;"
        " 1 of 1 others are faster, `transformer` 5 ms.",
        "Tokens a second in training, where both were timed at the same commit (a): CRAM 300k;"
        " none of 1 others is faster.",
        "State of a sequence after 131,072 positions: CRAM 3.0 MiB; none of 1 others has less.",
        "Of those that solve it with every seed, CRAM reads least (1.51 %).",
    )
    for line in told:
        assert line in short
    line = next(line for line in text.splitlines() if line.startswith("| `transformer` | 1 |"))
    assert line.endswith("| 1024.0 MiB | 200k | 5 | a |"), "times of the commit that most share, and which it was"
    smaller = cost("mod", "a", setting="capacity 12.5 %", forward_ms=30.0, state_bytes=2**19, **size)
    text = baselines.page(*files(*rows, smaller))
    assert "CRAM 3.0 MiB; less have `mod` capacity 12.5 % 512 KiB." in text
    assert "1 of 2 others are faster, `transformer` 5 ms." in text


def test_it_says_whether_layers_were_compiled():
    assert "not compiled (none is at its fastest)" in baselines.page(*files(*ROWS))
    compiled = [{**each, "compile": True} if each["what"] == "cost" else each for each in ROWS]
    assert "timed alone on the GPU,\ncompiled, on a run" in baselines.page(*files(*compiled))
    assert "some of them compiled" in baselines.page(*files(*compiled[:-2], *ROWS[-2:]))


def test_tasks_and_settings_are_kept_apart():
    rows = [row("final", "cram", 1.0, 0.1, task=task, setting=x) for task in ("a", "b") for x in ("", "y")]
    assert [len(group.rows) for group in groups(rows, "final")] == [1] * 4


def test_longer_training_changes_no_time_and_the_first_seed_tells_of_a_rate():
    longer = row("final", "cram", 1.0, 0.015, setting="steps=8000", seed=1)
    again = row("rate", "mod", 0.1, 0.2, setting="capacity 12.5 %", rate=5e-4, seed=3)
    first = row("rate", "mod", 0.3, 0.2, setting="capacity 12.5 %", rate=5e-4)
    lines = baselines.page(*files(*ROWS, longer, first, again)).splitlines()
    (line,) = [line for line in lines if line.startswith("| `cram` steps=8000 | 1 |")]
    assert line.endswith("| 1.0 MiB | 123k | 1.2 | def |")
    assert "| `mod` capacity 12.5 % | 30 % (20 %) | **99.97 % (20 %)** |" in lines


def test_a_file_that_is_something_else_is_refused():
    srcd, mqar = files(*ROWS)
    with pytest.raises(ValueError, match="SRCD has rows without commit, seed, setting, what"):
        baselines.page({**srcd, "rows": [{"model": "cram", "task": "srcd"}]}, mqar)
    with pytest.raises(ValueError, match="MQAR has rows without command"):
        baselines.page(srcd, {key: value for key, value in mqar.items() if key != "command"})
    with pytest.raises(ValueError, match="SRCD has rows of forgetting-mqar, mqar"):
        baselines.page({**srcd, "rows": mqar["rows"]}, mqar)
    other = row("cost", "gate", 1, 1, state_length=5)
    with pytest.raises(ValueError, match="several lengths"):
        baselines.page({**srcd, "rows": [*ROWS, other]}, mqar)


def test_every_model_that_can_be_trained_is_told_of():
    from torchcram.training.recipes import MODELS

    assert set(baselines.ABOUT) == set(MODELS)


def test_the_defaults_are_those_of_the_models():
    from torchcram.config import BASELINES, BaselineConfig
    from torchcram.consolidation import ConsolidationConfig

    mod, entropy = (BaselineConfig(layers=1, mixer=BASELINES[name]["mixer"], **INPUTS) for name in ("mod", "entropy"))
    price = f"price={ConsolidationConfig().price:g}"
    expected = {
        "cram": price,
        "gate": price,
        "mod": f"capacity={mod.capacity:g}",
        "entropy": f"deviations={entropy.deviations:g}",
        "window": f"window={BASELINES['window']['attention.window']}",
    }
    assert expected == baselines._DEFAULTS


def test_the_command_writes_it(tmp_path):
    for name, data in zip(("srcd", "mqar"), files(*ROWS), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    words = [f"--{name}={tmp_path / name}.json" for name in ("srcd", "mqar")]
    found = CliRunner().invoke(app, ["baselines", *words, "--out", str(tmp_path / "page.md")])
    assert found.exit_code == 0, found.output
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == baselines.page(*files(*ROWS))
    missing = CliRunner().invoke(app, ["baselines", "--srcd", str(tmp_path / "no.json"), *words[1:]])
    assert missing.exit_code == 1
    assert "no.json" in missing.output
