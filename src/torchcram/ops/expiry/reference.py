"""The buffer as a list of slots, one write after another: the specification."""

import torch
from torch import Tensor

from torchcram.ops.records import Expiry


def expiry(
    priority: Tensor,
    mask: Tensor,
    reset: Tensor,
    position: Tensor,
    held_priority: Tensor,
    held_position: Tensor,
    slots: int | None,
) -> Expiry:
    batch, length = priority.shape
    held = held_position.shape[1]
    expires = torch.full((batch, held + length), length, dtype=torch.int64, device=priority.device)
    slot = torch.full((batch, length), -1, dtype=torch.int64, device=priority.device)
    for b in range(batch):
        # slot -> (priority, -age, event): the smallest is the next to go, the newer of two equals first
        buffer: dict[int, tuple[float, int, int]] = {}
        for s in range(held):
            if held_position[b, s] >= 0:
                buffer[s] = (float(held_priority[b, s]), -int(held_position[b, s]), s)
            else:
                expires[b, s] = -1
        for t in range(length):
            event = held + t
            if reset[b, t]:
                for _, _, old in buffer.values():
                    expires[b, old] = t - 1
                buffer = {}
            if not mask[b, t]:
                expires[b, event] = t
                continue
            entry = (float(priority[b, t]), -int(position[b, t]), event)
            if slots is None or len(buffer) < slots:
                target = len(buffer)
            else:
                target = min(buffer, key=lambda s: buffer[s])
                if entry < buffer[target]:
                    expires[b, event] = t
                    continue
                expires[b, buffer[target][2]] = t
            buffer[target] = entry
            slot[b, t] = target
    return Expiry(expires, slot)
