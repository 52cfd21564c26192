"""Explicit state: small dataclasses of tensors, passed in and returned, saved apart from the weights."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchcram.files import replacing

FORMAT = "torchcram-state"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TensorTree:
    """Fields are tensors with the batch first, None, other trees, or tuples of trees."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same tree with `function` applied to every tensor."""
        values = {f.name: _map(getattr(self, f.name), function) for f in dataclasses.fields(self)}
        return dataclasses.replace(self, **values)

    def trees(self, prefix: str = "") -> Iterator[tuple[str, TensorTree]]:
        """This tree and those in it, each with what its tensors' names begin with."""
        yield prefix, self
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, TensorTree):
                yield from value.trees(f"{prefix}{f.name}.")
            elif isinstance(value, tuple):
                for number, item in enumerate(value):
                    yield from item.trees(f"{prefix}{f.name}.{number}.")

    def named_tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its dotted name, in the order in which `map` comes to them."""
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            items = enumerate(value) if isinstance(value, tuple) else [(None, value)]
            for number, item in items:
                name = f"{prefix}{f.name}" if number is None else f"{prefix}{f.name}.{number}"
                if isinstance(item, Tensor):
                    yield name, item
                elif isinstance(item, TensorTree):
                    yield from item.named_tensors(f"{name}.")

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: `state_bytes` of the ledger's definitions."""
        return sum(x.numel() * x.element_size() for _, x in self.named_tensors())


_Tree = TypeVar("_Tree", bound=TensorTree)


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, TensorTree):
        return value.map(function)
    if isinstance(value, tuple):
        return tuple(_map(item, function) for item in value)
    return value


@dataclass(frozen=True, kw_only=True)
class Slotted(TensorTree):
    """A tree of tensors [B, S, ...]: S places, of which some may be empty."""

    any_float: ClassVar[bool] = False
    """Its numbers may be narrower or wider than another's that fits the same model."""

    position: Tensor
    """[B, S]: index in its sequence of what is there; -1 = nothing."""

    @property
    def slots(self) -> int:
        """S, the places there are now."""
        return self.position.shape[1]

    def in_order(self) -> Self:
        """The same in the order of writing, empty places last."""
        order = torch.where(self.position < 0, torch.iinfo(torch.int64).max, self.position).argsort(dim=1)

        def sort(x: Tensor) -> Tensor:
            return x.gather(1, order.view(*order.shape, *(1,) * (x.dim() - 2)).expand_as(x))

        return self.map(sort)

    def widen(self, slots: int) -> Self:
        """The same with at least `slots` places, the added ones empty."""
        extra = slots - self.slots
        if extra <= 0:
            return self

        def grow(x: Tensor) -> Tensor:
            return torch.cat([x, x.new_zeros(x.shape[0], extra, *x.shape[2:])], dim=1)

        empty = self.position.new_full((self.position.shape[0], extra), -1)
        return dataclasses.replace(self.map(grow), position=torch.cat([self.position, empty], dim=1))


@dataclass(frozen=True, kw_only=True)
class EpisodicState(Slotted):
    """A layer's buffer: S slots, S at most M; it grows with the sequence until it has M."""

    key: Tensor
    """[B, S, H, d]"""
    value: Tensor
    """[B, S, H, d]"""
    priority: Tensor
    """[B, S]: write priority, fixed at write."""
    known: Tensor
    """[B, S] bool: it said nothing new when written (by a contradiction index), so it is the first to go."""
    time: Tensor
    """[B, S]: τ of the event, float64."""
    mass: Tensor
    """[B, S]: attention the event has received so far; for reports, never for eviction."""


@dataclass(frozen=True, kw_only=True)
class IndexState(Slotted):
    """What a contradiction index holds: entries in the order of writing."""

    code: Tensor
    """[B, S, r]: of what a token asks for that asks for the entry."""
    dead: Tensor
    """[B, S] bool: taken out by a later write that said what was expected."""


@dataclass(frozen=True, kw_only=True)
class BlockState(TensorTree):
    """What one layer remembers of each sequence."""

    working: Tensor
    """[B, D]: the decaying state of working memory."""
    prediction: Tensor
    """[B, 1, R]: what working memory expects its next input to be is made of this."""
    recent: Tensor | None
    """[B, W - 1, D]: last inputs of the short convolution, nearest first; None without one."""
    episodic: EpisodicState | None
    """None in a layer that owns no buffer."""
    index: IndexState | None = None
    """None in a layer that owns no contradiction index."""


