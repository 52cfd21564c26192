"""Keep a list of the last entries and walk along: the specification."""

import torch
from torch import Tensor


def previous(x: Tensor, carried: Tensor, mask: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    batch, length, _ = x.shape
    depth = carried.shape[1]
    outs = []
    for b in range(batch):
        recent = [carried[b, j] for j in range(depth)]
        rows = []
        for t in range(length + 1):
            age = int(position[b, t])
            rows.append(torch.stack([entry * (j < age) for j, entry in enumerate(recent)]))
            if t < length and mask[b, t]:
                recent = [x[b, t], *recent][:depth]
        outs.append(torch.stack(rows))
    out = torch.stack(outs)
    return out[:, :-1], out[:, -1].clone()
