"""The state carried from position to position: the specification."""

import torch
from torch import Tensor


def state_space(
    x: Tensor, decay: Tensor, key: Tensor, query: Tensor, reset: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    heads = x.shape[2]
    state, outs = initial, []
    for t in range(x.shape[1]):
        kept = torch.where(reset[:, t, None], 0, torch.exp(-decay[:, t]))
        k, q = (part[:, t].expand(-1, heads, -1) for part in (key, query))
        state = kept[..., None, None] * state + x[:, t].unsqueeze(-1) * k.unsqueeze(2)
        outs.append((state * q.unsqueeze(2)).sum(-1))
    return torch.stack(outs, dim=1), state
