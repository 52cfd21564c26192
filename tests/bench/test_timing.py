"""How things are timed."""

import pytest
import torch
from torch.nn.attention import SDPBackend

from torchcram.bench import timing


def test_the_fastest_attention_alone_decides_with_which_a_model_runs(monkeypatch):
    used, times = [], {"cuDNN": 2.0, "FlashAttention": 1.0}
    monkeypatch.setattr(timing, "_with", lambda kernel, run: lambda: (used.append(kernel), run()))

    def timed(*runs):
        found = []
        for run in runs:
            run()
            found.append(times[_name(used[-1])])
        return found

    monkeypatch.setattr(timing, "_timed", timed)
    calls = []
    kind, best = timing.at_best_for(
        lambda: calls.append("model"), lambda: calls.append("attention"), torch.device("cuda")
    )
    assert kind == "FlashAttention"
    assert set(calls) == {"attention"}, "the model itself did not have to run"
    best()
    assert (calls[-1], used[-1]) == ("model", SDPBackend.FLASH_ATTENTION)


def test_on_a_cpu_there_is_nothing_to_choose():
    run = list
    assert timing.at_best_for(run, list, torch.device("cpu")) == ("default attention", run)


def _name(kernel):
    return next(name for name, backend in timing.BACKENDS.items() if backend == kernel)


@pytest.mark.parametrize(("usual", "best"), [(0.9, "one"), (1.14, "one"), (1.2, "other")])
def test_the_best_of_several_tries_counts_not_what_came_in_between(usual, best, monkeypatch):
    """The usual way is kept, unless another is faster by more than what may be chance."""
    rounds = iter([[9.0, 1.1], [usual, 5.0]] * 10)
    monkeypatch.setattr(timing, "_timed", lambda *_: next(rounds))
    assert timing.best_of({"one": list, "other": list}) == best
