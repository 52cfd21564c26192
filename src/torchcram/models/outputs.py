"""From the residual stream to predictions, a head for each output."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchcram.config import OutputConfig
from torchcram.memory.precision import wide
from torchcram.memory.timeline import Timeline


class Heads(nn.Module):
    """A linear map a head. Heads of kind `classification` see the mean over a sequence's positions so far."""

    def __init__(self, width: int, outputs: Sequence[OutputConfig]) -> None:
        super().__init__()
        self.outputs = tuple(outputs)
        self.maps = nn.ModuleDict({f"{o.name}_head": nn.Linear(width, o.size) for o in outputs})

    @property
    def pools(self) -> bool:
        """Whether any head needs a mean over the sequence."""
        return any(o.kind == "classification" for o in self.outputs)

    def forward(self, x: Tensor, timeline: Timeline, pooled: Tensor | None) -> tuple[dict[str, Tensor], Tensor | None]:
        """x [B, N, D] and the sum so far [B, D] to predictions by name, and the next sum.

        A position's prediction is [B, N, size], 0 at padding. A sequence's is [B, size]; if the call marks starts of
        packed sequences, [B, G, size], an entry for each of a row's sequences in order (the one going on from the
        call before comes first), G the most any row has; entries a row does not have are predictions from nothing.
        """
        means = None
        if pooled is not None:
            means, pooled = _means(x, timeline, pooled)
        results = {}
        for output in self.outputs:
            head = self.maps[f"{output.name}_head"]
            if output.kind == "classification":
                results[output.name] = head(means)
            else:
                results[output.name] = timeline.clean(head(x))
        return results, pooled


def _means(x: Tensor, timeline: Timeline, pooled: Tensor) -> tuple[Tensor, Tensor]:
    batch, length, width = x.shape
    narrow, x = x.dtype, wide(x)
    # A row's sequences are numbered from 0; unless one starts at its first real position, 0 is the one carried on.
    before_any = timeline.mask.cumsum(1) - timeline.mask.long() == 0
    begins = (timeline.start & before_any).any(1, keepdim=True)
    number = (timeline.start.cumsum(1) - begins.long()).clamp_min(0)
    groups = int(number.max()) + 1 if timeline.packed else 1
    index = number.unsqueeze(-1).expand(batch, length, width)
    sums = x.new_zeros(batch, groups, width).scatter_add(1, index, x)  # x is 0 at padding
    counts = x.new_zeros(batch, groups).scatter_add(1, number, timeline.mask.to(x.dtype))
    first = torch.nn.functional.pad((~begins).to(x.dtype), (0, groups - 1))  # [B, G]: 1 where a sum is carried on
    sums = sums + first.unsqueeze(-1) * wide(pooled).unsqueeze(1)
    counts = counts + first * timeline.position[:, :1].to(x.dtype)
    means = (sums / counts.clamp_min(1).unsqueeze(-1)).to(narrow)
    last = sums.gather(1, number[:, -1:].unsqueeze(-1).expand(batch, 1, width)).squeeze(1)
    return (means if timeline.packed else means.squeeze(1)), last.to(pooled.dtype)
