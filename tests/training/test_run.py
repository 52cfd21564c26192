"""The run folder: one writer, one run, lines that survive a crash."""

import pytest

from tests.training.test_loop import trainer
from torchcram.training.run import RunFolder


def test_a_second_writer_is_refused(tmp_path):
    with (
        RunFolder(tmp_path / "run"),
        pytest.raises(ValueError, match=r"run is being written to by another process \(process \d+\)"),
        RunFolder(tmp_path / "run"),
    ):
        pass
    with RunFolder(tmp_path / "run"):
        pass


def test_a_folder_holds_one_run(tmp_path):
    config = trainer().config
    with RunFolder(tmp_path) as folder:
        with pytest.raises(ValueError, match=r"is not a run folder: it has no config.json"):
            _ = folder.config
        folder.begin(config)
        assert folder.config == config
        with pytest.raises(ValueError, match="holds a run already; resume it"):
            folder.begin(config)


def test_a_file_is_no_place_for_a_run(tmp_path):
    (tmp_path / "notes.md").write_text("")
    for path in (tmp_path / "notes.md", tmp_path / "notes.md" / "run"):
        with pytest.raises(ValueError, match=r"notes.md is a file; runs are kept in folders"):
            RunFolder(path).check_new()
    RunFolder(tmp_path / "new" / "run").check_new()
    assert not (tmp_path / "new").exists()


def test_metrics_survive_a_crash_and_a_resume(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.metrics() == []
    for step, loss in [(10, 3.0), (20, 2.0), (30, 1.0), (20, 2.5)]:
        folder.record({"step": step, "loss": loss})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "lo')
    assert folder.metrics() == [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.5}]
