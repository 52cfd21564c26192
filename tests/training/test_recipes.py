"""What a run's config is made of: size, task, the paper's recipe, and the user's word last."""

import pytest

from torchcram.training.recipes import RECIPES, configure


def test_a_task_brings_what_it_needs_and_the_user_has_the_last_word():
    config = configure("two-token", "medium")
    assert config.settings == {"length": 512}
    assert config.model.episodic.convolution == 4
    assert config.model.episodic.trained_length == 512
    assert config.optimizer.rate == RECIPES["medium"]["optimizer.rate"]

    config = configure("two-token", "medium", settings={"length": 128, "gap": 2}, changes={"batch": 3})
    assert config.settings == {"length": 128, "gap": 2}
    assert config.model.episodic.trained_length == 128
    assert config.batch == 3


@pytest.mark.parametrize("preset", ["large", "paper"])
def test_the_papers_recipe_is_the_papers(preset):
    config = configure("srcd", preset, schedule="paper")
    assert (config.batch, config.steps, config.optimizer.rate, config.optimizer.semantic) == (32, 10_000, 3e-4, 0.1)
    assert config.model.router.quality == "exact"
