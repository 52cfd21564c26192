"""What was executed, counted: one meaning for every number about attention."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from torchcram import processes


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Counts of one call, or of several added up with `+`. Shares are properties, in 0..1.

    A read is a position whose episodic read was executed in a layer because the model wanted it; an audit is one
    executed only to learn from. With `quality="exact"` every position is read, and counted.
    """

    training: bool
    """Counted while training, when reads are sampled: such reads are reported as `reads_training`."""
    positions: int
    """Real positions (padding is not counted)."""
    positions_reading: int
    """Positions that read in at least one layer."""
    layer_read_counts: tuple[int, ...]
    """Reads of each layer."""
    audit_counts: tuple[int, ...]
    """Audits of each layer."""
    pair_counts: tuple[int, ...]
    """Query-event pairs scored in each layer, audits included, heads not counted."""
    write_counts: tuple[int, ...]
    """Positions written to the buffer of each layer."""
    compared_count: int
    """Pairs of a position and an entry of the contradiction index compared."""
    dense_pairs: int
    """Pairs that causal attention over all positions would score in one layer: N(N+1)/2 a sequence."""
    buffers: int
    """Layers that own a buffer."""

    @property
    def reads(self) -> float:
        """Share of the positions that read in at least one layer."""
        return self.positions_reading / max(1, self.positions)

    @property
    def layer_reads(self) -> float:
        """The same for one layer, averaged over all layers: the paper's attention fraction."""
        return sum(self.layer_read_counts) / max(1, self.positions * len(self.layer_read_counts))

    @property
    def audits(self) -> float:
        """Share of positions audited in a layer, averaged over all layers."""
        return sum(self.audit_counts) / max(1, self.positions * len(self.audit_counts))

    @property
    def pairs(self) -> float:
        """Pairs scored, all of them, as a share of what dense causal attention in every layer would score."""
        return sum(self.pair_counts) / max(1, self.dense_pairs * len(self.pair_counts))

    @property
    def compared(self) -> float:
        """Comparisons with the contradiction index, in the unit of `pairs`; each is of short codes, without a value."""
        return self.compared_count / max(1, self.dense_pairs * len(self.pair_counts))

    @property
    def writes(self) -> float:
        """Share of the positions written, averaged over the layers that own a buffer."""
        return sum(self.write_counts) / max(1, self.positions * self.buffers)

    def __add__(self, other: Ledger) -> Ledger:
        if not isinstance(other, Ledger):
            return NotImplemented
        if self.training != other.training or len(self.pair_counts) != len(other.pair_counts):
            raise ValueError("ledgers of training and evaluation, or of models of other depth, do not add up")
        values: dict[str, Any] = {"training": self.training, "buffers": self.buffers}
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, tuple):
                values[f.name] = tuple(a + b for a, b in zip(mine, theirs, strict=True))
            elif f.name not in values:
                values[f.name] = mine + theirs
        return Ledger(**values)

    def to_dict(self) -> dict[str, float]:
        """The shares under the keys of result files."""
        reads = "reads_training" if self.training else "reads"
        return {
            reads: self.reads,
            "layer_reads": self.layer_reads,
            "audits": self.audits,
            "pairs": self.pairs,
            "compared": self.compared,
            "writes": self.writes,
        }

    def __str__(self) -> str:
        shares = ", ".join(f"{key} {value:.2%}" for key, value in self.to_dict().items())
        return f"{self.positions} positions: {shares}"


def count(
    *,
    training: bool,
    mask: Tensor,
    position: Tensor,
    reads: Sequence[Tensor],
    audits: Sequence[Tensor],
    pairs: Sequence[Tensor],
    writes: Sequence[Tensor],
    compared: Tensor,
    buffers: int,
) -> Ledger:
    """Fill a ledger from what the layers of one call executed in all processes, with one transfer from the device.

    mask and position [B, N]; reads, audits and writes [B, N] bool, pairs [B], an entry a layer;
    compared [B].
    """
    layers = len(reads)
    counts = [
        mask.sum(),
        torch.stack(list(reads)).any(0).sum(),
        torch.where(mask, position + 1, 0).sum(),
        compared.sum(),
        *(x.sum() for group in (reads, audits, pairs, writes) for x in group),
    ]
    positions, reading, dense, comparisons, *rest = processes.total(torch.stack(counts)).tolist()
    by_layer = [tuple(rest[i * layers : (i + 1) * layers]) for i in range(4)]
    return Ledger(
        training=training,
        positions=positions,
        positions_reading=reading,
        layer_read_counts=by_layer[0],
        audit_counts=by_layer[1],
        pair_counts=by_layer[2],
        write_counts=by_layer[3],
        compared_count=comparisons,
        dense_pairs=dense,
        buffers=buffers,
    )


@dataclass(kw_only=True)
class Cost:
    """What a stretch of code cost; filled when its `measure` block ends."""

    seconds: float = 0.0
    flops: int = 0
    """Floating-point operations of the matrix products and attention calls executed."""
    peak_bytes: int = 0
    """Most memory held: of the GPU inside the block; on a CPU the process's resident set so far."""


@contextmanager
def measure(device: torch.device | str = "cpu") -> Iterator[Cost]:
    """`with measure() as cost: model(x)`: seconds, flops and peak bytes of whatever runs inside.

    Counting flops slows small operations down; time what you report without it.
    """
    device = torch.device(device)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    cost = Cost()
    counter = FlopCounterMode(display=False, custom_mapping=_IN_PLACE)
    begin = time.perf_counter()
    with counter:
        yield cost
    if cuda:
        torch.cuda.synchronize(device)
    cost.seconds = time.perf_counter() - begin
    cost.flops = counter.get_total_flops()
    cost.peak_bytes = torch.cuda.max_memory_allocated(device) if cuda else peak_resident_bytes()


def _product_in_place(_total: Sequence[int], a: Sequence[int], b: Sequence[int], **_: object) -> int:
    """Flops of x.addmm_(a, b) and x.baddbmm_(a, b), which torch's counter leaves out."""
    return 2 * math.prod(a) * b[-1]


_IN_PLACE = {torch.ops.aten.addmm_: _product_in_place, torch.ops.aten.baddbmm_: _product_in_place}


def peak_resident_bytes() -> int:
    """The largest resident set this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
