"""The document about redundant attention: its sentences follow from the numbers, whichever way these fall."""

import json

import pytest
from typer.testing import CliRunner

from tests.report.test_redundancy import copies, group, rows, worth
from torchcram.cli.main import app
from torchcram.report import redundancy_words as words
from torchcram.report.redundancy_document import page
from torchcram.report.words import SPACE


def bounds(low, high, key="r2"):
    return {f"{key}_low": low, f"{key}_high": high}


def told(lines):
    return " ".join(lines).replace(SPACE, " ")


def measured(*, linear=None, mean=None, control=None):
    found = [group(**(linear or {})), group(predictor="mean", **(mean or {}))]
    return [*found, *([group("random", **control)] if control else [])]


def test_the_mean_raises_r_or_does_not():
    assert "The mean alone, which sees nothing of the input, has R 0.4: 80 % of the probe's 0.5." in told(
        words.inflation(measured(mean={"printed": 0.4}))
    )
    assert "no less than the probe's 0.5." in told(words.inflation(measured(mean={"printed": 0.6})))
    assert "it does not raise R here" in told(words.inflation(measured(mean={"printed": -0.1})))
    assert words.inflation(measured(linear={"r2": None})) == ["Too little was measured to say anything."]


@pytest.mark.parametrize(
    ("printed", "low", "high", "where"),
    [
        (0.4, 0.35, 0.45, "R is 0.4 (0.35 to 0.45), clearly below the 0.88 for which the paper calls 88 %"),
        (0.95, 0.93, 0.97, "R is 0.95 (0.93 to 0.97), clearly above the 0.88"),
        (0.87, 0.8, 0.9, "R is 0.87 (0.8 to 0.9), not clearly different from the 0.88"),
        (0.4, None, None, "R is 0.4, below, on a text too short to be sure, the 0.88"),
        (0.9, None, None, "R is 0.9, above, on a text too short to be sure, the 0.88"),
    ],
)
def test_r_stands_beside_that_for_which_the_paper_calls_attention_redundant(printed, low, high, where):
    """Like beside like: the share of the variance is no R."""
    linear = {"printed": printed, **bounds(low, high, "printed"), "r2": 0.89, **bounds(0.885, 0.895)}
    assert where in told(words.inflation(measured(linear=linear)))


def test_the_share_of_the_variance_that_is_told():
    said = told(words.inflation(measured(linear={"r2": 0.4, **bounds(0.35, 0.45)})))
    assert "Of the variance the probe tells 40 % (35 % to 45 %)." in said
    assert "Of the variance the probe tells 40 %." in told(words.inflation(measured()))
    assert "Of the variance the probe tells nothing." in told(words.inflation(measured(linear={"r2": -0.1})))


@pytest.mark.parametrize(
    ("low", "high", "how", "concluded"),
    [
        (0.6, 0.7, "clearly higher than", True),
        (0.1, 0.2, "clearly lower than", False),
        (0.3, 0.7, "not clearly different from", False),
        (None, None, "not known to differ from", False),
    ],
)
def test_random_weights_stand_beside_trained_ones(low, high, how, concluded):
    given = measured(linear={"r2": 0.4, **bounds(0.35, 0.45)}, control={"r2": 0.65, **bounds(low, high)})
    said = told(words.inflation(given))
    assert f"R² is 0.65, {how} the trained model's." in said
    assert ("So an R² like the trained model's needs no learning." in said) == concluded


def alone(layer, predictor, cost, recovered):
    return worth(cost, 0.0, 2 * cost, recovered, what="one layer", layer=layer, predictor=predictor)


def whole(cost, low, high, recovered=0.5, predictor="linear"):
    which = {"what": "layers", "order": "first to last", "predictor": predictor, "count": 4}
    return worth(cost, low, high, recovered, **which)


