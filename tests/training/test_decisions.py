"""The record of which patterns read."""

from pathlib import Path

import pytest
import torch

from torchcram.training.decisions import Decisions, load_decisions

CPU = torch.device("cpu")


def test_counts_queries_and_reads_of_each_pattern(tmp_path: Path) -> None:
    log = Decisions(3, CPU)
    pattern = torch.tensor([[-1, 0, 2, 2], [2, -1, -1, 0]])
    routing = torch.zeros(2, 4, 2, dtype=torch.int8)
    routing[0, 0] = 1  # not a query: counts for no pattern
    routing[0, 2, 1] = 1  # read in the second layer alone
    routing[1, 0] = 2  # recalled, not read
    log.record(7, pattern, routing)
    log.save(tmp_path)
    found = load_decisions(tmp_path)
    assert found["step"].tolist() == [7]
    assert found["asked"].tolist() == [[2, 0, 3]]
    assert found["read"].tolist() == [[0, 0, 1]]


def _record(steps: range, value: int, folder: Path) -> None:
    log = Decisions(1, CPU)
    for step in steps:
        log.record(step, torch.zeros(1, value, dtype=torch.int64), torch.ones(1, value, 1, dtype=torch.int8))
    log.save(folder)


def test_steps_trained_again_replace_the_old_ones(tmp_path: Path) -> None:
    for steps in (range(4), range(4, 8), range(8, 12)):
        _record(steps, 1, tmp_path)
    _record(range(4, 6), 2, tmp_path)  # went back to step 4
    found = load_decisions(tmp_path)
    assert found["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["asked"].flatten().tolist() == [1, 1, 1, 1, 2, 2]


def test_an_overlap_counts_once(tmp_path: Path) -> None:
    _record(range(6), 1, tmp_path)
    _record(range(4, 8), 2, tmp_path)
    assert load_decisions(tmp_path)["asked"].flatten().tolist() == [1, 1, 1, 1, 2, 2, 2, 2]


def test_nothing_recorded_is_told(tmp_path: Path) -> None:
    Decisions(1, CPU).save(tmp_path)
    with pytest.raises(ValueError, match="holds no decisions"):
        load_decisions(tmp_path)
