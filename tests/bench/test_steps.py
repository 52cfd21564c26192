"""The cost of a training step."""

import pytest

from torchcram.bench import steps
from torchcram.training.loop import Trainer
from torchcram.training.recipes import configure

SMALL = {"length": 64, "novel_keys": 64}


def small(**changes):
    names = {name.replace("__", "."): value for name, value in changes.items()}
    trainer = Trainer(configure("srcd", "tiny", settings=SMALL, changes={"batch": 2, **names}))
    trainer.consolidator.released_at, trainer.consolidator.steps = 0, 400
    return trainer


def test_steps_are_timed_from_lesson_to_lesson_and_compared_to_the_first():
    plain = small(model__contradiction__rank=0, consolidation__lessons=1)
    slow = small(consolidation__lessons=4, batch=16)
    lessons = []
    train = slow.train_step
    slow.train_step = lambda: (lessons.append(slow.consolidator.policy().lesson), train())[1]
    first, second = steps.run([plain, slow], repeats=3)
    settled, before = lessons[:16], lessons[16:]
    assert settled == [True, False, False, False] * 4, "one round to warm up, three that count"
    assert before == [True] * 16, "before release every step is one"
    assert (plain.step, slow.step) == (8, 32)
    assert slow.consolidator.released_at == 0
    assert second["dense_to_settled"] == pytest.approx(second["dense_step_ms"] / second["step_ms"])
    assert first["more_than_first"] == 0
    assert second["more_than_first"] > 0
    assert second["step_ms"] / first["step_ms"] - 1 == pytest.approx(second["more_than_first"])
    assert second["forward_ms"] / first["forward_ms"] == pytest.approx(second["forward_to_first"])
    assert (first["index_rank"], second["index_rank"]) == (0, 64)


def test_a_run_that_still_reads_everywhere_is_refused():
    trainer = small()
    trainer.consolidator.released_at = None
    with pytest.raises(ValueError, match="not come far enough"):
        steps.run([trainer])


def test_the_state_after_a_long_sequence_is_weighed():
    cram, transformer = (
        small(model__episodic__slots=8, model__contradiction__rank=0),
        Trainer(configure("srcd", "tiny", settings=SMALL, name="transformer")),
    )
    sizes = [[steps.state_bytes(trainer, length) for length in (256, 512)] for trainer in (cram, transformer)]
    assert sizes[0][0] == sizes[0][1], "a buffer of 8 slots does not grow"
    width, layers = transformer.config.model.block.width, transformer.config.model.layers
    assert sizes[1][1] - sizes[1][0] == pytest.approx(256 * layers * 2 * width * 4, rel=0.1)
    row, other = steps.run([cram, transformer], repeats=1, state_length=128)
    assert "dense_step_ms" not in other
    assert row["state_length"] == 128
    assert row["forward_ms"] > 0
