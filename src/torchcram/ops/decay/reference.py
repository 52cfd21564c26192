"""The recurrence as a loop over time: the specification."""

import torch
from torch import Tensor


def decay_scan(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    state, states = initial.to(torch.promote_types(x.dtype, torch.float32)), []
    for t in range(x.shape[1]):
        decay = torch.exp(-rate * gap[:, t, None])
        decay = torch.where(reset[:, t, None], torch.zeros_like(decay), decay)
        state = decay * state + x[:, t]
        states.append(state.to(x.dtype))
    return torch.stack(states, dim=1), state