def test_what_replacing_attention_costs():
    given = [alone(layer, name, 0.1, (None, 0.2, 0.9)[layer]) for layer in range(3) for name in ("mean", "linear")]
    said = told(words.function([*given, whole(0.7, 0.6, 0.8)]))
    assert "In 2 of 3 layers the mean in attention's place clearly costs something" in said
    assert "recovers 55 % in the median layer, 20 % at least and 90 % at most." in said
    assert "costs 0.7 (0.6 to 0.8) nats a token, a perplexity 2 times as high, and recovers 50 %" in said
    assert "Where tokens meet by attention alone, each is then seen by itself, whatever the probe is." in said
    assert "clearly above 0" not in said
    (said,) = words.function(given[:4])
    assert "In 1 of 2 layers the mean in attention's place clearly" in said
    assert said.replace(SPACE, " ").endswith("; of that the linear probe recovers 20 %.")
    said = told(words.function([alone(0, "mean", 0.0, None), alone(0, "linear", 0.0, None), whole(0.01, -0.1, 0.1)]))
    assert "In no layer does the mean" in said
    assert "costs 0.01 (-0.1 to 0.1) nats a token, and recovers 50 % of what the mean costs. The cost is not" in said
    assert "too short to tell how sure" in told(words.function([whole(0.7, None, None, None)]))
    unsure = {**alone(0, "mean", 0.1, None), "cost_low": None, "cost_high": None}
    said = told(words.function([unsure, {**unsure, "predictor": "linear"}]))
    assert "too short to tell in which layers" in said
    assert "In no layer" not in said


@pytest.mark.parametrize(
    ("intact", "replaced", "words_said"),
    [
        (
            (1.0, 0.9, 1.1),
            [(1.05, 0.95, 1.15), (3.0, 2.5, 3.5), (2.0, 1.5, 2.5)],
            "it is clearly worse for 2 of 3 layers; the loss is highest, 3 (2.5 to 3.5), with layer 2 replaced.",
        ),
        (
            (1.0, 0.9, 1.1),
            [(1.1, 1.0, 1.2), (1.0, 0.9, 1.1)],
            "it is clearly worse for none of 2 layers; the loss is highest, 1.1 (1 to 1.2), with layer 1 replaced.",
        ),
        # The highest is not surely so; another is.
        (
            (1.0, 0.9, 1.1),
            [(3.0, 1.0, 5.0), (2.0, 1.9, 2.1)],
            "it is clearly worse for 1 of 2 layers; the loss is highest, 3 (1 to 5), with layer 1 replaced.",
        ),
        ((5.0, 4.9, 5.1), [(6.0, 5.5, 6.5)], "where a guess costs 5: no copying was seen, so none could be lost."),
        (
            (1.0, None, None),
            [(3.0, None, None)],
            "the loss is highest, 3, with layer 1 replaced. There are too few sequences to tell how sure that is.",
        ),
    ],
)
def test_copying_is_told_of_single_layers(intact, replaced, words_said):
    given = [copies(f"layer {layer}", *each, predictor="linear") for layer, each in enumerate(replaced)]
    others = [copies("layer 0", 8, 7, 9, predictor="mean"), copies("all layers", 9, 8, 10, predictor="linear")]
    (said,) = words.copying([copies("nothing", *intact), *given, *others])
    assert said.endswith(words_said)
    assert "Copying random tokens that come a second time: " in said


def test_copying_that_was_not_measured_is_not_told_of():
    assert words.copying([]) == ["Copying was not measured: the model carries a state besides."]


def run(kind, *r2, released=1, sure=True, mean=0.2):
    """Rows of a run at steps 0, 10, 20, …, with centred R² and intervals of ± 0.05; `released` from a checkpoint on."""
    found = []
    for number, value in enumerate(r2):
        common = {"model": f"my {kind}", "text": "held.txt", "step": 10 * number}
        about = {"what": "about", "kind": kind, "note": f"{kind}, {10 * number} steps", "window": 8, "dtype": "float32"}
        about |= {"train_tokens": 100, "eval_tokens": 50, "documents": 12, "parameters": 1000}
        about |= {"learned_from": "novels.txt", "seconds": 9.0}
        ends = (value - 0.05, value + 0.05) if sure else (None, None)
        scores = group(r2=value, printed=value, **bounds(*ends)) | bounds(*ends, "printed")
        chosen = number >= released
        reads = {"what": "reads", "reads": 0.25 / number if chosen else 1.0, "released": chosen, "loss": 3.125 - number}
        overall = {"what": "one of a group", "group": "overall"}
        costs = [worth(0.02, 0.01, 0.03, 0.375, **overall, predictor="linear"), whole(0.1, 0, 1)]
        costs += [worth(mean, mean, mean, **overall, predictor="mean"), whole(mean, mean, mean, predictor="mean")]
        loss = {"what": "loss", "loss": 3 - number}
        found += [{**row, **common} for row in (about, scores, group(predictor="mean"), loss, *costs, reads)]
    return found


