"""Explicit state: small dataclasses of tensors, passed in and returned, saved apart from the weights."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchcram.files import replacing

FORMAT = "torchcram-state"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class _TensorTree:
    """Fields are tensors with the batch first, None, other trees, or tuples of trees."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same tree with `function` applied to every tensor."""
        values = {f.name: _map(getattr(self, f.name), function) for f in dataclasses.fields(self)}
        return dataclasses.replace(self, **values)

    def named_tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its dotted name."""
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            items = enumerate(value) if isinstance(value, tuple) else [(None, value)]
            for number, item in items:
                name = f"{prefix}{f.name}" if number is None else f"{prefix}{f.name}.{number}"
                if isinstance(item, Tensor):
                    yield name, item
                elif isinstance(item, _TensorTree):
                    yield from item.named_tensors(f"{name}.")


_Tree = TypeVar("_Tree", bound=_TensorTree)


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, _TensorTree):
        return value.map(function)
    if isinstance(value, tuple):
        return tuple(_map(item, function) for item in value)
    return value


@dataclass(frozen=True, kw_only=True)
class EpisodicState(_TensorTree):
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
    position: Tensor
    """[B, S]: index of the event in its sequence; -1 = empty slot."""
    mass: Tensor
    """[B, S]: attention the event has received so far; for reports, never for eviction."""

    @property
    def slots(self) -> int:
        """S, the slots there are now."""
        return self.position.shape[1]

    def widen(self, slots: int) -> EpisodicState:
        """The same buffer with at least `slots` slots, the added ones empty."""
        return _widen(self, slots)


@dataclass(frozen=True, kw_only=True)
class IndexState(_TensorTree):
    """What a contradiction index holds: E entries in the order of writing."""

    code: Tensor
    """[B, E, r]: of what a token asks for that asks for the entry."""
    position: Tensor
    """[B, E]: of the write in its sequence; -1 = none."""
    dead: Tensor
    """[B, E] bool: taken out by a later write that said what was expected."""

    @property
    def entries(self) -> int:
        """E."""
        return self.position.shape[1]

    def widen(self, entries: int) -> IndexState:
        """The same index with at least `entries` entries, the added ones empty."""
        return _widen(self, entries)


_Slotted = TypeVar("_Slotted", EpisodicState, IndexState)


def _widen(tree: _Slotted, size: int) -> _Slotted:
    """A tree of tensors [B, S, ...] with at least `size` places, those added empty: at position -1."""
    extra = size - tree.position.shape[1]
    if extra <= 0:
        return tree

    def grow(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(x.shape[0], extra, *x.shape[2:])], dim=1)

    empty = tree.position.new_full((tree.position.shape[0], extra), -1)
    return dataclasses.replace(tree.map(grow), position=torch.cat([tree.position, empty], dim=1))


@dataclass(frozen=True, kw_only=True)
class BlockState(_TensorTree):
    """What one layer remembers of each sequence."""

    working: Tensor
    """[B, D]: the decaying state of working memory."""
    prediction: Tensor
    """[B, 1, D]: what working memory expects its next input to be."""
    recent: Tensor | None
    """[B, W - 1, D]: last inputs of the short convolution, nearest first; None without one."""
    episodic: EpisodicState | None
    """None in a layer that owns no buffer."""
    index: IndexState | None = None
    """None in a layer that owns no contradiction index."""


@dataclass(frozen=True, kw_only=True)
class CramState(_TensorTree):
    """What a model remembers of each sequence of a batch."""

    fingerprint: str
    """Of the config of the model it belongs to."""
    position: Tensor
    """[B]: real positions seen."""
    time: Tensor
    """[B]: τ of the last position, float64."""
    pooled: Tensor | None
    """[B, D]: sum of the final hidden states, for classification heads; None without one."""
    layers: tuple[BlockState, ...]

    @property
    def batch(self) -> int:
        """B, sequences in this state."""
        return self.position.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: `state_bytes` of the ledger's definitions."""
        return sum(x.numel() * x.element_size() for _, x in self.named_tensors())

    def layout(self) -> dict[str, str]:
        """Dtype and shape of every tensor, apart from the number of sequences and of slots, if these agree."""
        found = {}
        for name, x in self.named_tensors():
            given = 2 if ".episodic." in name or ".index." in name else 1
            shape = list(x.shape[given:]) if x.dim() >= given and len(x) == self.batch else "of another batch"
            found[name] = f"{x.dtype} {shape}"
        for number, layer in enumerate(self.layers):
            for part, tree in (("episodic", layer.episodic), ("index", layer.index)):
                if tree is not None and len({x.shape[1:2] for _, x in tree.named_tensors()}) > 1:
                    found[f"layers.{number}.{part}"] = "of unequal slots"
        return found

    def detach(self) -> CramState:
        """Cut the graph: training on the next chunk does not reach back into this one."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> CramState:
        """A copy on another device."""
        return self.map(lambda x: x.to(device))

    def select(self, rows: Tensor | Sequence[int]) -> CramState:
        """The state of some sequences of the batch: their numbers, in any order, repeated if wanted, or a mask [B]."""
        index = torch.as_tensor(rows, device=self.position.device)
        index = index.nonzero().squeeze(-1) if index.dtype == torch.bool else index.long()
        if index.dim() != 1 or (index.numel() and not (0 <= int(index.min()) <= int(index.max()) < self.batch)):
            raise ValueError(f"rows = {index.tolist()} is not possible; allowed: 0 to {self.batch - 1}")
        return self.map(lambda x: x.index_select(0, index))

    def split(self, sizes: int | Sequence[int] = 1) -> list[CramState]:
        """Cut the batch into states of the given sizes (a number: equal parts of that size)."""
        counts = [len(part) for part in torch.arange(self.batch).split(sizes)]  # type: ignore[no-untyped-call]
        ends = torch.tensor(counts).cumsum(0).tolist()
        return [
            self.map(lambda x, a=end - size, b=end: x[a:b])  # type: ignore[misc]
            for size, end in zip(counts, ends, strict=True)
        ]

    @staticmethod
    def join(states: Sequence[CramState]) -> CramState:
        """The inverse of `split`; buffers of different length are widened to the longest."""
        if not states:
            raise ValueError("there is no state to join")
        if len({s.fingerprint for s in states}) > 1:
            raise ValueError("the states belong to models of different configs and cannot be joined")
        widened = [
            dataclasses.replace(state, layers=tuple(_widest(states, i, layer) for i, layer in enumerate(state.layers)))
            for state in states
        ]
        parts = [iter([x for _, x in state.named_tensors()]) for state in widened]
        return widened[0].map(lambda _: torch.cat([next(part) for part in parts]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to one safetensors file, whole or not at all."""
        tensors = {name: x.detach().contiguous().cpu() for name, x in self.named_tensors()}
        metadata = {"format": FORMAT, "version": str(VERSION), "fingerprint": self.fingerprint}
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata)

    @staticmethod
    def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> CramState:
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
            return _rebuild(tensors, metadata["fingerprint"])
        except KeyError as error:
            raise ValueError(f"{path} lacks the entry {error}; the file is damaged") from error


