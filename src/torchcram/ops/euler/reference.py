"""The Euler steps as written in the paper: the specification."""

import torch
from torch import Tensor


def euler_steps(h: Tensor, drive: Tensor, gate: Tensor, weight: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        h = (h + gate * torch.tanh(torch.nn.functional.linear(h, weight) + drive) / steps).to(h.dtype)
    return h
