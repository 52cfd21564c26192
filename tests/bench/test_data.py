"""The cost of making a batch."""

from torchcram.bench import data


def test_a_batch_costs_less_than_the_step_it_is_part_of():
    row = data.run("tiny", "cpu", {"length": 64, "novel_keys": 64}, repeats=3)
    assert row["what"] == "an SRCD batch"
    assert 0 < row["share"] < 0.5
    assert abs(row["share"] * row["ratio"] - 1) < 1e-9
