"""The document about redundant attention: its sentences follow from the numbers, whichever way these fall."""

import json

import pytest
from typer.testing import CliRunner

from tests.report.test_redundancy import group, rows, worth
from torchcram.cli.main import app
from torchcram.report import redundancy_words as words
from torchcram.report.redundancy_document import _saved, page
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
    ("r2", "low", "high", "where"),
    [
        (0.4, 0.35, 0.45, "40 % (35 % to 45 %), which is clearly below the 88 %"),
        (0.95, 0.93, 0.97, "95 % (93 % to 97 %), which is clearly above the 88 %"),
        (0.87, 0.8, 0.9, "87 % (80 % to 90 %), which is not clearly different from the 88 %"),
        (0.4, None, None, "40 %, which is below, on a text too short to be sure, the 88 %"),
    ],
)
def test_what_is_told_stands_beside_what_the_paper_calls_redundant(r2, low, high, where):
    assert where in told(words.inflation(measured(linear={"r2": r2, **bounds(low, high)})))


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
    assert ("a high R² needs no learning" in said) == concluded


def alone(layer, predictor, cost, recovered):
    return worth(cost, 0.0, 2 * cost, recovered, what="one layer", layer=layer, predictor=predictor)


def whole(cost, low, high, recovered=0.5):
    which = {"what": "layers", "order": "first to last", "predictor": "linear", "count": 4}
    return worth(cost, low, high, recovered, **which)


def test_what_replacing_attention_costs():
    given = [alone(layer, name, 0.1, (None, 0.2, 0.9)[layer]) for layer in range(3) for name in ("mean", "linear")]
    said = told(words.function([*given, whole(0.7, 0.6, 0.8)]))
    assert "In 2 of 3 layers the mean in attention's place clearly costs something" in said
    assert "recovers 55 % in the median layer, 20 % at least and 90 % at most" in said
    assert "costs 0.7 (0.6 to 0.8) nats a token, a perplexity 2 times as high, and recovers 50 %" in said
    assert "So it cannot stand for all attention without loss." in said
    said = told(words.function([alone(0, "mean", 0.0, None), alone(0, "linear", 0.0, None), whole(0.01, -0.1, 0.1)]))
    assert "In no layer does the mean" in said
    assert "That is not clearly above 0." in said
    assert "without loss" not in said
    assert "too short to tell how sure" in told(words.function([whole(0.7, None, None, None)]))
    unsure = {**alone(0, "mean", 0.1, None), "cost_low": None, "cost_high": None}
    said = told(words.function([unsure, {**unsure, "predictor": "linear"}]))
    assert "too short to tell in which layers" in said
    assert "In no layer" not in said


def test_a_share_of_the_cost_is_told_without_an_interval_where_there_is_none():
    def of(predictor, cost, low, recovered=None):
        which = {"what": "one of a group", "group": "early", "predictor": predictor}
        return worth(cost, low, low and 2 * cost, recovered, **which)

    assert _saved([of("mean", 0.2, None), of("linear", 0.05, None)], "early", "linear") == "0.75"
    assert _saved([of("mean", -0.2, None), of("linear", 0.05, None)], "early", "linear") == "–"
    assert _saved([of("mean", 0.2, -0.1), of("linear", 0.05, -0.1)], "early", "linear") == "–", "not a clear cost"


def copies(replaced, loss, low, high, predictor=""):
    said = {"what": "copying", "replaced": replaced, "predictor": predictor, "chance": 5.0}
    return {**said, "loss": loss, "loss_low": low, "loss_high": high}


