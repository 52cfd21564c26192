"""The recurrence as GPU kernels: a program walks along a part of the sequence, for a few hundred channels of one row.

A program is one warp, and each of its threads has some channels at all of a stretch of positions: it goes through them
without asking another thread. To keep a GPU busy sequences are cut into many parts: a first walk finds what each part
adds to what it is given, then the parts are joined, and a second walk writes the states. The backward pass is the same
from the end, and works the decays out again.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device

_STRETCH, _BLOCK = 8, 256  # positions and channels at a time: a thread of a warp loads 16 bytes of each position
_AHEAD = 3  # stretches that are on their way to the chip, or used, at the same time
_PROGRAMS = 1024  # that keep a GPU busy
_PART = 4 * _STRETCH  # positions, at least
_JOINED, _BESIDE = 128, 32  # parts and channels at a time where parts are joined


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
    grid = (batch * parts, triton.cdiv(width, block))
    steps = _steps(x)
    with on_device(x):
        begins = initial
        if parts > 1:
            added, left = (x.new_empty(batch, parts, width, dtype=wide) for _ in range(2))
            _scan_add[grid](x, rate, gap, added, left, length, width, *steps, part, parts, **_sizes(block))
            begins = _join(added, left, initial, backwards=False)
        _scan_forward[grid](x, rate, gap, begins, states, last, length, width, *steps, part, parts, **_sizes(block))
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
    grid = (batch * parts, triton.cdiv(width, block))
    wide = torch.promote_types(grad.dtype, torch.float32)
    given = grad_last.to(wide).contiguous()
    given_to = grad_x, grad_rate, grad_initial
    steps = _steps(grad_x)
    with on_device(grad):
        if parts > 1:
            added, left = (grad.new_empty(batch, parts, width, dtype=wide) for _ in range(2))
            _scan_add_back[grid](grad, rate, gap, added, left, length, width, part, parts, **_sizes(block))
            given = _join(added, left, given, backwards=True)
        _scan_backward[grid](
            *(grad, states, rate, gap, initial, given, *given_to, length, width, *steps, part, parts), **_sizes(block)
        )
    return grad_rate.sum(1), grad_initial


def _join(added: Tensor, left: Tensor, initial: Tensor, *, backwards: bool) -> Tensor:
    """What each part is given [B, parts, D], of what each adds to it and leaves of it, and what the first is given."""
    batch, parts, width = added.shape
    given = torch.empty_like(added)
    _scan_join_parts[(batch, triton.cdiv(width, _BESIDE))](
        added, left, initial, given, width, parts, BACKWARDS=backwards, JOINED=_JOINED, BLOCK=_BESIDE, num_warps=4
    )
    return given


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
    wanted = triton.cdiv(batch * length * triton.cdiv(width, block), _PROGRAMS)
    part = max(_PART, triton.cdiv(wanted, _STRETCH) * _STRETCH)
    parts = triton.cdiv(length, part)
    return (block, parts, part) if parts > 1 else (block, 1, length)


def _sizes(block: int) -> dict[str, Any]:
    """What the kernels are compiled for."""
    return {"STRETCH": _STRETCH, "BLOCK": block, "AHEAD": _AHEAD, "num_warps": 1}


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
def _after(decay, state, later_decay, later_state):
    """Two stretches after each other: how much of what came before is left, and what was added."""
    return decay * later_decay, state * later_decay + later_state


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
def _some(X, at, inside, step, channel, known):
    """X at some positions, `step` apart in memory; 0 outside."""
    place = at[:, None].to(tl.int64) * step + channel[None, :]
    return tl.load(X + place, mask=inside[:, None] & known[None, :], other=0.0)


@triton.jit
def _put(X, x, at, inside, step, channel, known):
    place = at[:, None].to(tl.int64) * step + channel[None, :]
    tl.store(X + place, x.to(X.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit
def _last_of(x, STRETCH: tl.constexpr):
    """The last row of x [positions, channels]."""
    return tl.sum(tl.where((tl.arange(0, STRETCH) == STRETCH - 1)[:, None], x, 0.0), 0)


@triton.jit
def _stretch(X, GAP, RATE, at, inside, step, channel, known, wide: tl.constexpr):
    """From a stretch of positions [STRETCH, BLOCK]: what it leaves of what came before it, and adds to it, up to each.

    Outside nothing is added and all is left, so that the last row is right for a stretch that is cut off.
    """
    x = _some(X, at, inside, step, channel, known).to(wide)
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    return tl.associative_scan((_decay(rate, _gap(GAP, at, inside)), x), 0, _after)


@triton.jit
def _scan_add(
    X,
    RATE,
    GAP,
    ADDED,
    LEFT,
    length,
    width,
    row_step,
    step,
    part,
    parts,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """What a part adds to what it is given, and how much of that it leaves: both [B, parts, D].

    Rows of X are `row_step` apart, positions `step`.
    """
    row, number = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    wide: tl.constexpr = tl.float64 if X.dtype.element_ty == tl.float64 else tl.float32
    X += row * row_step
    GAP += row * length
    first = number * part
    end = tl.minimum(first + part, length)
    carried, remains = tl.zeros((BLOCK,), wide), tl.full((BLOCK,), 1.0, wide)
    for begin in tl.range(first, end, STRETCH, num_stages=AHEAD):
        at = begin + tl.arange(0, STRETCH)
        left, added = _stretch(X, GAP, RATE, at, at < end, step, channel, known, wide)
        left, added = _last_of(left, STRETCH), _last_of(added, STRETCH)
        carried = left * carried + added
        remains *= left
    own = (row * parts + number) * width + channel
    tl.store(ADDED + own, carried, mask=known)
    tl.store(LEFT + own, remains, mask=known)


@triton.jit
def _scan_forward(
    X,
    RATE,
    GAP,
    GIVEN,
    STATES,
    LAST,
    length,
    width,
    row_step,
    step,
    part,
    parts,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """The states of a part that is GIVEN what came before it [B, parts, D], and of the last part the LAST [B, D]."""
    row, number = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    wide: tl.constexpr = tl.float64 if X.dtype.element_ty == tl.float64 else tl.float32
    carried = tl.load(GIVEN + (row * parts + number) * width + channel, mask=known, other=0.0).to(wide)
    X += row * row_step
    GAP += row * length
    STATES += row * length * width
    first = number * part
    end = tl.minimum(first + part, length)
    for begin in tl.range(first, end, STRETCH, num_stages=AHEAD):
        at = begin + tl.arange(0, STRETCH)
        left, added = _stretch(X, GAP, RATE, at, at < end, step, channel, known, wide)
        states = left * carried[None, :] + added
        _put(STATES, states, at, at < end, width, channel, known)
        carried = _last_of(states, STRETCH)
    tl.store(LAST + row * width + channel, carried, mask=known & (number == parts - 1))


@triton.jit
def _scan_join_parts(
    ADDED,
    LEFT,
    INITIAL,
    GIVEN,
    width,
    parts,
    BACKWARDS: tl.constexpr,
    JOINED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What each part is given [B, parts, D]: what the one before it (or after, BACKWARDS) comes to."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    wide: tl.constexpr = GIVEN.dtype.element_ty
    carried = tl.load(INITIAL + row * width + channel, mask=known, other=0.0).to(wide)
    ADDED += row * parts * width
    LEFT += row * parts * width
    GIVEN += row * parts * width
    tl.store(GIVEN + (parts - 1 if BACKWARDS else 0) * width + channel, carried, mask=known)
    for begin in range(0, parts, JOINED):
        turn = begin + tl.arange(0, JOINED)
        number = parts - 1 - turn if BACKWARDS else turn
        inside = turn < parts
        added = _some(ADDED, number, inside, width, channel, known)
        left = tl.where(inside[:, None], _some(LEFT, number, inside, width, channel, known), 1.0)
        left, added = tl.associative_scan((left, added), 0, _after)
        comes_to = left * carried[None, :] + added
        _put(GIVEN, comes_to, number - 1 if BACKWARDS else number + 1, turn + 1 < parts, width, channel, known)
        carried = _last_of(comes_to, JOINED)


@triton.jit
def _scan_add_back(
    GRAD,
    RATE,
    GAP,
    ADDED,
    LEFT,
    length,
    width,
    part,
    parts,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """g_t = grad_t + a_{t+1} g_{t+1}, from the end: what a part adds to the g after it, and what it leaves of that."""
    row, number = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    wide: tl.constexpr = tl.float64 if GRAD.dtype.element_ty == tl.float64 else tl.float32
    GRAD += row * length * width
    GAP += row * length
    first = number * part
    end = tl.minimum(first + part, length)
    carried, remains = tl.zeros((BLOCK,), wide), tl.full((BLOCK,), 1.0, wide)
    for begin in tl.range(0, end - first, STRETCH, num_stages=AHEAD):
        at = end - 1 - begin - tl.arange(0, STRETCH)
        left, added = _stretch_back(GRAD, GAP, RATE, at, at >= first, length, width, channel, known, wide)
        left, added = _last_of(left, STRETCH), _last_of(added, STRETCH)
        carried = left * carried + added
        remains *= left
    own = (row * parts + number) * width + channel
    tl.store(ADDED + own, carried, mask=known)
    tl.store(LEFT + own, remains, mask=known)


@triton.jit
def _stretch_back(GRAD, GAP, RATE, at, inside, length, width, channel, known, wide: tl.constexpr):
    """`_stretch` of gradients, which decay on the way from the position after each; what comes last does not."""
    grad = _some(GRAD, at, inside, width, channel, known).to(wide)
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    return tl.associative_scan((_decay(rate, _gap(GAP, at + 1, inside & (at + 1 < length))), grad), 0, _after)


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
    length,
    width,
    row_step,
    step,
    part,
    parts,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """All g of a part that is GIVEN the one after it [B, parts, D], and what it adds to the rate's gradient.

    a_t's gradient is g_t s_{t-1}. Rows of GRAD_X are `row_step` apart, positions `step`.
    """
    row, number = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    wide: tl.constexpr = tl.float64 if GRAD.dtype.element_ty == tl.float64 else tl.float32
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    initial = tl.load(INITIAL + row * width + channel, mask=known, other=0.0).to(wide)
    own = (row * parts + number) * width + channel
    carried = tl.load(GIVEN + own, mask=known, other=0.0).to(wide)
    grad_rate = tl.zeros((BLOCK,), wide)
    GRAD += row * length * width
    STATES += row * length * width
    GRAD_X += row * row_step
    GAP += row * length
    first = number * part
    end = tl.minimum(first + part, length)
    for begin in tl.range(0, end - first, STRETCH, num_stages=AHEAD):
        at = end - 1 - begin - tl.arange(0, STRETCH)
        inside = at >= first
        # The states before these positions, and before the first one the initial state.
        before = _some(STATES - width, at, inside & (at > 0), width, channel, known).to(wide)
        before = tl.where((at == 0)[:, None], initial[None, :], before)
        left, added = _stretch_back(GRAD, GAP, RATE, at, inside, length, width, channel, known, wide)
        total = left * carried[None, :] + added
        _put(GRAD_X, total, at, inside, step, channel, known)
        carried = _last_of(total, STRETCH)
        # At a reset the decay is 0, and outside a gap is.
        gap = _gap(GAP, at, inside)
        grad_rate += tl.sum(total * before * _decay(rate, gap) * gap.to(wide)[:, None], 0)
    tl.store(GRAD_RATE + own, -grad_rate, mask=known)
    gap = tl.load(GAP).to(wide)
    decay = tl.where(gap < 0, 0.0, tl.exp(-rate * gap))
    grad_initial = (carried * decay).to(GRAD_INITIAL.dtype.element_ty)
    tl.store(GRAD_INITIAL + row * width + channel, grad_initial, mask=known & (number == 0))
