"""The buffer as a list, one write after another: the specification."""

import torch
from torch import Tensor

from torchcram.ops.records import Expiry


def expiry(
    priority: Tensor,
    mask: Tensor,
    reset: Tensor | None,
    position: Tensor,
    held_priority: Tensor,
    held_position: Tensor,
    slots: int | None,
) -> Expiry:
    batch, length = priority.shape
    reset = torch.zeros_like(mask) if reset is None else reset
    held = held_position.shape[1]
    expires = torch.full((batch, held + length), length, dtype=torch.int64, device=priority.device)
    admitted = torch.zeros_like(mask)
    for b in range(batch):
        # (priority, -age, event): the smallest is the next to go, the newer of two equals first
        buffer: list[tuple[float, int, int]] = []
        for s in range(held):
            if held_position[b, s] >= 0:
                buffer.append((float(held_priority[b, s]), -int(held_position[b, s]), s))
            else:
                expires[b, s] = -1
        for t in range(length):
            event = held + t
            if reset[b, t]:
                for _, _, old in buffer:
                    expires[b, old] = t - 1
                buffer = []
            if not mask[b, t]:
                expires[b, event] = t
                continue
            buffer.append((float(priority[b, t]), -int(position[b, t]), event))
            admitted[b, t] = True
            if slots is not None and len(buffer) > slots:
                first = min(buffer)
                buffer.remove(first)
                expires[b, first[2]] = t
                admitted[b, t] = first[2] != event
    return Expiry(expires, admitted)
