"""What is before and after the layers of a step, in plain PyTorch: the specification of their kernels."""

import torch
from torch import Tensor

from torchcram.ops.step import Clock, Entry, Exit, Standing, squares


def begin(
    tokens: Tensor, dt: Tensor, mask: Tensor, standing: Standing, entry: Entry, clock: Clock
) -> tuple[Tensor, Tensor]:
    gap = torch.where(mask, dt / entry.unit, 0)
    clock.gap.copy_(gap)
    clock.log_gap.copy_(gap.log1p())
    clock.mask.copy_(mask)
    clock.position.copy_(torch.stack([standing.position, standing.position + mask.squeeze(1)], 1))
    clock.time.copy_(standing.time.unsqueeze(1) + gap.double())
    phase = gap * entry.frequencies
    seen = torch.cat([gap.log1p(), phase.sin(), phase.cos()], 1).to(entry.weight.dtype)
    x = torch.nn.functional.linear(seen, entry.weight, entry.bias) + entry.table[tokens.squeeze(1)]
    return x, squares(x)


def finish(x: Tensor, squares: Tensor, clock: Clock, tally: Tensor, standing: Standing, exit: Exit) -> Tensor:
    actions, writes, pairs = tally.unbind(1)
    reads = actions == 1
    dense = ((clock.position[:, :1] + 1) * clock.mask).sum()
    whole = torch.stack([clock.mask.sum(), reads.any(0).sum(), dense])
    standing.counts.add_(torch.cat([whole, reads.sum(1), pairs.sum(1), writes.sum(1)]))
    standing.position.copy_(clock.position[:, 1])
    standing.time.copy_(clock.time[:, 0])
    scale = (squares.sum(1, keepdim=True) / x.shape[1] + exit.eps).rsqrt()
    normed = (x.float() * scale * exit.norm.float()).to(x.dtype)
    return torch.nn.functional.linear(normed, exit.weight, exit.bias).masked_fill(~clock.mask, 0)
