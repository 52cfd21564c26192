"""A layer's buffer in plain Python: what it holds, whom it evicts, what each position could read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from torchcram import Cram


@dataclass
class Replay:
    """What a buffer did along one row."""

    readable: list[list[int]] = field(default_factory=list)
    """Events each position could read, by their positions in the sequence."""
    written: list[bool] = field(default_factory=list)
    evictions: int = 0
    margin: float = math.inf
    """The least difference of two priorities that decided something."""
    held: list[int] = field(default_factory=list)
    """Positions in the buffer at the end, by slot."""


def replay(
    priorities: Sequence[float], slots: int | None, mask: Sequence[bool] | None = None, start: Sequence[int] = ()
) -> Replay:
    """Run one row; positions in `start` empty the buffer, positions where `mask` is False do not exist."""
    result = Replay()
    buffer: list[tuple[float, int]] = []
    age = 0
    for t, priority in enumerate(priorities):
        if t in start:
            buffer, age = [], 0
        result.readable.append([position for _, position in buffer])
        result.written.append(False)
        if mask is not None and not mask[t]:
            continue
        if slots is None or len(buffer) < slots:
            buffer.append((priority, age))
            result.written[t] = True
        else:
            lowest, second = sorted([*buffer, (math.inf, -1)])[:2]
            result.margin = min(result.margin, abs(priority - lowest[0]))
            if priority > lowest[0]:
                result.margin = min(result.margin, second[0] - lowest[0])
                buffer[buffer.index(lowest)] = (priority, age)
                result.written[t] = True
                result.evictions += 1
        age += 1
    result.held = [position for _, position in buffer]
    return result


class Watch:
    """Records, inside a `with` block, every layer's write priorities and router logits, call after call."""

    def __init__(self, model: Cram) -> None:
        self._model = model
        self._seen: dict[tuple[str, int], list[Tensor]] = {}

    def __enter__(self) -> Watch:
        self._hooks = []
        self._overheard = []
        for number, block in enumerate(self._model.blocks):
            self._listen(block.router, ("router", number))
            if block.router.worth is not None:
                self._listen(block.router.worth, ("worth", number))
            if block.episodic is not None:
                self._overhear(block.episodic, "evictions", ("priority", number), lambda given, _: given[0])
            if block.index is not None:
                self._overhear(block.index, "consult", ("entered", number), lambda _, found: found.entered)
                self._overhear(block.index, "judge", ("index", number), lambda _, found: found[0] - 1)
                self._overhear(block.index, "match", ("index", number), lambda _, match: match)
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for module, method in self._overheard:
            delattr(module, method)

    def priorities(self, layer: int) -> Tensor:
        """[B, N], N over all calls."""
        return torch.cat(self._seen["priority", layer], dim=1)

    def entered(self) -> Tensor:
        """[B, N] bool, N over all calls: what was written entered the contradiction index; none without one."""
        seen = [x for (name, _), found in self._seen.items() if name == "entered" for x in found]
        return torch.cat(seen, dim=1) if seen else torch.zeros_like(self.priorities(0), dtype=torch.bool)

    def logits(self) -> Tensor:
        """Of the routers, [L, B, N, 3], N over all calls."""
        layers = range(len(self._model.blocks))
        return torch.stack([torch.cat(self._seen["router", layer], dim=1) for layer in layers])

    def worth_margin(self) -> float:
        """How near a read's worth came to its price, which is 1 nat."""
        seen = [x - 1 for (name, _), found in self._seen.items() if name == "worth" for x in found]
        return min((float(x.abs().min()) for x in seen), default=math.inf)

    def index_margin(self) -> float:
        """How near the contradiction index came to deciding otherwise, in logits."""
        seen = [x.abs() for (name, _), found in self._seen.items() if name == "index" for x in found if x.numel()]
        return min((float(x.min()) for x in seen), default=math.inf)

    def _overhear(self, module: nn.Module, method: str, key: tuple[str, int], what: Callable) -> None:
        called, seen = getattr(module, method), self._seen.setdefault(key, [])

        def overheard(*given, **named):
            result = called(*given, **named)
            seen.append(what(given, result).detach())
            return result

        setattr(module, method, overheard)
        self._overheard.append((module, method))

    def _listen(self, module: nn.Module, key: tuple[str, int]) -> None:
        seen = self._seen.setdefault(key, [])
        self._hooks.append(module.register_forward_hook(lambda _module, _args, out: seen.append(out.detach())))