@pytest.mark.parametrize(
    ("r2", "moved"),
    [((0.9, 0.2, 0.8), "rose"), ((0.1, 0.8, 0.2), "fell"), ((0.1, 0.5, 0.52), "did not clearly change")],
)
def test_what_became_of_redundancy_is_told_from_the_first_step_that_was_trained(r2, moved):
    loss, printed, centred = words.changes(run("transformer", *r2))
    assert loss == "my transformer: from step 10 to 20 the loss went from 2 to 1 nats."
    assert printed.startswith(f"R as printed: {moved} from step 10 ({r2[1]}) to the last ({r2[2]})")
    assert f"highest at step {10 * r2.index(max(r2))} ({max(r2)})" in centred
    assert words.changes(run("cram", 0.5)) == ["my cram: one checkpoint only."]


def test_where_one_step_was_trained_it_is_told_from_the_random_weights():
    _, printed, _ = words.changes(run("transformer", 0.2, 0.8))
    assert printed.startswith("R as printed: rose from step 0 (0.2) to the last (0.8)")
    (line,) = words.compared([run("cram", 0.8, 0.2), run("transformer", 0.2, 0.8)])
    assert "centred R² fell for CRAM (step 0 to 10), and rose for the Transformer (step 0 to 10)." in line
    assert words.compared([run("cram", 0.8), run("transformer", 0.2, 0.8)]) == [], "one checkpoint shows no change"


@pytest.mark.parametrize(
    ("cram", "transformer", "answer"),
    [
        ((0.5, 0.8, 0.4), (0.5, 0.4, 0.8), "Yes, in these runs: centred R² fell for CRAM (step 10 to 20), and rose"),
        ((0.5, 0.8, 0.4), (0.5, 0.8, 0.4), "No, not in these runs: centred R² fell for CRAM (step 10 to 20), and fell"),
        ((0.5, 0.4, 0.8), (0.5, 0.4, 0.8), "No, not in these runs: centred R² rose for CRAM (step 10 to 20), and rose"),
        ((0.5, 0.4, 0.42), (0.5, 0.4, 0.8), "No, not in these runs: centred R² did not clearly change for CRAM"),
    ],
)
def test_cram_is_compared_with_the_transformer(cram, transformer, answer):
    (line,) = words.compared([run("cram", *cram), run("transformer", *transformer)])
    assert answer in line
    released = (
        "CRAM was released before 2 of its 3 checkpoints; at the last of them it reads at 12.50 % of the positions."
    )
    assert released in line.replace(SPACE, " ")
    ways = {True: "rose", False: "fell"}
    way = ways[cram[2] > cram[0]] if abs(cram[2] - cram[0]) > 0.1 else "did not clearly change"
    assert f" Its R² {way} from the last checkpoint before that (step 0, {cram[0]})" in line
    (line,) = words.compared([run("cram", *cram, released=9), run("transformer", *transformer)])
    assert "CRAM was released before none of its 3 checkpoints." in line
    assert words.compared([run("cram", *cram)]) == []


@pytest.mark.parametrize("unsure", ["cram", "transformer"])
def test_models_are_not_compared_on_too_little_text(unsure):
    given = {"cram": (0.5, 0.8, 0.4), "transformer": (0.5, 0.4, 0.8)}
    (line,) = words.compared([run(kind, *r2, sure=kind != unsure) for kind, r2 in given.items()])
    assert "? These runs do not tell: centred R²" in line
    assert "is not known to have changed (too little text)" in line


def file(found, name="redundancy-some"):
    return {"name": name, "machine": "one", "commit": "abc", "command": "torchcram probe", "rows": found}


def pretrained(control=40):
    about = {"note": "a model", "kind": "", "window": 8, "dtype": "tf32", "parameters": 1000, "documents": 3}
    about |= {"train_tokens": 100, "eval_tokens": 50, "learned_from": "novels.txt", "seconds": 150.0}
    about |= {"control_tokens": control}
    given = [{**row, **about} if row["what"] == "about" else row for row in rows(linear=((0.1,), (2.0,)))]
    first = {"what": "first windows", "perplexity": 22.7512, "windows": 16}
    loss = {"what": "loss", "loss": 3.25}
    return [{**row, "model": "some", "text": "held.txt"} for row in (*given, first, loss)]


