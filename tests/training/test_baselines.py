"""Baselines in the same loop: they learn, are saved and resumed, and count what they do."""

import pytest

from torchcram.config import BASELINES
from torchcram.training.loop import Trainer
from torchcram.training.recipes import MODELS, configure

SETTINGS = {"length": 64, "novel_keys": 16, "values": 4, "patterns": 8}
SMALL = {"steps": 24, "batch": 4, "evaluate_rows": 8, "evaluate_every": 12, "optimizer.warm_up": 3}


def trainer(name: str, **changes) -> Trainer:
    return Trainer(configure("srcd", "tiny", settings=SETTINGS, name=name, changes={**SMALL, **changes}))


@pytest.mark.parametrize("name", BASELINES)
def test_it_learns_and_goes_on_where_it_was(name, tmp_path):
    whole = trainer(name)
    reports = list(whole.run())
    assert reports[-1].phase == "train"
    assert reports[-1].evaluation.losses["dynamics"] < reports[0].evaluation.losses["dynamics"]
    assert reports[-1].evaluation.mean_quality is None
    assert reports[-1].evaluation.kind_hits == {}
    assert whole.consolidator.price == 0

    parts = trainer(name)
    for report in parts.run(tmp_path, stop=lambda: parts.step >= 12):
        assert report.step == 12
    again = trainer(name)
    assert again.restore(tmp_path)
    assert list(again.run())[-1].loss == reports[-1].loss


@pytest.mark.parametrize("name", MODELS)
def test_in_bfloat16_it_takes_a_step_and_is_evaluated(name):
    model = trainer(name, bf16=True, batch=1, evaluate_rows=1)
    assert model.train_step() > 0
    assert model.evaluate().losses["dynamics"] > 0


def test_what_reads_are_worth_is_for_models_that_choose_them():
    with pytest.raises(ValueError, match="models that choose them: cram"):
        trainer("mamba").worth()
