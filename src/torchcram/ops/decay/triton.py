"""The recurrence as GPU kernels: a program walks along a part of the sequence for a few channels of one row.

Positions are taken a stretch at a time: inside it all states are found together by an associative scan, and its last
state is carried on. If there are too few rows and channels to keep a GPU busy, sequences are cut into parts: a first
walk finds what each part adds to what it is given, then the parts are joined, and a second walk writes the states. The
backward pass is the same from the end, and works the decays out again.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

_STRETCH = 64
_PROGRAMS = 512  # that keep a GPU busy
_PART = 8 * _STRETCH  # positions, at least


def decay_scan(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    states, last = scan(x, rate, gap, reset, initial)
    return states, last


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op("torchcram::decay_scan", mutates_args=())
def scan(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """All states [B, N, D], and the last of them [B, D] in the precision that it was found in."""
    return scan_rows(x.contiguous(), rate, gap, reset, initial)


@torch.library.custom_op("torchcram::decay_scan_backward", mutates_args=())
def scan_backward(
    grad: Tensor, grad_last: Tensor, states: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x [B, N, D], of the rate for each row [B, D], and of the initial state [B, D]."""
    grad_x = torch.empty_like(states)
    return grad_x, *scan_rows_backward(grad, grad_last, states, rate, gap, reset, initial, grad_x)


