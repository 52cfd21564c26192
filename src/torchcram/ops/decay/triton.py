"""The recurrence as one GPU kernel a direction: a program walks along the sequence for a few channels of one row.

Positions are taken a stretch at a time: inside it all states are found together by an associative scan, and its last
state is carried on. The backward pass is the same walk from the end, and works the decays out again.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

_STRETCH = 64


def decay_scan(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    states = scan(x, rate, gap, reset, initial)
    return states, states[:, -1].clone()  # a view would keep every state alive


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op("torchcram::decay_scan", mutates_args=())
def scan(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> Tensor:
    """All states [B, N, D]."""
    batch, length, width = x.shape
    x, rate, gap, reset, initial = (y.contiguous() for y in (x, rate, gap, reset, initial))
    states = torch.empty_like(x)
    block = min(32, triton.next_power_of_2(width))
    with on_device(x):
        _forward[(batch, triton.cdiv(width, block))](
            x, rate, gap, reset, initial, states, length, width, STRETCH=_STRETCH, BLOCK=block
        )
    return states


@torch.library.custom_op("torchcram::decay_scan_backward", mutates_args=())
def scan_backward(
    grad: Tensor, states: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x [B, N, D], of the rate for each row [B, D], and of the initial state [B, D]."""
    batch, length, width = states.shape
    grad, rate, gap, reset, initial = (y.contiguous() for y in (grad, rate, gap, reset, initial))
    grad_x, grad_initial = torch.empty_like(grad), torch.empty_like(initial)
    grad_rate = torch.empty(batch, width, dtype=rate.dtype, device=rate.device)
    block = min(32, triton.next_power_of_2(width))
    with on_device(grad):
        _backward[(batch, triton.cdiv(width, block))](
            grad,
            states,
            rate,
            gap,
            reset,
            initial,
            grad_x,
            grad_rate,
            grad_initial,
            length,
            width,
            STRETCH=_STRETCH,
            BLOCK=block,
        )
    return grad_x, grad_rate, grad_initial


@scan.register_fake
def _(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@scan_backward.register_fake
def _(
    grad: Tensor, states: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(grad, memory_format=torch.contiguous_format),
        rate.new_empty(initial.shape),
        torch.empty_like(initial, memory_format=torch.contiguous_format),
    )


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    _, rate, gap, reset, initial = inputs
    ctx.save_for_backward(output, rate, gap, reset, initial)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_rate, grad_initial = scan_backward(grad, *ctx.saved_tensors)
    return grad_x, grad_rate.sum(0), None, None, grad_initial


scan.register_autograd(_gradient, setup_context=_remember)


@triton.jit
def _join(decay, state, later_decay, later_state):
    """Two stretches after each other: how much of what came before is left, and what was added."""
    return decay * later_decay, state * later_decay + later_state


@triton.jit
def _decay(rate, GAP, RESET, row, length, at, inside):
    """exp(-rate · gap) [stretch, channels] in the rate's precision; 0 at a reset, 1 outside the sequence."""
    gap = tl.load(GAP + row * length + at, mask=inside, other=0.0)
    reset = tl.load(RESET + row * length + at, mask=inside, other=0)
    decay = tl.exp(-rate[None, :] * gap.to(rate.dtype)[:, None])
    return tl.where(reset[:, None] != 0, 0.0, decay), gap


@triton.jit
def _forward(X, RATE, GAP, RESET, INITIAL, STATES, length, width, STRETCH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    place = tl.arange(0, STRETCH)
    wide = tl.float64 if X.dtype.element_ty == tl.float64 else tl.float32
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    carried = tl.load(INITIAL + row * width + channel, mask=known, other=0.0).to(wide)
    for begin in range(0, length, STRETCH):
        at = begin + place
        inside = at < length
        decay, _ = _decay(rate, GAP, RESET, row, length, at, inside)
        here = (row * length + at[:, None]) * width + channel[None, :]
        mask = inside[:, None] & known[None, :]
        x = tl.load(X + here, mask=mask, other=0.0).to(wide)
        left, added = tl.associative_scan((decay, x), 0, _join)
        states = left * carried[None, :] + added
        tl.store(STATES + here, states.to(STATES.dtype.element_ty), mask=mask)
        carried = tl.sum(tl.where(place[:, None] == STRETCH - 1, states, 0.0), 0)


@triton.jit
def _backward(
    GRAD,
    STATES,
    RATE,
    GAP,
    RESET,
    INITIAL,
    GRAD_X,
    GRAD_RATE,
    GRAD_INITIAL,
    length,
    width,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """g_t = grad_t + a_{t+1} g_{t+1}, from the end; a_t's own gradient is g_t s_{t-1}."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    place = tl.arange(0, STRETCH)
    wide = tl.float64 if GRAD.dtype.element_ty == tl.float64 else tl.float32
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    initial = tl.load(INITIAL + row * width + channel, mask=known, other=0.0).to(wide)
    carried = tl.zeros((BLOCK,), wide)
    grad_rate = tl.zeros((BLOCK,), wide)
    for begin in range(0, length, STRETCH):
        at = length - 1 - begin - place
        inside = at >= 0
        after, _ = _decay(rate, GAP, RESET, row, length, at + 1, inside & (at + 1 < length))
        here = (row * length + at[:, None]) * width + channel[None, :]
        mask = inside[:, None] & known[None, :]
        grad = tl.load(GRAD + here, mask=mask, other=0.0).to(wide)
        left, added = tl.associative_scan((after, grad), 0, _join)
        total = left * carried[None, :] + added
        tl.store(GRAD_X + here, total.to(GRAD_X.dtype.element_ty), mask=mask)
        before = tl.load(STATES + here - width, mask=mask & (at > 0)[:, None], other=0.0).to(wide)
        before = tl.where((at == 0)[:, None], initial[None, :], before)
        decay, gap = _decay(rate, GAP, RESET, row, length, at, inside)
        through = tl.where(mask, total * before * decay, 0.0)
        grad_rate -= tl.sum(through * gap.to(wide)[:, None], 0)
        first = tl.where((at == 0)[:, None] & known[None, :], total * decay, 0.0)
        tl.store(
            GRAD_INITIAL + row * width + channel,
            tl.sum(first, 0).to(GRAD_INITIAL.dtype.element_ty),
            mask=known & (begin + STRETCH >= length),
        )
        carried = tl.sum(tl.where(place[:, None] == STRETCH - 1, total, 0.0), 0)
    tl.store(GRAD_RATE + row * width + channel, grad_rate, mask=known)
