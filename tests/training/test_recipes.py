"""What a run's config is made of: size, task, the paper's recipe, and the user's word last."""

import pytest

from torchcram.config import BASELINES, CONTROLS
from torchcram.models import parameters
from torchcram.training.config import RunConfig
from torchcram.training.loop import Trainer
from torchcram.training.recipes import MODELS, RECIPES, configure


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


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_trained_plainly_and_read_back(name):
    config = configure("two-token", "small", name=name, changes={"optimizer.rate": 0.1})
    assert (config.name, config.consolidation.schedule, config.batch) == (name, "plain", 32)
    assert config.optimizer.rate == 0.1
    assert config.index_rank == 0
    assert RunConfig.from_json(config.to_json()) == config
    with pytest.raises(
        ValueError, match=r"consolidation.schedule = 'adaptive' .* 'plain' for a model without a router"
    ):
        config.override({"consolidation.schedule": "adaptive"})


def test_where_a_binding_is_two_tokens_attention_gets_the_same_convolution():
    for name in ("transformer", "window", "slots", "jamba"):
        assert configure("mqar", "small", name=name).model.attention.convolution == 2
        assert configure("srcd", "small", name=name).model.attention.convolution == 1
    assert configure("mqar", "small", name="mamba").model.attention.convolution == 1, "it has one of its own"


def test_the_papers_schedule_is_not_for_baselines():
    with pytest.raises(ValueError, match="schedule = 'paper'"):
        configure("srcd", "tiny", name="mamba", schedule="paper")


def test_cram_can_be_trained_plainly():
    assert configure("srcd", "tiny", schedule="plain").consolidation.schedule == "plain"


@pytest.mark.parametrize("preset", ["tiny", "medium", "paper"])
@pytest.mark.parametrize("name", CONTROLS)
def test_controls_have_as_many_parameters_as_cram(name, preset):
    control, cram = configure("srcd", preset, name=name), configure("srcd", preset)
    assert parameters(control.model) == pytest.approx(parameters(cram.model), rel=0.01)
    assert control.model.semantic.rank == control.index_rank == 0
    assert control.name == name
    assert control.consolidation.schedule == ("plain" if name == "working" else "adaptive")


@pytest.mark.parametrize("name", MODELS)
def test_other_layers_or_widths_are_matched_as_well(name):
    changes = {"model.layers": 3, "model.block.width": 96}
    like, config = (configure("srcd", "tiny", changes=changes, name=each).model for each in ("cram", name))
    assert (config.layers, config.block.width) == (3, 96)
    assert parameters(config) == pytest.approx(parameters(like), rel=0.002)


def test_a_control_with_working_memory_alone_never_reads():
    small = {"batch": 2, "steps": 2, "evaluate_every": 2, "evaluate_rows": 2}
    trainer = Trainer(configure("srcd", "tiny", name="working", settings={"length": 64}, changes=small))
    (report,) = trainer.run()
    assert report.phase == "train"
    assert report.evaluation.ledger.reads == report.evaluation.ledger.pairs == 0