def test_a_document_says_where_its_numbers_come_from():
    made = page(file(pretrained()), file(run("transformer", 0.5, 0.4, 0.8), "redundancy-training"))
    assert "from the results `redundancy-some` and `redundancy-training`." in made
    assert "a model. 1,000 parameters, computed in tf32; sums in float64." in made
    assert "Probes learned from 100 tokens of `novels.txt` in windows of 8, once for all texts below" in made
    assert "Those of the model with random weights learned from 40 of these tokens." in made
    assert "All of it took 2.5 min." in made.replace(SPACE, " ")
    assert "- `held.txt`: 50 tokens of 3 documents; perplexity 22.75 on its first 16 windows. The model's" in made
    assert "own loss on this text is 3.25 nats a token." in made
    assert "one; commit abc." in made
    assert "{" not in made
    assert "Those of the model with random" not in page(file(pretrained(control=0)), file(run("transformer", 0.5, 0.4)))


def test_the_time_is_that_of_all_texts():
    later = [{**row, "text": "other.txt"} for row in pretrained()]
    later = [row | {"seconds": 240.0} if row["what"] == "about" else row for row in later]
    made = page(file([*pretrained(), *later]), file(run("transformer", 0.5, 0.4)))
    assert "All of it took 4 min." in made.replace(SPACE, " ")
    assert "### On `held.txt`" in made
    assert "### On `other.txt`" in made


def test_over_training_a_released_cram_also_shows_its_loss_with_the_reads_it_chooses():
    def lines(found):
        made = page(file(pretrained()), file(found)).replace(SPACE, " ").partition("## Over training")[2]
        cells = [line.strip("| ").split(" | ") for line in made.splitlines() if line.startswith("| ")]
        heads = next(number for number, line in enumerate(cells) if "R as printed" in line)
        return [dict(zip(cells[heads], line, strict=True)) for line in cells[heads + 2 :]]

    cram = lines(run("cram", 0.5, 0.4, 0.8))
    assert [line["reads"] for line in cram] == ["100 % (not released)", "25 % (2.125 nats)", "12.50 % (1.125 nats)"]
    assert [line["nats"] for line in cram] == ["3", "2", "1"], "where every position reads"
    assert {line["one layer replaced: recovered"] for line in cram} == {"0.38"}
    assert {line["all layers replaced: recovered"] for line in cram} == {"0.5"}
    assert {line["all layers replaced: cost"] for line in cram} == {"0.1 (0 to 1)"}
    assert [line["reads"] for line in lines(run("transformer", 0.5, released=9))] == ["100 %"]
    (slight,) = lines(run("cram", 0.5, mean=0.0029))  # of a loss of 3: less than a thousandth
    assert {slight[f"{which} replaced: recovered"] for which in ("one layer", "all layers")} == {"–"}
    assert slight["all layers replaced: cost"] == "0.1 (0 to 1)"


def test_files_that_were_mixed_up_are_refused():
    one, other = file(pretrained()), file(run("transformer", 0.5, 0.4))
    with pytest.raises(ValueError, match="has steps: it is one of runs over training"):
        page(other, other)
    with pytest.raises(ValueError, match="has rows without a step: use torchcram probe --at all"):
        page(one, one)
    with pytest.raises(ValueError, match="has 2 of them: some, another"):
        page(file([*pretrained(), *({**row, "model": "another"} for row in pretrained())]), other)
    with pytest.raises(ValueError, match="the result file of a pretrained model has no commit"):
        page({key: value for key, value in one.items() if key != "commit"}, other)


def test_the_command_writes_it(tmp_path):
    paths = {"pretrained": pretrained(), "training": run("transformer", 0.5, 0.4)}
    for name, found in paths.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(file(found)))
    given = [word for name in paths for word in (f"--{name}", str(tmp_path / f"{name}.json"))]
    done = CliRunner().invoke(app, ["redundancy", *given, "--out", str(tmp_path / "docs" / "page.md")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "docs" / "page.md").read_text() == page(*(file(found) for found in paths.values()))
    done = CliRunner().invoke(app, ["redundancy", *given[:2], "--training", str(tmp_path / "none.json")])
    assert done.exit_code == 1
    assert "none.json" in done.output
