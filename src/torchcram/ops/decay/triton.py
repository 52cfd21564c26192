"""The recurrence as GPU kernels: a program walks along a part of the sequence for a few channels of one row.

Positions are taken a stretch at a time, while the next ones are on their way from memory. A stretch is cut into
segments of four positions, each of which one thread has for some channels: it goes through them to find what they add,
an associative scan over segments finds what each begins with, and the thread goes through its four again. The last
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

_SEGMENTS, _BLOCK, _WARPS = 16, 64, 8
_REGISTERS = 128  # of a thread, so that two programs fit on a multiprocessor
_STRETCH = 4 * _SEGMENTS
_AHEAD = 4  # stretches in turn: one is worked on, the others are on their way from memory
_AHEAD_BACK = 3  # of twice as much
_PROGRAMS = 256  # that keep a GPU busy
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
    rate, gap, initial = (y.contiguous() for y in (rate, _signed(gap, reset), initial))
    states = torch.empty_like(x, memory_format=torch.contiguous_format)
    wide = torch.promote_types(x.dtype, torch.float32)
    last = x.new_empty(batch, width, dtype=wide)
    block, parts, part = _cut(batch, length, width)
    sizes = _sizes(block, _AHEAD)
    blocks = triton.cdiv(width, block)
    steps = _steps(x)
    with on_device(x):
        begins = initial.unsqueeze(1)
        if parts > 1:
            added, left, begins = (x.new_empty(batch, parts, width, dtype=wide) for _ in range(3))
            ends = (added, left)
            _scan_forward[(batch, blocks, parts)](
                x, rate, gap, initial, states, *ends, length, width, *steps, part, parts, WHOLE=False, **sizes
            )
            _scan_join_parts[(batch, blocks)](added, left, initial, begins, width, parts, BACKWARDS=False, BLOCK=block)
        _scan_forward[(batch, blocks, parts)](
            x, rate, gap, begins, states, last, last, length, width, *steps, part, parts, WHOLE=True, **sizes
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
    grad, rate, gap, initial = (y.contiguous() for y in (grad.to(states.dtype), rate, _signed(gap, reset), initial))
    grad_initial = torch.empty_like(initial)
    block, parts, part = _cut(batch, length, width)
    grad_rate = torch.empty(batch, parts, width, dtype=rate.dtype, device=rate.device)
    sizes = _sizes(block, _AHEAD_BACK)
    blocks = triton.cdiv(width, block)
    wide = torch.promote_types(grad.dtype, torch.float32)
    given = grad_last.to(wide).contiguous().unsqueeze(1)
    grads = grad_x, grad_rate, grad_initial
    steps = _steps(grad_x)
    with on_device(grad):
        if parts > 1:
            added, left, after = (grad.new_empty(batch, parts, width, dtype=wide) for _ in range(3))
            inputs = (grad, states, rate, gap, initial, given)
            _scan_backward[(batch, blocks, parts)](
                *inputs, *grads, added, left, length, width, *steps, part, parts, WHOLE=False, **sizes
            )
            _scan_join_parts[(batch, blocks)](added, left, given, after, width, parts, BACKWARDS=True, BLOCK=block)
            given = after
        inputs = (grad, states, rate, gap, initial, given)
        _scan_backward[(batch, blocks, parts)](
            *inputs, *grads, grad_x, grad_x, length, width, *steps, part, parts, WHOLE=True, **sizes
        )
    return grad_rate.sum(1), grad_initial


def _signed(gap: Tensor, reset: Tensor) -> Tensor:
    """Gaps [B, N], below 0 at a reset: what kernels fetch ahead must not be as narrow as a bool."""
    return gap.masked_fill(reset, -1.0)


def _steps(x: Tensor) -> tuple[int, int]:
    """How far apart rows [B] and positions [N] of x [B, N, D] are in memory."""
    if x.stride(2) != 1:
        raise ValueError("the last dimension is not contiguous")
    return x.stride(0), x.stride(1)


def _cut(batch: int, length: int, width: int) -> tuple[int, int, int]:
    """Channels of a program, into how many parts a sequence is cut, and how many positions those have."""
    block = min(_BLOCK, triton.next_power_of_2(width))
    programs = batch * triton.cdiv(width, block)
    parts = min(triton.cdiv(_PROGRAMS, programs), length // _PART)
    if parts <= 1:
        return block, 1, length
    part = triton.cdiv(triton.cdiv(length, parts), _STRETCH) * _STRETCH
    return block, triton.cdiv(length, part), part


def _sizes(block: int, ahead: int) -> dict[str, Any]:
    """What the kernels are compiled for."""
    return {"SEGMENTS": _SEGMENTS, "BLOCK": block, "AHEAD": ahead, "num_warps": _WARPS, "maxnreg": _REGISTERS}


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
def _join_but_last(decay, state, but_decay, but_state, later_decay, later_state, later_but_decay, later_but_state):
    """The same, and also without the last segment: so a scan finds what each segment ends and begins with."""
    return (
        decay * later_decay,
        state * later_decay + later_state,
        decay * later_but_decay,
        state * later_but_decay + later_but_state,
    )


@triton.jit
def _gap(GAP, at, inside):
    """Gaps at some positions: below 0 at a reset, 0 outside the sequence."""
    return tl.load(GAP + at, mask=inside, other=0.0)


@triton.jit
def _decay(rate, gap):
    """exp(-rate · gap) [positions, channels] in the rate's precision; 0 at a reset."""
    gap = gap.to(rate.dtype)[:, None]
    return tl.where(gap < 0, 0.0, tl.exp(-rate[None, :] * gap))


