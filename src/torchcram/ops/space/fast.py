"""In chunks: within one, as attention without a softmax; from one to the next, by a recurrence over their states."""

import torch
from torch import Tensor

from torchcram.ops.decay import decay_scan

_CHUNK = 64


def state_space(
    x: Tensor, decay: Tensor, key: Tensor, query: Tensor, reset: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor]:
    batch, length, heads = x.shape[:3]
    extra = -length % _CHUNK
    if extra:
        x, decay, key, query = (_longer(part, extra) for part in (x, decay, key, query))
        reset = _longer(reset, extra)
    # [B, C, H or G, Q, ...]: chunks of Q positions
    x, key, query = (_chunks(part).transpose(2, 3) for part in (x, key, query))
    elapsed = _chunks(decay).transpose(2, 3).cumsum(3)
    begun = _chunks(reset).cumsum(2).unsqueeze(2)  # sequences begun in the chunk so far
    chunks = x.shape[1]

    # Within a chunk: each position from those before it, of its own sequence.
    order = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool, device=x.device).tril()
    together = order & (begun.unsqueeze(-1) == begun.unsqueeze(-2))
    between = (elapsed.unsqueeze(-1) - elapsed.unsqueeze(-2)).masked_fill(~together, torch.inf)
    scores = query @ key.transpose(-1, -2)
    out = (scores * torch.exp(-between)) @ x

    # What a chunk adds to the state at its end, and what was there before it.
    to_end = (elapsed[..., -1:] - elapsed).masked_fill(begun != begun[..., -1:], torch.inf)
    added = (x * torch.exp(-to_end).unsqueeze(-1)).transpose(-1, -2) @ key  # [B, C, H, p, s]
    # The state is a long sum: under autocast, what is added is narrower.
    flat = added.transpose(1, 2).reshape(batch * heads, chunks, -1).to(initial.dtype)
    gap = elapsed[..., -1].transpose(1, 2).reshape(batch * heads, chunks).to(initial.dtype)
    anew = (begun[..., -1] > 0).expand(batch, chunks, heads).transpose(1, 2).reshape(batch * heads, chunks)
    states, last = decay_scan(flat, torch.ones_like(flat[0, 0]), gap, anew, initial.reshape(batch * heads, -1))
    before = torch.cat([initial.reshape(batch * heads, 1, -1), states[:, :-1]], dim=1)
    before = before.view(batch, heads, chunks, *initial.shape[2:]).transpose(1, 2)
    carried = torch.exp(-elapsed.masked_fill(begun > 0, torch.inf)).unsqueeze(-1)
    out = out + carried * (query @ before.transpose(-1, -2))
    return out.transpose(2, 3).flatten(1, 2)[:, :length], last.view_as(initial)


def _longer(x: Tensor, extra: int) -> Tensor:
    """With positions at the end that add nothing and take no time."""
    return torch.cat([x, x.new_zeros(x.shape[0], extra, *x.shape[2:])], dim=1)


def _chunks(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1, _CHUNK, *x.shape[2:])
