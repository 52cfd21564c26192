"""Tasks of recall: what they ask for is what was told, and where."""

import pytest
import torch

from torchcram.tasks import NAMES, Mqar, MqarConfig, make

SMALL = {
    "mqar": {"length": 64, "pairs": 8, "vocabulary": 128},
    "forgetting-mqar": {"length": 64, "pairs": 8, "vocabulary": 128},
    "associative": {"length": 32, "pairs": 8, "vocabulary": 128},
    "copying": {"length": 40, "items": 6},
    "induction": {"length": 20},
}


def batch(name, rows=range(50), step=3, **settings):
    task = make(name, **{**SMALL[name], **settings})
    return task, task.batch(seed=1, step=step, rows=rows)


@pytest.mark.parametrize("name", SMALL)
def test_rows_do_not_depend_on_who_makes_them(name):
    _, whole = batch(name)
    _, part = batch(name, rows=range(20, 30))
    for mine, all_ in ((part.inputs, whole.inputs), (part.targets, whole.targets)):
        assert torch.equal(mine["token"], all_["token"][20:30])
    assert torch.equal(part.kind, whole.kind[20:30])
    assert not torch.equal(whole.inputs["token"], batch(name, step=4)[1].inputs["token"])


def test_what_is_not_a_binding_or_a_question_is_blank_or_noise():
    for noise in (False, True):
        _, examples = batch("mqar", noise=noise)
        tokens, filler = examples.inputs["token"], examples.kind == 0
        assert (tokens[~filler] > 0).all()
        assert (tokens[filler].unique().numel() > 64) == noise
        assert noise or (tokens[filler] == 0).all()


@pytest.mark.parametrize("name", SMALL)
def test_it_is_told_where_there_is_an_answer(name):
    _, examples = batch(name)
    assert torch.equal(examples.answered, examples.targets["token"] != -100)
    assert torch.equal(examples.answered, examples.kind >= 2)


@pytest.mark.parametrize("name", ["mqar", "forgetting-mqar", "associative"])
def test_a_key_is_answered_with_what_was_bound_last(name):
    task, examples = batch(name)
    stores, asked = 2 * task.config.stores, []
    for tokens, target, kind in zip(
        examples.inputs["token"].tolist(), examples.targets["token"].tolist(), examples.kind.tolist(), strict=True
    ):
        bound, times = {}, {}
        for key, value in zip(tokens[:stores:2], tokens[1:stores:2], strict=True):
            assert 1 <= key < 64 <= value < 128
            times[key] = times.get(key, 0) + 1
            assert bound.get(key) != value
            bound[key] = value
        assert len(bound) == task.config.pairs
        assert kind[:stores] == [1] * stores
        places = [t for t, answer in enumerate(target) if answer != -100]
        assert len(places) == (1 if name == "associative" else task.config.pairs)
        for t in places:
            assert t >= stores
            assert target[t] == bound[tokens[t]]
            assert kind[t] == (3 if times[tokens[t]] > 1 else 2)
            asked.append(t)
        assert len({tokens[t] for t in places}) == len(places)
        assert all(kind[t] == 0 for t in range(stores, len(tokens)) if t not in places)
    if name == "associative":
        assert set(asked) == {task.length - 1}
    else:
        assert len(set(asked)) > 10


def test_a_place_does_not_settle_whether_its_binding_still_holds():
    task, examples = batch("forgetting-mqar", rows=range(4000))
    c = task.config
    keys = examples.inputs["token"][:, : 2 * c.stores : 2]
    same = keys.unsqueeze(1) == keys.unsqueeze(2)  # [B, stores, stores]
    stale, renewed = same.triu(1).any(2), same.tril(-1).any(2)
    assert (stale.sum(1) == c.again).all()
    assert (renewed.sum(1) == c.again).all()
    assert not (stale & renewed).any()
    # Of all orders in which a key's second binding comes after its first, each is as likely.
    place = torch.arange(c.stores) / (c.stores - 1)
    likely = 2 * c.again / c.stores
    torch.testing.assert_close(stale.double().mean(0), likely * (1 - place).double(), atol=0.04, rtol=0)
    torch.testing.assert_close(renewed.double().mean(0), likely * place.double(), atol=0.04, rtol=0)
    # Nor do the questions: those about keys that were bound twice come no sooner than others.
    where = torch.arange(task.length).expand_as(examples.kind).double()
    twice, once = (float(where[examples.kind == kind].mean()) for kind in (3, 2))
    assert twice == pytest.approx(once, abs=0.3)


def test_any_key_may_be_the_one_that_is_asked_for():
    task, examples = batch("associative", rows=range(2000), rebound=0.25)
    asked = examples.kind[:, -1]
    assert (asked == 3).double().mean() == pytest.approx(0.25, abs=0.04)
    right = {"token": torch.nn.functional.one_hot(examples.targets["token"].clamp_min(0), 128)}
    counts = {key: float(value) for key, value in task.counts(right, examples).items()}
    assert task.metrics(counts)["accuracy_overridden"] == 1
    none = {**counts, "overridden": 0.0, "overridden_right": 0.0}
    assert task.metrics(none)["accuracy_overridden"] is None, "what nobody asked for is neither right nor wrong"