@dataclass(frozen=True, kw_only=True)
class SequenceState(TensorTree):
    """What a model remembers of each sequence of a batch; each kind of model has its own kind of layers."""

    fingerprint: str
    """Of the config of the model it belongs to."""
    position: Tensor
    """[B]: real positions seen."""
    time: Tensor
    """[B]: τ of the last position, float64."""
    pooled: Tensor | None
    """[B, D]: sum of the final hidden states, for classification heads; None without one."""
    layers: tuple[TensorTree, ...]

    @property
    def batch(self) -> int:
        """B, sequences in this state."""
        return self.position.shape[0]

    def layout(self) -> dict[str, str]:
        """Dtype and shape of every tensor, apart from the number of sequences and of slots, if these agree."""
        found = {}
        for path, tree in self.trees():
            given = 2 if isinstance(tree, Slotted) else 1
            any_float = isinstance(tree, Slotted) and tree.any_float
            own = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
            tensors = {name: x for name, x in own.items() if isinstance(x, Tensor)}
            for name, x in tensors.items():
                shape = list(x.shape[given:]) if x.dim() >= given and len(x) == self.batch else "of another batch"
                dtype = "of floats" if any_float and x.is_floating_point() else x.dtype
                found[path + name] = f"{dtype} {shape}"
            if given == 2 and len({x.shape[1:2] for x in tensors.values()}) > 1:
                found[path.rstrip(".")] = "of unequal slots"
        return found

    def detach(self) -> Self:
        """Cut the graph: training on the next chunk does not reach back into this one."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> Self:
        """A copy on another device."""
        return self.map(lambda x: x.to(device))

    def select(self, rows: Tensor | Sequence[int]) -> Self:
        """The state of some sequences of the batch: their numbers, in any order, repeated if wanted, or a mask [B]."""
        index = torch.as_tensor(rows, device=self.position.device)
        index = index.nonzero().squeeze(-1) if index.dtype == torch.bool else index.long()
        if index.dim() != 1 or (index.numel() and not (0 <= int(index.min()) <= int(index.max()) < self.batch)):
            raise ValueError(f"rows = {index.tolist()} is not possible; allowed: 0 to {self.batch - 1}")
        return self.map(lambda x: x.index_select(0, index))

    def split(self, sizes: int | Sequence[int] = 1) -> list[Self]:
        """Cut the batch into states of the given sizes (a number: equal parts of that size)."""
        counts = [len(part) for part in torch.arange(self.batch).split(sizes)]  # type: ignore[no-untyped-call]
        ends = torch.tensor(counts).cumsum(0).tolist()
        return [
            self.map(lambda x, a=end - size, b=end: x[a:b])  # type: ignore[misc]
            for size, end in zip(counts, ends, strict=True)
        ]

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """The inverse of `split`; buffers of different length are widened to the longest."""
        if not states:
            raise ValueError("there is no state to join")
        if len({s.fingerprint for s in states}) > 1:
            raise ValueError("the states belong to models of different configs and cannot be joined")
        widened = aligned(states)
        parts = [iter([x for _, x in state.named_tensors()]) for state in widened]
        return widened[0].map(lambda _: torch.cat([next(part) for part in parts]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to one safetensors file, whole or not at all."""
        tensors = {name: x.detach().contiguous().cpu() for name, x in self.named_tensors()}
        metadata = {"format": FORMAT, "version": str(VERSION), "fingerprint": self.fingerprint}
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Read what `save` wrote. A file that is damaged or of a newer format is a `ValueError`."""
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is not a readable state file: {error}") from error
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{path} is not a torchcram state (format = {metadata.get('format')!r})")
        if metadata.get("version") != str(VERSION):
            raise ValueError(
                f"{path} has state format {metadata.get('version')}, this torchcram reads {VERSION}; upgrade torchcram"
            )
        try:
            return _rebuild(cls, tensors, fingerprint=metadata["fingerprint"])
        except KeyError as error:
            raise ValueError(f"{path} lacks the entry {error}; the file is damaged") from error


@dataclass(frozen=True, kw_only=True)
class CramState(SequenceState):
    """What a `Cram` remembers of each sequence of a batch."""

    layers: tuple[BlockState, ...]


def aligned(trees: Sequence[_Tree]) -> list[_Tree]:
    """Trees of one kind, with as many slots in each part as any of them has there."""
    first = trees[0]
    if isinstance(first, Slotted):
        slots = max(tree.slots for tree in trees)  # type: ignore[attr-defined]
        return [tree.widen(slots) for tree in trees]  # type: ignore[attr-defined]
    changes: list[dict[str, Any]] = [{} for _ in trees]
    for f in dataclasses.fields(first):
        values = [getattr(tree, f.name) for tree in trees]
        if isinstance(values[0], TensorTree):
            values = aligned(values)
        elif isinstance(values[0], tuple):
            values = list(zip(*(aligned(parts) for parts in zip(*values, strict=True)), strict=True))
        for change, value in zip(changes, values, strict=True):
            change[f.name] = value
    return [dataclasses.replace(tree, **change) for tree, change in zip(trees, changes, strict=True)]


def _rebuild(kind: type[_Tree], tensors: Mapping[str, Tensor], prefix: str = "", **known: Any) -> _Tree:
    """A tree from its tensors by name: what the types of its fields say that it can hold."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = dict(known)
    for f in dataclasses.fields(kind):
        if f.name in known:
            continue
        name = prefix + f.name
        options = [a for a in (typing.get_args(hints[f.name]) or (hints[f.name],)) if a is not type(None)]
        optional = type(None) in typing.get_args(hints[f.name])
        if typing.get_origin(hints[f.name]) is tuple:
            parts: list[TensorTree] = []
            while any(key.startswith(f"{name}.{len(parts)}.") for key in tensors):
                parts.append(_rebuild(options[0], tensors, f"{name}.{len(parts)}."))
            values[f.name] = tuple(parts)
        elif options[0] is Tensor:
            values[f.name] = tensors.get(name) if optional else tensors[name]
        elif optional and not any(key.startswith(f"{name}.") for key in tensors):
            values[f.name] = None
        else:
            values[f.name] = _rebuild(options[0], tensors, f"{name}.")
    return kind(**values)
