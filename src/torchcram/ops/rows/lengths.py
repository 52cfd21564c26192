"""Lengths of lists, remembered: so that the host does not have to wait for a device to learn them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchcram.ops.records import Rows

_OFTEN = 64  # calls after which a list may become shorter
_open: Call | None = None


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
    first call of a kind waits for the device. Compiled code would take what is remembered for constants: it is given
    the room for its lists by whoever calls it, who asks `Call.room` for it and says by `Call.need` what it took.
    """

    def __init__(self, *, steady: bool = False) -> None:
        """`steady`: for lists of which another length costs dearly, such as those of compiled code.

        Then they become shorter only where half would do.
        """
        self.steady = steady
        self._kinds: dict[Hashable, dict[Hashable, _List]] = {}
        self._last: Call | None = None

    @contextmanager
    def kept(self, kind: Hashable = None) -> Iterator[None]:
        """While open, lists have lengths that are known beforehand."""
        global _open
        before, _open = _open, Call(self._kinds.setdefault(kind, {}), self.steady)
        self._last = _open
        try:
            yield
        finally:
            _open = before

    @property
    def last(self) -> Call | None:
        """The last call."""
        return self._last

    @property
    def needed(self) -> Tensor:
        """[lists] int64: how long each list of the last call had to be, on its device."""
        return self._last.needed if self._last is not None else torch.zeros(0, dtype=torch.int64)

    def fit(self, needed: Sequence[float], call: Call | None = None) -> bool:
        """Whether the lists of a call, or the last, had room for what was `needed`; those that had not get it."""
        call = call or self._last
        if call is None:
            return True
        counted = zip(call.counts, needed, strict=True)
        fits = [call.lists[name].fit(int(count)) for name, count in counted]
        return all(fits)

    def rooms(self, kind: Hashable) -> tuple[int, ...] | None:
        """The room that lists of this kind of call have; None if some of it would be a guess."""
        lists = self._kinds.get(kind)
        known = lists is not None and not any(each.guessed for each in lists.values())
        return tuple(each.room for each in lists.values()) if lists is not None and known else None


def longest(rows: Rows) -> Tensor:
    """[]: how many were chosen in the sequence that has most, whether there was room for them or not."""
    assert rows.chosen is not None, "rows of `compact`"
    return _most(rows.chosen)


def _most(count: Tensor) -> Tensor:
    return torch.nn.functional.pad(count, (0, 1)).amax()  # of no sequences, none


def fixed(count: int) -> int:
    """The same. Compiled code takes it for a constant: with one that varies, all sizes that follow from it would."""
    return len([None] * count) if torch.compiler.is_compiling() else count


def kept() -> Call | None:
    """The call whose lengths are kept now, if any."""
    return _open


def compact_within(compact: Callable[[Tensor, int | None], Rows], chosen: Tensor, room: int | None) -> Rows:
    """`compact`, with a length that is kept, if any are and none is asked for."""
    if room is not None:
        return compact(chosen, room)
    return compact(chosen, None) if _open is None else _open.compact(compact, chosen)


@dataclass(kw_only=True)
class _List:
    """One list of a kind of call."""

    most: int
    """Positions of a sequence: no list is longer."""
    room: int
    guessed: bool = False
    """Nobody has seen yet what is needed."""
    steady: bool = False
    """Whether it becomes shorter only by half or more."""
    recent: list[int] = field(default_factory=list)

    def fit(self, needed: int) -> bool:
        fits = needed <= self.room
        self.recent.append(needed)
        if not fits or self.guessed:
            self.guessed = False
            self.room, self.recent = self.roomy(needed), []
        elif len(self.recent) >= _OFTEN:
            enough, self.recent = self.roomy(max(self.recent)), []
            if enough <= (self.room // 2 if self.steady else self.room):
                self.room = enough
        return fits

    def roomy(self, needed: int) -> int:
        """An eighth more, and one of few numbers, since every other length is another shape to make."""
        wanted = needed + needed // 8 + 4
        step = max(16, 1 << max(0, wanted.bit_length() - 4))
        return min(self.most, -(-wanted // step) * step)


class Call:
    """A call while its lists are made."""

    def __init__(self, lists: dict[Hashable, _List], steady: bool = False) -> None:
        self.lists, self.steady = lists, steady
        self.counts: dict[Hashable, Tensor] = {}

    def room(self, name: str, most: int, usual: int) -> int:
        """How much room to give to lists of this name, of at most so many positions each; `usual`, at first."""
        each = self.lists.setdefault(name, _List(most=most, room=min(most, usual), guessed=True, steady=self.steady))
        each.most = most
        return min(each.room, most)

    @property
    def guessing(self) -> bool:
        """Whether some room was given without anybody knowing yet how much is needed."""
        return any(each.guessed for each in self.lists.values())

    @property
    def needed(self) -> Tensor:
        """[lists] int64: how long each list had to be, on its device."""
        return torch.stack(list(self.counts.values())) if self.counts else torch.zeros(0, dtype=torch.int64)

    @property
    def overflows(self) -> Tensor | None:
        """[] bool: whether a list had no room for everything, on the device; None without lists."""
        over = [count > self.lists[name].room for name, count in self.counts.items()]
        return torch.stack(over).any() if over else None

    def need(self, name: str, count: Tensor) -> None:
        """Say how long the longest of these lists had to be."""
        before = self.counts.get(name)
        self.counts[name] = count if before is None else torch.maximum(before, count)

    def compact(self, compact: Callable[[Tensor, int | None], Rows], chosen: Tensor) -> Rows:
        """List the chosen positions [B, N]."""
        number, length = len(self.counts), chosen.shape[1]
        count = self.counts[number] = _most(chosen.sum(1))
        if number not in self.lists:
            each = self.lists[number] = _List(most=length, room=length, steady=self.steady)
            each.room = each.roomy(int(count))
        each = self.lists[number]
        each.most = length  # a list of what is in another has as many positions as that has room
        return compact(chosen, min(each.room, length))
