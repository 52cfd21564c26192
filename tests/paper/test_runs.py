"""The runs of experiments: settings are checked first, failures are told, sizes are what they say."""

from dataclasses import replace

import pytest

from tests.paper.trying import TRY, trying
from torchcram.paper.experiments import EXPERIMENTS
from torchcram.paper.runs import Wanted, train
from torchcram.paper.setup import SIZES


def test_what_cannot_be_trained_is_told_before_anything_is(tmp_path):
    wanted = [
        Wanted(name="good", seeds=1),
        Wanted(name="bad", changes={"optimizer.rate": "-1"}, seeds=1),
    ]
    with pytest.raises(ValueError, match=r"rate=-1-seed=0: optimizer\.rate = -1 is not possible"):
        train(trying(tmp_path), wanted)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_size_is_refused(tmp_path):
    wanted = [Wanted(name="cram", seeds=1)]
    size = replace(TRY, steps=1)
    train(replace(trying(tmp_path), sized=size), wanted)
    with pytest.raises(ValueError, match="choose another folder"):
        train(replace(trying(tmp_path), sized=replace(size, steps=2)), wanted)


def test_a_run_that_fails_is_told(tmp_path):
    (tmp_path / "runs" / "srcd" / "seed=0").mkdir(parents=True)
    (tmp_path / "runs" / "srcd" / "seed=0" / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"1 of 1 runs are not done; .*\n.*seed=0: failed: .*not valid JSON"):
        train(trying(tmp_path), [Wanted(name="cram", seeds=1)])


@pytest.mark.parametrize("scale", SIZES)
def test_every_run_of_every_size_can_be_trained(scale, tmp_path):
    size = SIZES[scale]
    assert size.papers["consolidation.cooling"] == str(round(0.3 * size.paper_steps))
    for name, experiment in EXPERIMENTS.items():
        wanted = experiment.wanted(size)
        assert len({each.name for each in wanted}) == len(wanted), name
        for each in wanted:
            for job in each.jobs(size, tmp_path)[:1]:
                job.check()
        assert experiment.runs(size) == sum(each.seeds for each in wanted)


def test_as_many_values_as_there_is_time_for():
    assert TRY.others("1", "2", "3") == ("1",)
    assert SIZES["gpu"].others("1", "2", "3") == ("1", "2", "3")
