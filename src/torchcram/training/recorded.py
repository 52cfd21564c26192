"""Training steps on a GPU that are recorded, once they are known, and replayed from then on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcram.models.recording import record
from torchcram.ops.rows import Call
from torchcram.tasks import Examples

_PLAIN = 3  # steps of a kind before it is recorded: until then code is compiled, moments are made, lists get room
_MOST = 8  # recordings kept


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a training step leaves on the device."""

    numbers: Tensor
    """[1 + groups of parameters] float64: the loss and the sizes of its gradients."""
    needed: Tensor
    """[lists]: how long lists had to be."""
    call: Call | None
    """Those lists."""
    routing: Tensor
    """[B, N, L]: actions."""
    executed: Tensor
    """[2]: positions that read, and audits in a layer."""

    def fetch(self) -> tuple[list[float], list[float]]:
        """`numbers` and `needed`, for which the host waits once."""
        every = torch.cat([self.numbers, self.needed.to(self.numbers)]).tolist()
        return every[: len(self.numbers)], every[len(self.numbers) :]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A step on examples that are put in the place of those it was recorded with."""

    graph: torch.cuda.CUDAGraph
    examples: Examples
    outcome: Outcome

    def replay(self, examples: Examples) -> Outcome:
        """Do it with others, and overwrite what it left the last time."""
        for held, given in zip(self.examples.tensors(), examples.tensors(), strict=True):
            held.copy_(given)
        self.graph.replay()
        return self.outcome


class Recorder:
    """Recordings of steps of several kinds, which share memory: an outcome lasts until the next step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None
        self._recordings: dict[Hashable, Recording] = {}
        self._seen: Counter[Hashable] = Counter()

    def find(self, kind: Hashable, examples: Examples, step: Callable[[Examples], Outcome]) -> Recording | None:
        """The recording of a kind of step, made now if enough of them were taken otherwise; None if not."""
        key = kind, tuple((x.shape, x.dtype) for x in examples.tensors())
        found = self._recordings.pop(key, None)
        if found is None:
            self._seen[key] += 1
            if self._seen[key] <= _PLAIN:
                return None
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()  # what plain steps had held: a recording has memory of its own
            held = examples.copy()
            graph, outcome = record(lambda: step(held), self.device, warm_up=0, pool=self._pool)
            found = Recording(graph=graph, examples=held, outcome=outcome)
            if len(self._recordings) >= _MOST:
                del self._recordings[next(iter(self._recordings))]
        self._recordings[key] = found  # the last used is the last to go
        return found

    def forget(self) -> None:
        """All of them: tensors that they use were replaced."""
        self._recordings.clear()
        self._seen.clear()
