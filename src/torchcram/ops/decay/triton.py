"""The recurrence as GPU kernels: a program walks along a part of the sequence, for a few hundred channels of one row.

A program is one warp, and each of its threads has some channels at all of a stretch of positions: it goes through them
without asking another thread. To keep a GPU busy sequences are cut into many parts: a first walk finds what each part
adds to what it is given, then the parts are joined, and a second walk writes the states. The backward pass is the same
from the end, and works the decays out again. What there is to do for a number is counted in instructions: a dozen more
of them, and memory would wait.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import on_device
from torchcram.ops.instructions import exp2

_STRETCH, _BLOCK = 8, 256  # positions and channels at a time: a thread of a warp loads 16 bytes of each position
_AHEAD = 3  # stretches that are on their way to the chip, or used, at the same time
_PROGRAMS = 1024  # that keep a GPU busy
_PART = 4 * _STRETCH  # positions, at least
_JOINED, _BESIDE = 128, 32  # parts and channels at a time where parts are joined
_FAR = 1e30  # a gap after which nothing is left, whatever the rate
_LEAST = tl.constexpr(1e-20)  # rate: what is not forgotten in that gap is not forgotten in any other either
_LOG2_E = tl.constexpr(math.log2(math.e))


def decay_scan(x: Tensor, rate: Tensor, gap: Tensor, reset: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    states, last = scan(x, rate, far_at_resets(gap, reset), initial)
    return states, last


def far_at_resets(gap: Tensor, reset: Tensor) -> Tensor:
    """Gaps [B, N] as the operators take them, in float32 at least: so large at a reset that nothing is left."""
    gap = gap.to(torch.promote_types(gap.dtype, torch.float32))
    return torch.where(reset, _FAR, gap)


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op("torchcram::decay_scan", mutates_args=())
def scan(x: Tensor, rate: Tensor, gap: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """All states [B, N, D], and the last of them [B, D] in the precision that it was found in."""
    return scan_rows(x.contiguous(), rate, gap, initial)


@torch.library.custom_op("torchcram::decay_scan_backward", mutates_args=())
def scan_backward(
    grad: Tensor, grad_last: Tensor, states: Tensor, rate: Tensor, gap: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x [B, N, D], of the rate for each row [B, D], and of the initial state [B, D]."""
    grad_x = torch.empty_like(states)
    grad_rate, grad_initial, _ = scan_rows_backward(grad, grad_last, states, rate, gap, initial, grad_x)
    return grad_x, grad_rate, grad_initial