@pytest.mark.parametrize(
    ("intact", "replaced", "words_said"),
    [
        ((1.0, 0.9, 1.1), (6.0, 5.5, 6.5), "nothing of it is left"),
        ((1.0, 0.9, 1.1), (3.0, 2.5, 3.5), "clearly worse"),
        ((1.0, 0.9, 1.1), (1.1, 1.0, 1.2), "not clearly worse"),
        ((5.0, 4.9, 5.1), (6.0, 5.5, 6.5), "no copying was seen, so none could be lost"),
        ((1.0, None, None), (3.0, None, None), "too few sequences to tell how sure"),
    ],
)
def test_copying_is_lost_or_kept(intact, replaced, words_said):
    said = words.copying([copies("nothing", *intact), copies("all layers", *replaced, predictor="linear")])
    assert words_said in told(said)
    assert words_said == "clearly worse" or ": clearly worse" not in told(said)


def test_copying_that_was_not_measured_is_not_told_of():
    assert words.copying([]) == ["Copying was not measured: the model carries a state besides."]


def run(kind, *r2, released=True):
    """Rows of a run at steps 0, 10, 20, …, with centred R² and intervals of ± 0.05."""
    found = []
    for number, value in enumerate(r2):
        common = {"model": f"my {kind}", "text": "held.txt", "step": 10 * number}
        about = {"what": "about", "kind": kind, "note": f"{kind}, {10 * number} steps", "window": 8, "dtype": "float32"}
        about |= {"train_tokens": 100, "eval_tokens": 50, "documents": 12, "parameters": 1000}
        scores = group(r2=value, printed=value, **bounds(value - 0.05, value + 0.05))
        scores |= bounds(value - 0.05, value + 0.05, "printed")
        reads = {"what": "reads", "reads": 0.25 if released else 1.0, "released": released}
        loss = {"what": "loss", "loss": 3 - number}
        found += [{**row, **common} for row in (about, scores, group(predictor="mean"), loss, whole(0.1, 0, 1), reads)]
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


@pytest.mark.parametrize(
    ("cram", "transformer", "answer"),
    [
        ((0.5, 0.8, 0.4), (0.5, 0.4, 0.8), "Yes, in these runs: centred R² fell for CRAM, and rose"),
        ((0.5, 0.8, 0.4), (0.5, 0.8, 0.4), "No, not in these runs: centred R² fell for CRAM, and fell"),
        ((0.5, 0.4, 0.8), (0.5, 0.4, 0.8), "No, not in these runs: centred R² rose for CRAM, and rose"),
        ((0.5, 0.4, 0.42), (0.5, 0.4, 0.8), "No, not in these runs: centred R² did not clearly change for CRAM"),
    ],
)
def test_cram_is_compared_with_the_transformer(cram, transformer, answer):
    (line,) = words.compared([run("cram", *cram), run("transformer", *transformer)])
    assert answer in line
    assert "At the end CRAM reads at 25 % of the positions." in line.replace(SPACE, " ")
    (line,) = words.compared([run("cram", *cram, released=False), run("transformer", *transformer)])
    assert "reads at 100 % of the positions, since it was never released." in line.replace(SPACE, " ")
    assert words.compared([run("cram", *cram)]) == []


def file(found):
    return {"machine": "one", "commit": "abc", "command": "torchcram probe", "rows": found}


def pretrained():
    about = {"note": "a model", "kind": "", "window": 8, "dtype": "tf32", "parameters": 1000, "documents": 3}
    about |= {"train_tokens": 100, "eval_tokens": 50}
    given = [{**row, **about} if row["what"] == "about" else row for row in rows(linear=((0.1,), (2.0,)))]
    first = {"what": "first windows", "perplexity": 22.7512, "windows": 16}
    return [{**row, "model": "some", "text": "held.txt"} for row in (*given, first)]


def test_a_document_says_where_its_numbers_come_from():
    made = page(file(pretrained()), file(run("transformer", 0.5, 0.4, 0.8)))
    assert "a model. 1,000 parameters, computed in tf32; sums in float64." in made
    assert "- `held.txt`: 50 tokens of 3 documents; perplexity 22.75 on its first 16 windows." in made
    assert "one; commit abc." in made
    assert "{" not in made


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
