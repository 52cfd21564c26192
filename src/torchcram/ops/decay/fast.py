"""The recurrence in O(N) work and O(log N) tensor operations, with a backward that is a scan as well."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_SHORT = 8  # below this many positions a plain loop needs fewer tensor operations than halving


def decay_scan(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    # Narrow inputs (autocast, bfloat16 models) are added up in float32: what decays slowly would be lost otherwise.
    wide = torch.promote_types(torch.promote_types(x.dtype, rate.dtype), torch.float32)
    inputs = x.to(wide), rate.to(wide), gap.to(wide), reset, initial.to(wide)
    states: Tensor = _DecayScan.apply(*inputs)  # type: ignore[no-untyped-call]
    return states.to(x.dtype), states[:, -1].clone()  # a view would keep every state alive


class _DecayScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> Tensor:
        decay = torch.exp(-rate * gap.unsqueeze(-1))
        decay.masked_fill_(reset.unsqueeze(-1), 0.0)
        first = torch.addcmul(x[:, 0], decay[:, 0], initial)
        states = _scan(decay, torch.cat([first.unsqueeze(1), x[:, 1:]], dim=1))
        ctx.save_for_backward(decay, states, rate, gap, initial)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        decay, states, rate, gap, initial = ctx.saved_tensors
        # g_t = grad_t + a_{t+1} g_{t+1}: the same recurrence, run from the end.
        ahead = torch.cat([torch.zeros_like(decay[:, :1]), decay[:, 1:].flip(1)], dim=1)
        total = _scan(ahead, grad.flip(1)).flip(1)
        before = torch.cat([initial.unsqueeze(1), states[:, :-1]], dim=1)
        through = total * before * decay
        grad_rate = -torch.einsum("bnd,bn->d", through, gap) if ctx.needs_input_grad[1] else None
        grad_gap = -torch.einsum("bnd,d->bn", through, rate) if ctx.needs_input_grad[2] else None
        return total, grad_rate, grad_gap, None, decay[:, 0] * total[:, 0]


def _scan(decay: Tensor, x: Tensor) -> Tensor:
    """Join neighbours in pairs, scan the half-length sequence of pairs, then fill in the places between."""
    length = x.shape[1]
    if length <= _SHORT:
        out = x.clone()
        for t in range(1, length):
            out[:, t].addcmul_(decay[:, t], out[:, t - 1])
        return out
    even = length - length % 2
    later = decay[:, 1:even:2]
    pair_x = torch.addcmul(x[:, 1:even:2], later, x[:, 0:even:2])
    ends = _scan(later * decay[:, 0:even:2], pair_x)
    out = torch.empty_like(x)
    out[:, 0] = x[:, 0]
    out[:, 1:even:2] = ends
    out[:, 2::2] = torch.addcmul(x[:, 2::2], decay[:, 2::2], ends[:, : (length - 1) // 2])
    return out
