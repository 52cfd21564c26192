"""The Euler steps with one saved tensor a step: h^(k) is rebuilt from the start and the tanh values."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def euler_steps(h: Tensor, drive: Tensor, gate: Tensor, weight: Tensor, steps: int) -> Tensor:
    with torch.autocast(h.device.type, enabled=False):  # all is as wide as h
        others = (x.to(h.dtype) for x in (drive, gate, weight))
        out: Tensor = _EulerSteps.apply(h, *others, steps)  # type: ignore[no-untyped-call]
    return out


class _EulerSteps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, drive: Tensor, gate: Tensor, weight: Tensor, steps: int) -> Tensor:
        width = h.shape[-1]
        start = h.reshape(-1, width)
        drive, gate = drive.reshape(-1, width), gate.reshape(-1, width)
        state, slopes = start.clone(), []
        for _ in range(steps):
            slope = torch.addmm(drive, state, weight.t()).tanh_()
            state.addcmul_(gate, slope, value=1 / steps)
            slopes.append(slope)
        ctx.steps = steps
        ctx.save_for_backward(start, gate, weight, *slopes)
        return state.view(h.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        start, gate, weight, *slopes = ctx.saved_tensors
        share = 1 / ctx.steps
        states = [start]
        for slope in slopes[:-1]:
            states.append(torch.addcmul(states[-1], gate, slope, value=share))
        g = grad.reshape(start.shape).clone()
        grad_drive, grad_gate = torch.zeros_like(start), torch.zeros_like(start)
        grad_weight = torch.zeros_like(weight)
        for slope, state in zip(reversed(slopes), reversed(states), strict=True):
            grad_gate.addcmul_(g, slope, value=share)
            inner = (g * gate).mul_(torch.addcmul(torch.ones_like(slope), slope, slope, value=-1)).mul_(share)
            grad_drive += inner
            grad_weight.addmm_(inner.t(), state)
            g.addmm_(inner, weight)
        shape = grad.shape
        return g.view(shape), grad_drive.view(shape), grad_gate.view(shape), grad_weight, None
