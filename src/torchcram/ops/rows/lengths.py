"""Lengths of lists, remembered: so that the host does not have to wait for a device to learn them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchcram.ops.records import Rows

_OFTEN = 64  # calls after which a list may become shorter
_open: _Call | None = None


class Lengths:
    """Within `kept`, every list that `compact` makes is as long as it had to be before, and a little longer.

        lengths = Lengths()
        while True:
            with lengths.kept():
                out = model(tokens)
            if lengths.fit(lengths.needed.tolist()):  # together with whatever else is fetched from the device
                break

    Lists are told apart by their order in a call. Those of another `kind` of call, which makes others, are kept apart.
    What a list has no room for is left out: a call whose lists did not `fit` is to be repeated, and then they do. The
    first call of a kind waits for the device. Not for compiled code, which would take what is remembered for constants.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, list[_List]] = {}
        self._last: _Call | None = None

    @contextmanager
    def kept(self, kind: Hashable = None) -> Iterator[None]:
        """While open, lists have lengths that are known beforehand."""
        global _open
        before, _open = _open, _Call(self._kinds.setdefault(kind, []))
        self._last = _open
        try:
            yield
        finally:
            _open = before

    @property
    def needed(self) -> Tensor:
        """[lists] int64: how long each list of the last call had to be, on its device."""
        counts = self._last.counts if self._last is not None else []
        return torch.stack(counts) if counts else torch.zeros(0, dtype=torch.int64)

    def fit(self, needed: Sequence[float]) -> bool:
        """Whether the lists of the last call had room for what was `needed`; those that had not get it."""
        lists = self._last.lists if self._last is not None else []
        fits = [each.fit(int(count)) for each, count in zip(lists, needed, strict=True)]
        return all(fits)


def compact_within(compact: Callable[[Tensor, int | None], Rows], chosen: Tensor, room: int | None) -> Rows:
    """`compact`, with a length that is kept, if any are and none is asked for."""
    return compact(chosen, room) if _open is None or room is not None else _open.compact(compact, chosen)


@dataclass(kw_only=True)
class _List:
    """One list of a kind of call."""

    most: int
    """Positions of a sequence: no list is longer."""
    room: int
    recent: list[int] = field(default_factory=list)

    def fit(self, needed: int) -> bool:
        fits = needed <= self.room
        self.recent.append(needed)
        if not fits:
            self.room, self.recent = self.roomy(needed), []
        elif len(self.recent) >= _OFTEN:
            self.room, self.recent = min(self.room, self.roomy(max(self.recent))), []
        return fits

    def roomy(self, needed: int) -> int:
        """A quarter more, and one of few numbers, since every other length is another shape to compile for."""
        wanted = needed + needed // 4 + 4
        step = max(16, 1 << wanted.bit_length() - 3)
        return min(self.most, -(-wanted // step) * step)


class _Call:
    """A call while its lists are made."""

    def __init__(self, lists: list[_List]) -> None:
        self.lists = lists
        self.counts: list[Tensor] = []

    def compact(self, compact: Callable[[Tensor, int | None], Rows], chosen: Tensor) -> Rows:
        number, length = len(self.counts), chosen.shape[1]
        self.counts.append(chosen.sum(1).max() if chosen.numel() else chosen.new_zeros((), dtype=torch.int64))
        if number == len(self.lists):
            each = _List(most=length, room=length)
            each.room = each.roomy(int(self.counts[-1]))
            self.lists.append(each)
        each = self.lists[number]
        each.most = length  # a list of what is in another has as many positions as that has room
        return compact(chosen, min(each.room, length))