def scan_rows(x: Tensor, rate: Tensor, gap: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """`scan` of x that may be some of the columns of a tensor: only its last dimension has to be contiguous."""
    batch, length, width = x.shape
    rate, gap, initial = (y.contiguous() for y in (rate, gap, initial))
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
            _scan_add[grid](
                x, rate, gap, added, left, length, width, *steps, part, parts, **_sizes(states, steps, block)
            )
            begins = _join(added, left, initial, backwards=False)
        _scan_forward[grid](
            *(x, rate, gap, begins, states, last, length, width, *steps, part, parts), **_sizes(states, steps, block)
        )
    return states, last


def scan_rows_backward(
    grad: Tensor,
    grad_last: Tensor,
    states: Tensor,
    rate: Tensor,
    gap: Tensor,
    initial: Tensor,
    grad_x: Tensor,
    *,
    add_up: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`scan_backward` that writes the gradient of x into `grad_x`, whose last dimension has to be contiguous.

    add_up: also its sums over positions [B, D].
    """
    batch, length, width = states.shape
    grad, rate, gap, initial = (y.contiguous() for y in (grad.to(states.dtype), rate, gap, initial))
    grad_initial = torch.empty_like(initial)
    block, parts, part = _cut(batch, length, width)
    grad_rate = torch.empty(batch, parts, width, dtype=rate.dtype, device=rate.device)
    sums = torch.empty_like(grad_rate) if add_up else grad_rate
    grid = (batch * parts, triton.cdiv(width, block))
    wide = torch.promote_types(grad.dtype, torch.float32)
    given = grad_last.to(wide).contiguous()
    given_to = grad_x, grad_rate, grad_initial, sums
    steps = _steps(grad_x)
    with on_device(grad):
        if parts > 1:
            added, left = (grad.new_empty(batch, parts, width, dtype=wide) for _ in range(2))
            _scan_add_back[grid](
                *(grad, rate, gap, added, left, length, width, part, parts), **_sizes(states, steps, block)
            )
            given = _join(added, left, given, backwards=True)
        _scan_backward[grid](
            *(grad, states, rate, gap, initial, given, *given_to, length, width, *steps, part, parts),
            ADD_UP=add_up,
            **_sizes(states, steps, block),
        )
    return grad_rate.sum(1), grad_initial, sums.sum(1) if add_up else None


def _join(added: Tensor, left: Tensor, initial: Tensor, *, backwards: bool) -> Tensor:
    """What each part is given [B, parts, D], of what each adds to it and leaves of it, and what the first is given."""
    batch, parts, width = added.shape
    given = torch.empty_like(added)
    _scan_join_parts[(batch, triton.cdiv(width, _BESIDE))](
        added, left, initial, given, width, parts, BACKWARDS=backwards, JOINED=_JOINED, BLOCK=_BESIDE, num_warps=4
    )
    return given


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


def _sizes(x: Tensor, steps: tuple[int, int], block: int) -> dict[str, Any]:
    """What the kernels are compiled for; x [B, N, D], and how far apart rows and positions are."""
    return {
        "EVEN": x.shape[1] % _STRETCH == 0 and x.shape[2] % block == 0,
        "FAR": steps[1] * _STRETCH >= 1 << 31,
        "STRETCH": _STRETCH,
        "BLOCK": block,
        "AHEAD": _AHEAD,
        "num_warps": 1,
    }


@scan.register_fake
def _(x: Tensor, rate: Tensor, gap: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(initial.shape, dtype=wide)


@scan_backward.register_fake
def _(
    grad: Tensor, grad_last: Tensor, states: Tensor, rate: Tensor, gap: Tensor, initial: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(states, memory_format=torch.contiguous_format),
        rate.new_empty(initial.shape),
        torch.empty_like(initial, memory_format=torch.contiguous_format),
    )


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    _, rate, gap, initial = inputs
    ctx.save_for_backward(output[0], rate, gap, initial)


def _gradient(ctx: Any, grad: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_rate, grad_initial = scan_backward(grad, grad_last, *ctx.saved_tensors)
    return grad_x, grad_rate.sum(0), None, grad_initial


scan.register_autograd(_gradient, setup_context=_remember)


@triton.jit
def _after(decay, state, later_decay, later_state):
    """Two stretches after each other: how much of what came before is left, and what was added."""
    return decay * later_decay, state * later_decay + later_state


@triton.jit
def _rate(RATE, channel, known, wide: tl.constexpr):
    """Rates of some channels, for powers of 2."""
    rate = tl.load(RATE + channel, mask=known, other=0.0).to(wide)
    return -tl.maximum(rate, _LEAST, propagate_nan=tl.PropagateNan.ALL) * _LOG2_E


@triton.jit
def _decay(rate, gap):
    """What is left after some gaps [positions, channels], in the precision of what `_rate` gives."""
    return exp2(rate[None, :] * gap.to(rate.dtype)[:, None])


@triton.jit
def _left(rate, gap):
    """What is left after one gap [channels]."""
    return tl.sum(_decay(rate, gap + tl.zeros((1,), gap.dtype)), 0)


@triton.jit
def _places(step, channel, STRETCH: tl.constexpr, FAR: tl.constexpr):
    """Where the numbers of a stretch are, from its first on: 32 bits tell, unless positions are FAR from each other."""
    at = tl.arange(0, STRETCH)[:, None]
    if FAR:
        at = at.to(tl.int64)
    return at * step + channel[None, :]


@triton.jit
def _some(X, places, inside, known, EVEN: tl.constexpr):
    """X at some positions and channels; 0 outside, if there is any such, which an EVEN division leaves out."""
    if EVEN:
        return tl.load(X + places)
    return tl.load(X + places, mask=inside[:, None] & known[None, :], other=0.0)


@triton.jit
def _put(X, x, places, inside, known, EVEN: tl.constexpr):
    if EVEN:
        tl.store(X + places, x.to(X.dtype.element_ty))
    else:
        tl.store(X + places, x.to(X.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit
def _last_of(x, LENGTH: tl.constexpr):
    """The last row of x [positions, channels]."""
    return tl.sum(tl.where((tl.arange(0, LENGTH) == LENGTH - 1)[:, None], x, 0.0), 0)


@triton.jit
def _walk(decay, x, carried, STRETCH: tl.constexpr):
    """The states of a stretch of positions [STRETCH, BLOCK] that x enters, after what is carried [BLOCK]."""
    first = (tl.arange(0, STRETCH) == 0)[:, None]
    x = tl.where(first, x + decay * carried[None, :], x)
    _, states = tl.associative_scan((decay, x), 0, _after)
    return states


@triton.jit
def _sum_up(x, rate, gap, until, carried, lasted):
    """What a stretch of positions comes to after what is carried [BLOCK], and how long all has lasted.

    gap: before each position; until: between a position and the next one of the stretch. Each number decays until the
    end of the stretch, whatever comes in between, so none has to wait for another.
    """
    whole = tl.sum(gap, 0)
    come_to = tl.sum(x * _decay(rate, tl.cumsum(until, 0, reverse=True)), 0)
    return come_to + carried * _left(rate, whole), lasted + whole


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
    EVEN: tl.constexpr,
    FAR: tl.constexpr,
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
    rate = _rate(RATE, channel, known, wide)
    X += row * row_step
    GAP += row * length
    apart = tl.full((), step, tl.int64)
    first = number * part
    end = tl.minimum(first + part, length)
    turn, places = tl.arange(0, STRETCH), _places(step, channel, STRETCH, FAR)
    carried, lasted = tl.zeros((BLOCK,), wide), tl.full((), 0.0, GAP.dtype.element_ty)
    for begin in tl.range(first, end, STRETCH, num_stages=AHEAD):
        at = begin + turn
        x = _some(X + begin * apart, places, at < end, known, EVEN).to(wide)
        gap = tl.load(GAP + at, mask=at < end, other=0.0)
        until = tl.load(GAP + at + 1, mask=(turn < STRETCH - 1) & (at + 1 < end), other=0.0)
        carried, lasted = _sum_up(x, rate, gap, until, carried, lasted)
    own = (row * parts + number) * width + channel
    tl.store(ADDED + own, carried, mask=known)
    tl.store(LEFT + own, _left(rate, lasted), mask=known)


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
    EVEN: tl.constexpr,
    FAR: tl.constexpr,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """The states of a part that is GIVEN what came before it [B, parts, D], and of the last part the LAST [B, D]."""
    row, number = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    wide: tl.constexpr = tl.float64 if X.dtype.element_ty == tl.float64 else tl.float32
    rate = _rate(RATE, channel, known, wide)
    carried = tl.load(GIVEN + (row * parts + number) * width + channel, mask=known, other=0.0).to(wide)
    X += row * row_step
    GAP += row * length
    STATES += row * length * width
    apart = tl.full((), step, tl.int64)
    row_width = tl.full((), width, tl.int64)
    first = number * part
    end = tl.minimum(first + part, length)
    places, own = _places(step, channel, STRETCH, FAR), _places(width, channel, STRETCH, False)
    for begin in tl.range(first, end, STRETCH, num_stages=AHEAD):
        at = begin + tl.arange(0, STRETCH)
        x = _some(X + begin * apart, places, at < end, known, EVEN).to(wide)
        decay = _decay(rate, tl.load(GAP + at, mask=at < end, other=0.0))
        states = _walk(decay, x, carried, STRETCH)
        _put(STATES + begin * row_width, states, own, at < end, known, EVEN)
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
        number = (parts - 1 - turn if BACKWARDS else turn).to(tl.int64)
        inside, places = turn < parts, number[:, None] * width + channel[None, :]
        added = _some(ADDED, places, inside, known, False)
        left = tl.where(inside[:, None], _some(LEFT, places, inside, known, False), 1.0)
        left, added = tl.associative_scan((left, added), 0, _after)
        comes_to = left * carried[None, :] + added
        next_places = places - width if BACKWARDS else places + width
        _put(GIVEN, comes_to, next_places, turn + 1 < parts, known, False)
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
    EVEN: tl.constexpr,
    FAR: tl.constexpr,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """g_t = grad_t + a_{t+1} g_{t+1}, from the end: what a part adds to the g after it, and what it leaves of that."""
    row, number = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    wide: tl.constexpr = tl.float64 if GRAD.dtype.element_ty == tl.float64 else tl.float32
    rate = _rate(RATE, channel, known, wide)
    GRAD += row * length * width
    GAP += row * length
    row_width = tl.full((), width, tl.int64)
    first = number * part
    end = tl.minimum(first + part, length)
    turn, places = tl.arange(0, STRETCH), _places(-width, channel, STRETCH, False)
    carried, lasted = tl.zeros((BLOCK,), wide), tl.full((), 0.0, GAP.dtype.element_ty)
    for begin in tl.range(0, end - first, STRETCH, num_stages=AHEAD):
        last = end - 1 - begin
        at = last - turn
        grad = _some(GRAD + last * row_width, places, at >= first, known, EVEN).to(wide)
        gap = _next_gap(GAP, at, at >= first, length)
        until = tl.load(GAP + at, mask=(turn < STRETCH - 1) & (at > first), other=0.0)
        carried, lasted = _sum_up(grad, rate, gap, until, carried, lasted)
    own = (row * parts + number) * width + channel
    tl.store(ADDED + own, carried, mask=known)
    tl.store(LEFT + own, _left(rate, lasted), mask=known)


@triton.jit
def _next_gap(GAP, at, inside, length):
    """The gaps that gradients decay in on the way to some positions; what comes last does not."""
    return tl.load(GAP + at + 1, mask=inside & (at + 1 < length), other=0.0)


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
    SUMS,
    length,
    width,
    row_step,
    step,
    part,
    parts,
    ADD_UP: tl.constexpr,
    EVEN: tl.constexpr,
    FAR: tl.constexpr,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """All g of a part that is GIVEN the one after it [B, parts, D], and what it adds to the rate's gradient.

    a_{t+1}'s gradient is g_{t+1} s_t, and what of g_{t+1} reaches g_t is what the two differ by, but for grad_t. Rows
    of GRAD_X are `row_step` apart, positions `step`. ADD_UP: its SUMS over the positions of a part, too.
    """
    row, number = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = channel < width
    wide: tl.constexpr = tl.float64 if GRAD.dtype.element_ty == tl.float64 else tl.float32
    rate = _rate(RATE, channel, known, wide)
    own = (row * parts + number) * width + channel
    carried = tl.load(GIVEN + own, mask=known, other=0.0).to(wide)
    grad_rate, sums = tl.zeros((BLOCK,), wide), tl.zeros((BLOCK,), wide)
    GRAD += row * length * width
    STATES += row * length * width
    GRAD_X += row * row_step
    GAP += row * length
    apart = tl.full((), step, tl.int64)
    row_width = tl.full((), width, tl.int64)
    first = number * part
    end = tl.minimum(first + part, length)
    places, to = _places(-width, channel, STRETCH, False), _places(-step, channel, STRETCH, FAR)
    for begin in tl.range(0, end - first, STRETCH, num_stages=AHEAD):
        last = end - 1 - begin
        at = last - tl.arange(0, STRETCH)
        inside = at >= first
        grad = _some(GRAD + last * row_width, places, inside, known, EVEN).to(wide)
        states = _some(STATES + last * row_width, places, inside, known, EVEN).to(wide)
        gap = _next_gap(GAP, at, inside, length)
        total = _walk(_decay(rate, gap), grad, carried, STRETCH)
        _put(GRAD_X + last * apart, total, to, inside, known, EVEN)
        carried = _last_of(total, STRETCH)
        if ADD_UP:
            sums += tl.sum(tl.where(inside[:, None], total, 0.0), 0)
        grad_rate += tl.sum((total - grad) * states * gap.to(wide)[:, None], 0)
    # What reaches the first state from the one before it.
    gap = tl.load(GAP).to(wide)
    reaches = carried * _left(rate, gap)
    begins = number == 0
    initial = tl.load(INITIAL + row * width + channel, mask=known & begins, other=0.0).to(wide)
    grad_rate += reaches * initial * gap
    tl.store(GRAD_RATE + own, -grad_rate, mask=known)
    if ADD_UP:
        tl.store(SUMS + own, sums, mask=known)
    grad_initial = reaches.to(GRAD_INITIAL.dtype.element_ty)
    tl.store(GRAD_INITIAL + row * width + channel, grad_initial, mask=known & begins)