@triton.jit
def _four(X, GAP, at, sign: tl.constexpr, first, end, step, channel, known):
    """X and gaps at four positions each, from `at` on or, with sign -1, back."""
    in_0, in_1, in_2, in_3 = _inside(at, sign, first, end)
    x_0 = _some(X, at, in_0, step, channel, known)
    x_1 = _some(X, at + sign, in_1, step, channel, known)
    x_2 = _some(X, at + 2 * sign, in_2, step, channel, known)
    x_3 = _some(X, at + 3 * sign, in_3, step, channel, known)
    gap_0, gap_1 = _gap(GAP, at, in_0), _gap(GAP, at + sign, in_1)
    gap_2, gap_3 = _gap(GAP, at + 2 * sign, in_2), _gap(GAP, at + 3 * sign, in_3)
    return x_0, x_1, x_2, x_3, gap_0, gap_1, gap_2, gap_3


@triton.jit
def _inside(at, sign: tl.constexpr, first, end):
    """Which of four positions each are in the sequence or its part."""
    one, two, three = at + sign, at + 2 * sign, at + 3 * sign
    return (
        (at >= first) & (at < end),
        (one >= first) & (one < end),
        (two >= first) & (two < end),
        (three >= first) & (three < end),
    )


@triton.jit
def _some(X, at, inside, step, channel, known):
    """X at some positions, `step` apart in memory; 0 outside."""
    place = at[:, None].to(tl.int64) * step + channel[None, :]
    return tl.load(X + place, mask=inside[:, None] & known[None, :], other=0.0)