def scan_rows(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """`scan` of x that may be some of the columns of a tensor: only its last dimension has to be contiguous."""
    batch, length, width = x.shape
    rate, gap, reset, initial = (y.contiguous() for y in (rate, gap, reset, initial))
    states = torch.empty_like(x, memory_format=torch.contiguous_format)
    wide = torch.promote_types(x.dtype, torch.float32)
    last = x.new_empty(batch, width, dtype=wide)
    block, parts, part = _cut(batch, length, width)
    sizes = {"STRETCH": _STRETCH, "BLOCK": block}
    blocks = triton.cdiv(width, block)
    steps = _steps(x)
    with on_device(x):
        begins = initial.unsqueeze(1)
        if parts > 1:
            added, left, begins = (x.new_empty(batch, parts, width, dtype=wide) for _ in range(3))
            ends = (added, left)
            _scan_forward[(batch, blocks, parts)](
                x, rate, gap, reset, initial, states, *ends, length, width, *steps, part, parts, WHOLE=False, **sizes
            )
            _scan_join_parts[(batch, blocks)](added, left, initial, begins, width, parts, BACKWARDS=False, BLOCK=block)
        _scan_forward[(batch, blocks, parts)](
            x, rate, gap, reset, begins, states, last, last, length, width, *steps, part, parts, WHOLE=True, **sizes
        )
    return states, last


def scan_rows_backward(
    grad: Tensor,
    grad_last: Tensor,
    states: Tensor,
    rate: Tensor,
    gap: Tensor,
    reset: Tensor,
    initial: Tensor,
    grad_x: Tensor,
) -> tuple[Tensor, Tensor]:
    """`scan_backward` that writes the gradient of x into `grad_x`, whose last dimension has to be contiguous."""
    batch, length, width = states.shape
    grad, rate, gap, reset, initial = (y.contiguous() for y in (grad.to(states.dtype), rate, gap, reset, initial))
    grad_initial = torch.empty_like(initial)
    block, parts, part = _cut(batch, length, width)
    grad_rate = torch.empty(batch, parts, width, dtype=rate.dtype, device=rate.device)
    sizes = {"STRETCH": _STRETCH, "BLOCK": block}
    blocks = triton.cdiv(width, block)
    wide = torch.promote_types(grad.dtype, torch.float32)
    given = grad_last.to(wide).contiguous().unsqueeze(1)
    grads = grad_x, grad_rate, grad_initial
    steps = _steps(grad_x)
    with on_device(grad):
        if parts > 1:
            added, left, after = (grad.new_empty(batch, parts, width, dtype=wide) for _ in range(3))
            inputs = (grad, states, rate, gap, reset, initial, given)
            _scan_backward[(batch, blocks, parts)](
                *inputs, *grads, added, left, length, width, *steps, part, parts, WHOLE=False, **sizes
            )
            _scan_join_parts[(batch, blocks)](added, left, given, after, width, parts, BACKWARDS=True, BLOCK=block)
            given = after
        inputs = (grad, states, rate, gap, reset, initial, given)
        _scan_backward[(batch, blocks, parts)](
            *inputs, *grads, grad_x, grad_x, length, width, *steps, part, parts, WHOLE=True, **sizes
        )
    return grad_rate.sum(1), grad_initial


def _steps(x: Tensor) -> tuple[int, int]:
    """How far apart rows [B] and positions [N] of x [B, N, D] are in memory."""
    if x.stride(2) != 1:
        raise ValueError("the last dimension is not contiguous")
    return x.stride(0), x.stride(1)


def _cut(batch: int, length: int, width: int) -> tuple[int, int, int]:
    """Channels of a program, into how many parts a sequence is cut, and how many positions those have."""
    block = min(32, triton.next_power_of_2(width))
    programs = batch * triton.cdiv(width, block)
    parts = min(triton.cdiv(_PROGRAMS, programs), length // _PART)
    if parts <= 1:
        return block, 1, length
    part = triton.cdiv(triton.cdiv(length, parts), _STRETCH) * _STRETCH
    return block, triton.cdiv(length, part), part


@scan.register_fake
def _(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(initial.shape, dtype=wide)


@scan_backward.register_fake
def _(
    grad: Tensor, grad_last: Tensor, states: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(states, memory_format=torch.contiguous_format),
        rate.new_empty(initial.shape),
        torch.empty_like(initial, memory_format=torch.contiguous_format),
    )


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    _, rate, gap, reset, initial = inputs
    ctx.save_for_backward(output[0], rate, gap, reset, initial)


def _gradient(ctx: Any, grad: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_rate, grad_initial = scan_backward(grad, grad_last, *ctx.saved_tensors)
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
def _scan_forward(
    X,
    RATE,
    GAP,
    RESET,
    INITIAL,
    STATES,
    ADDED,
    LEFT,
    length,
    width,
    row_step,
    step,
    part,
    parts,
    WHOLE: tl.constexpr,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the states of a part that begins with INITIAL [B, parts, D]; or, not WHOLE, what it adds and leaves.

    WHOLE, what the last part comes to goes to ADDED [B, D]. Rows of X are `row_step` apart, positions `step`.
    """
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    place = tl.arange(0, STRETCH)
    wide = tl.float64 if X.dtype.element_ty == tl.float64 else tl.float32
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    own = (row * parts + number) * width + channel
    carried = tl.zeros((BLOCK,), wide)
    if WHOLE:
        carried += tl.load(INITIAL + own, mask=known, other=0.0).to(wide)
    remains = tl.full((BLOCK,), 1.0, wide)
    end = tl.minimum((number + 1) * part, length)
    for begin in range(number * part, end, STRETCH):
        at = begin + place
        inside = at < end
        decay, _ = _decay(rate, GAP, RESET, row, length, at, inside)
        here = (row * length + at[:, None]) * width + channel[None, :]
        mask = inside[:, None] & known[None, :]
        x = tl.load(X + row * row_step + at[:, None].to(tl.int64) * step + channel[None, :], mask=mask, other=0.0).to(
            wide
        )
        left, added = tl.associative_scan((decay, x), 0, _join)
        states = left * carried[None, :] + added
        if WHOLE:
            tl.store(STATES + here, states.to(STATES.dtype.element_ty), mask=mask)
        else:
            remains *= tl.sum(tl.where(place[:, None] == STRETCH - 1, left, 0.0), 0)
        carried = tl.sum(tl.where(place[:, None] == STRETCH - 1, states, 0.0), 0)
    if WHOLE:
        tl.store(ADDED + row * width + channel, carried, mask=known & (number == parts - 1))
    else:
        tl.store(ADDED + own, carried, mask=known)
        tl.store(LEFT + own, remains, mask=known)


@triton.jit
def _scan_join_parts(ADDED, LEFT, INITIAL, GIVEN, width, parts, BACKWARDS: tl.constexpr, BLOCK: tl.constexpr):
    """What each part is given [B, parts, D]: what the one before it (or after, BACKWARDS) comes to."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    carried = tl.load(INITIAL + row * width + channel, mask=known, other=0.0).to(GIVEN.dtype.element_ty)
    for step in range(parts):
        number = parts - 1 - step if BACKWARDS else step
        own = (row * parts + number) * width + channel
        tl.store(GIVEN + own, carried, mask=known)
        carried = tl.load(LEFT + own, mask=known, other=0.0) * carried + tl.load(ADDED + own, mask=known, other=0.0)


@triton.jit
def _scan_backward(
    GRAD,
    STATES,
    RATE,
    GAP,
    RESET,
    INITIAL,
    GIVEN,
    GRAD_X,
    GRAD_RATE,
    GRAD_INITIAL,
    ADDED,
    LEFT,
    length,
    width,
    row_step,
    step,
    part,
    parts,
    WHOLE: tl.constexpr,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """g_t = grad_t + a_{t+1} g_{t+1}, from the end of a part, given the g after it; a_t's gradient is g_t s_{t-1}.

    Rows of GRAD_X are `row_step` apart, positions `step`.
    """
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    place = tl.arange(0, STRETCH)
    wide = tl.float64 if GRAD.dtype.element_ty == tl.float64 else tl.float32
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    initial = tl.load(INITIAL + row * width + channel, mask=known, other=0.0).to(wide)
    own = (row * parts + number) * width + channel
    carried = tl.zeros((BLOCK,), wide)
    if WHOLE:
        carried += tl.load(GIVEN + own, mask=known, other=0.0).to(wide)
    remains = tl.full((BLOCK,), 1.0, wide)
    grad_rate = tl.zeros((BLOCK,), wide)
    first = number * part
    last = tl.minimum(first + part, length) - 1
    for begin in range(0, last + 1 - first, STRETCH):
        at = last - begin - place
        inside = at >= first
        after, _ = _decay(rate, GAP, RESET, row, length, at + 1, inside & (at + 1 < length))
        here = (row * length + at[:, None]) * width + channel[None, :]
        mask = inside[:, None] & known[None, :]
        grad = tl.load(GRAD + here, mask=mask, other=0.0).to(wide)
        left, added = tl.associative_scan((after, grad), 0, _join)
        total = left * carried[None, :] + added
        if WHOLE:
            there = row * row_step + at[:, None].to(tl.int64) * step + channel[None, :]
            tl.store(GRAD_X + there, total.to(GRAD_X.dtype.element_ty), mask=mask)
            before = tl.load(STATES + here - width, mask=mask & (at > 0)[:, None], other=0.0).to(wide)
            before = tl.where((at == 0)[:, None], initial[None, :], before)
            decay, gap = _decay(rate, GAP, RESET, row, length, at, inside)
            through = tl.where(mask, total * before * decay, 0.0)
            grad_rate -= tl.sum(through * gap.to(wide)[:, None], 0)
            start = tl.where((at == 0)[:, None] & known[None, :], total * decay, 0.0)
            tl.store(
                GRAD_INITIAL + row * width + channel,
                tl.sum(start, 0).to(GRAD_INITIAL.dtype.element_ty),
                mask=known & (number == 0) & (begin + STRETCH > last - first),
            )
        else:
            remains *= tl.sum(tl.where(place[:, None] == STRETCH - 1, left, 0.0), 0)
        carried = tl.sum(tl.where(place[:, None] == STRETCH - 1, total, 0.0), 0)
    if WHOLE:
        tl.store(GRAD_RATE + own, grad_rate, mask=known)
    else:
        tl.store(ADDED + own, carried, mask=known)
        tl.store(LEFT + own, remains, mask=known)