def test_gaps_follow_a_power_law():
    """Half of the pairs of positions are taken, the early ones more often; with a = 1 all alike."""
    for power, ratio in ((0.01, 2.0), (1.0, 1.0)):
        task = Mqar(MqarConfig(length=16 + 2 * 64, pairs=8, vocabulary=64, power=power))
        asked = task.batch(seed=0, step=0, rows=range(4000)).kind[:, 16::2] == 2
        share = asked.double().mean(0)
        assert share.sum() == pytest.approx(8)
        early, late = share[:8].mean(), share[-32:].mean()
        assert early / late == pytest.approx(1, abs=0.15) if ratio == 1 else early / late > 5


def test_keys_and_values_are_fresh_in_every_sequence():
    _, examples = batch("mqar", rows=range(400))
    first = examples.inputs["token"][:, 0]
    assert torch.bincount(first, minlength=64)[1:].max() < 20
    assert len(first.unique()) > 55


def test_copying_tells_the_items_in_order():
    task, examples = batch("copying")
    tokens, target = examples.inputs["token"], examples.targets["token"]
    for row in range(len(tokens)):
        items = tokens[row][tokens[row] > 1]
        assert len(items) == 6
        assert torch.equal(target[row, -6:], items)
        assert (tokens[row, -6:] == 1).all()
    assert (target[:, :-6] == -100).all()
    assert task.inputs.tokens[0].vocabulary == 18


def test_induction_asks_for_what_came_after_the_mark():
    _, examples = batch("induction", rows=range(300))
    tokens, target = examples.inputs["token"], examples.targets["token"]
    marks = tokens == 0
    assert (marks.sum(1) == 2).all()
    assert marks[:, -1].all()
    first = marks.long().argmax(1)
    assert torch.equal(target[:, -1], tokens.gather(1, first.unsqueeze(1) + 1).squeeze(1))
    assert len(first.unique()) == 18


@pytest.mark.parametrize("name", SMALL)
def test_metrics_count_what_is_right(name):
    task, examples = batch(name)
    size = task.outputs[0].size
    perfect = {"token": torch.nn.functional.one_hot(examples.targets["token"].clamp_min(0), size).double()}
    counts = {key: float(value) for key, value in task.counts(perfect, examples).items()}
    metrics = task.metrics(counts)
    assert metrics["accuracy"] == metrics["accuracy_novel"] == 1
    assert metrics["opt"] == (examples.kind >= 2).double().mean()
    assert int(task.scored(examples)["token"]) == int((examples.targets["token"] != -100).sum())
    assert task.losses(perfect, examples)["token"] < task.losses({"token": -perfect["token"]}, examples)["token"]
    wrong = task.metrics(
        {key: float(value) for key, value in task.counts({"token": -perfect["token"]}, examples).items()}
    )
    assert wrong["accuracy"] == 0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mqar", {"length": 64, "pairs": 20}, "task.length = 64 is not possible; allowed: at least 80"),
        ("mqar", {"vocabulary": 65}, "task.vocabulary = 65 is not possible; allowed: at least 66,"),
        ("mqar", {"vocabulary": 126, "rebound": 1.0}, "task.vocabulary = 126 is not possible; allowed: at least 127,"),
        ("mqar", {"last": "yes"}, "task.last = 'yes' is not possible; allowed: True or False"),
        ("induction", {"length": 2}, "task.length = 2 is not possible; allowed: an integer of at least 3"),
        ("copying", {"items": 200}, "task.items = 200"),
        ("recall", {}, "task = 'recall' is not possible; allowed: srcd, novel, "),
        ("mqar", {"keys": 3}, "has no field 'keys'"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_told(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make(name, **settings)


@pytest.mark.parametrize(("rebound", "least"), [(0.0, 18), (0.5, 23), (1.0, 31)])
def test_the_smallest_vocabulary_has_as_many_keys_and_values_as_are_bound(rebound, least):
    settings = {"pairs": 8, "length": 64, "rebound": rebound}
    task = make("mqar", vocabulary=least, **settings)
    tokens = task.batch(seed=0, step=0, rows=range(100)).inputs["token"][:, : 2 * task.config.stores]
    for keys, values in zip(tokens[:, ::2].tolist(), tokens[:, 1::2].tolist(), strict=True):
        assert len(set(keys)) == 8
        assert len(set(values)) == task.config.stores
        assert 0 < max(keys) < least // 2 <= min(values)
        assert max(values) < least
    with pytest.raises(ValueError, match=f"at least {least},"):
        make("mqar", vocabulary=least - 1, **settings)


def test_the_shortest_induction_has_its_answer_in_sight():
    _, examples = batch("induction", length=3)
    tokens = examples.inputs["token"]
    assert torch.equal(examples.targets["token"][:, -1], tokens[:, 1])
    assert (tokens[:, 1] > 0).all()
    assert (tokens[:, ::2] == 0).all()


def test_every_task_has_a_name_that_makes_it():
    for name in NAMES:
        if name != "text":  # which needs files
            assert make(name).length > 1