@triton.jit
def _put(X, x, at, inside, step, channel, known):
    place = at[:, None].to(tl.int64) * step + channel[None, :]
    tl.store(X + place, x.to(X.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit
def _last_of(x, segment, SEGMENTS: tl.constexpr):
    """The last row of x [segments, channels]."""
    return tl.sum(tl.where(segment[:, None] == SEGMENTS - 1, x, 0.0), 0)


@triton.jit
def _scan_forward(
    X,
    RATE,
    GAP,
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
    SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Write the states of a part that begins with INITIAL [B, parts, D]; or, not WHOLE, what it adds and leaves.

    WHOLE, what the last part comes to goes to ADDED [B, D]. Rows of X are `row_step` apart, positions `step`.
    """
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    segment = tl.arange(0, SEGMENTS)
    wide = tl.float64 if X.dtype.element_ty == tl.float64 else tl.float32
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    own = (row * parts + number) * width + channel
    carried = tl.zeros((BLOCK,), wide)
    if WHOLE:
        carried += tl.load(INITIAL + own, mask=known, other=0.0).to(wide)
    remains = tl.full((BLOCK,), 1.0, wide)
    X += row * row_step
    GAP += row * length
    STATES += row * length * width
    first = number * part
    end = tl.minimum(first + part, length)
    for begin in tl.range(first, end, 4 * SEGMENTS, num_stages=AHEAD):
        at = begin + 4 * segment
        x_0, x_1, x_2, x_3, gap_0, gap_1, gap_2, gap_3 = _four(X, GAP, at, 1, first, end, step, channel, known)
        x_0, x_1, x_2, x_3 = x_0.to(wide), x_1.to(wide), x_2.to(wide), x_3.to(wide)
        a_0, a_1, a_2, a_3 = _decay(rate, gap_0), _decay(rate, gap_1), _decay(rate, gap_2), _decay(rate, gap_3)
        added = a_3 * (a_2 * (a_1 * x_0 + x_1) + x_2) + x_3
        decay = a_0 * a_1 * (a_2 * a_3)
        if WHOLE:
            left, added, left_before, before = tl.associative_scan(
                (decay, added, tl.full(decay.shape, 1.0, wide), tl.zeros(decay.shape, wide)), 0, _join_but_last
            )
        else:
            left, added = tl.associative_scan((decay, added), 0, _join)
        ends = left * carried[None, :] + added
        if WHOLE:
            begins = left_before * carried[None, :] + before
            state = a_0 * begins + x_0
            in_0, in_1, in_2, in_3 = _inside(at, 1, first, end)
            _put(STATES, state, at, in_0, width, channel, known)
            state = a_1 * state + x_1
            _put(STATES, state, at + 1, in_1, width, channel, known)
            state = a_2 * state + x_2
            _put(STATES, state, at + 2, in_2, width, channel, known)
            state = a_3 * state + x_3
            _put(STATES, state, at + 3, in_3, width, channel, known)
        else:
            remains *= _last_of(left, segment, SEGMENTS)
        carried = _last_of(ends, segment, SEGMENTS)
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
def _slope(total, before, decay, gap, inside, is_first, initial):
    """-1 times what some positions add to the rate's gradient [positions, channels]."""
    before = tl.where(is_first[:, None], initial[None, :], before.to(total.dtype))
    return tl.where(inside[:, None], total * before * decay * gap.to(total.dtype)[:, None], 0.0)


@triton.jit
def _scan_backward(
    GRAD,
    STATES,
    RATE,
    GAP,
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
    SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """g_t = grad_t + a_{t+1} g_{t+1}, from the end of a part, given the g after it; a_t's gradient is g_t s_{t-1}.

    Rows of GRAD_X are `row_step` apart, positions `step`.
    """
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(2)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    segment = tl.arange(0, SEGMENTS)
    wide = tl.float64 if GRAD.dtype.element_ty == tl.float64 else tl.float32
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    initial = tl.load(INITIAL + row * width + channel, mask=known, other=0.0).to(wide)
    own = (row * parts + number) * width + channel
    carried = tl.zeros((BLOCK,), wide)
    if WHOLE:
        carried += tl.load(GIVEN + own, mask=known, other=0.0).to(wide)
    remains = tl.full((BLOCK,), 1.0, wide)
    grad_rate = tl.zeros((SEGMENTS, BLOCK), wide)
    GRAD += row * length * width
    STATES += row * length * width
    GRAD_X += row * row_step
    GAP += row * length
    first = number * part
    end = tl.minimum(first + part, length)
    for begin in tl.range(0, end - first, 4 * SEGMENTS, num_stages=AHEAD):
        at = end - 1 - begin - 4 * segment
        g_0, g_1, g_2, g_3, gap_0, gap_1, gap_2, gap_3 = _four(GRAD, GAP, at, -1, first, end, width, channel, known)
        g_0, g_1, g_2, g_3 = g_0.to(wide), g_1.to(wide), g_2.to(wide), g_3.to(wide)
        after = _gap(GAP, at + 1, (at >= first) & (at + 1 < length))
        in_0, in_1, in_2, in_3 = _inside(at, -1, first, end)
        if WHOLE:  # the states before these positions, and before the first one the initial state
            s_0 = _some(STATES - width, at, in_0 & (at > 0), width, channel, known)
            s_1 = _some(STATES - width, at - 1, in_1 & (at > 1), width, channel, known)
            s_2 = _some(STATES - width, at - 2, in_2 & (at > 2), width, channel, known)
            s_3 = _some(STATES - width, at - 3, in_3 & (at > 3), width, channel, known)
        own_0, own_1, own_2 = _decay(rate, gap_0), _decay(rate, gap_1), _decay(rate, gap_2)
        # Before a part's first position there is nothing more to do: what it came to is kept.
        a_0, a_1 = _decay(rate, after), tl.where(in_1[:, None], own_0, 1.0)
        a_2, a_3 = tl.where(in_2[:, None], own_1, 1.0), tl.where(in_3[:, None], own_2, 1.0)
        added = a_3 * (a_2 * (a_1 * g_0 + g_1) + g_2) + g_3
        decay = a_0 * a_1 * (a_2 * a_3)
        if WHOLE:
            left, added, left_before, before = tl.associative_scan(
                (decay, added, tl.full(decay.shape, 1.0, wide), tl.zeros(decay.shape, wide)), 0, _join_but_last
            )
        else:
            left, added = tl.associative_scan((decay, added), 0, _join)
        ends = left * carried[None, :] + added
        if WHOLE:
            begins = left_before * carried[None, :] + before
            total = a_0 * begins + g_0
            _put(GRAD_X, total, at, in_0, step, channel, known)
            grad_rate += _slope(total, s_0, own_0, gap_0, in_0, at == 0, initial)
            total = a_1 * total + g_1
            _put(GRAD_X, total, at - 1, in_1, step, channel, known)
            grad_rate += _slope(total, s_1, own_1, gap_1, in_1, at == 1, initial)
            total = a_2 * total + g_2
            _put(GRAD_X, total, at - 2, in_2, step, channel, known)
            grad_rate += _slope(total, s_2, own_2, gap_2, in_2, at == 2, initial)
            total = a_3 * total + g_3
            _put(GRAD_X, total, at - 3, in_3, step, channel, known)
            grad_rate += _slope(total, s_3, _decay(rate, gap_3), gap_3, in_3, at == 3, initial)
        else:
            remains *= _last_of(left, segment, SEGMENTS)
        carried = _last_of(ends, segment, SEGMENTS)
    if WHOLE:
        tl.store(GRAD_RATE + own, -tl.sum(grad_rate, 0), mask=known)
        gap = tl.load(GAP).to(wide)
        decay = tl.where(gap < 0, 0.0, tl.exp(-rate * gap))
        grad_initial = (carried * decay).to(GRAD_INITIAL.dtype.element_ty)
        tl.store(GRAD_INITIAL + row * width + channel, grad_initial, mask=known & (number == 0))
    else:
        tl.store(ADDED + own, carried, mask=known)
        tl.store(LEFT + own, remains, mask=known)