def _widest(states: Sequence[CramState], number: int, layer: BlockState) -> BlockState:
    """A layer with as many slots and entries as any of the states has in it."""
    episodic, index = layer.episodic, layer.index
    if episodic is not None:
        episodic = episodic.widen(max(s.layers[number].episodic.slots for s in states))  # type: ignore[union-attr]
    if index is not None:
        index = index.widen(max(s.layers[number].index.entries for s in states))  # type: ignore[union-attr]
    return dataclasses.replace(layer, episodic=episodic, index=index)


def _rebuild(tensors: dict[str, Tensor], fingerprint: str) -> CramState:
    layers: list[BlockState] = []
    while f"layers.{len(layers)}.working" in tensors:
        prefix = f"layers.{len(layers)}."
        layers.append(
            BlockState(
                working=tensors[f"{prefix}working"],
                prediction=tensors[f"{prefix}prediction"],
                recent=tensors.get(f"{prefix}recent"),
                episodic=_part(EpisodicState, tensors, f"{prefix}episodic."),
                index=_part(IndexState, tensors, f"{prefix}index."),
            )
        )
    return CramState(
        fingerprint=fingerprint,
        position=tensors["position"],
        time=tensors["time"],
        pooled=tensors.get("pooled"),
        layers=tuple(layers),
    )


def _part(kind: type[_Tree], tensors: dict[str, Tensor], prefix: str) -> _Tree | None:
    if not any(name.startswith(prefix) for name in tensors):
        return None
    return kind(**{f.name: tensors[f"{prefix}{f.name}"] for f in dataclasses.fields(kind)})
