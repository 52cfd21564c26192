"""The cost of a training step."""

from torchcram.bench import steps
from torchcram.training.loop import Trainer
from torchcram.training.recipes import configure

SMALL = {"length": 64, "novel_keys": 64}


def small(**changes):
    names = {name.replace("__", "."): value for name, value in changes.items()}
    return Trainer(configure("srcd", "tiny", settings=SMALL, changes={"batch": 2, **names}))


def test_steps_are_timed_from_lesson_to_lesson_and_compared_to_the_first():
    plain = small(model__contradiction__rank=0, consolidation__lessons=1)
    slow = small(consolidation__lessons=4, batch=16)
    lessons = []
    train = slow.train_step
    slow.train_step = lambda: (lessons.append(slow.consolidator.steps), train())[1]
    first, second = steps.run([plain, slow], repeats=3)
    assert lessons == list(range(16)), "one round to warm up, three that count"
    assert (plain.step, slow.step) == (4, 16)
    assert first["more_than_first"] == 0
    assert second["more_than_first"] > 0
    assert second["step_ms"] / first["step_ms"] - 1 == second["more_than_first"]
    assert (first["index_rank"], second["index_rank"]) == (0, 64)
