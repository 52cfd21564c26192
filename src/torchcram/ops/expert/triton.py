"""The expert as GPU kernels: each Euler step is one product whose result is used before it leaves the processor.

A step reads the state, what drives it and the weights, and writes the next state and, if there will be a backward pass,
the slope tanh(W h + drive). The backward pass goes through the steps from the last one; what each adds to the gradient
of the drive is added up on the way, and the gradient of W is two products for all steps.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from torchcram.ops.decay.triton import far_at_resets, scan_rows, scan_rows_backward
from torchcram.ops.dispatch import on_device
from torchcram.ops.expert import Given
from torchcram.ops.instructions import tanh

try:
    from torchcram.ops.expert import hopper as _hopper
except ImportError:  # the language it is written in is experimental: another Triton may have changed it
    _hopper = None  # type: ignore[assignment]


class Tile(NamedTuple):
    """How a product is cut up."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    registers: int | None = None
    """Of a thread, at most."""


# Two programs share a processor: one writes while the other multiplies. Each takes one tile after the other.
_STEP, _STEPPING = Tile(128, 128, 64, 4, 3), 264
_STRETCH, _CHANNELS, _WARPS = 16, 128, 4  # positions and channels taken at a time where there is no product
_AHEAD = 4  # of them that are on their way to the chip, or used, at the same time
_PROGRAMS = 132  # that sum gradients over positions: so many that all of them, for all channels, are at work at once


def expert(given: Given, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
    into, rate, gap, reset, *rest, bias = given
    h, last, squares, *_ = advance(into, rate, far_at_resets(gap, reset), *rest, steps, learns, bias)
    return h, last, squares.detach().sum(-1) / len(given.rate)


# Operators of their own, which torch.compile takes as they are.
@torch.library.custom_op("torchcram::expert", mutates_args=())
def advance(
    into: Tensor,
    rate: Tensor,
    gap: Tensor,
    initial: Tensor,
    log_gap: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    weight: Tensor,
    steps: int,
    learns: bool,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """h^(K) [B, N, D], the last state [B, D], parts of |h^(K)|² [B, N, .]; and what is kept to go back.

    That is h^(0) [B, N, D], h^(1) … h^(K-1), and all slopes [., B, N, D]: empty, if nothing learns from it.
    """
    batch, length, width = into.shape[0], into.shape[1], weight.shape[0]
    into, log_gap, weight = into.contiguous(), log_gap.contiguous(), weight.contiguous()
    start, last = scan_rows(into[..., :width], rate, gap, initial)
    middle = into.new_empty(steps - 1 if learns else 0, batch, length, width)
    slopes = into.new_empty(steps if learns else 0, batch, length, width)
    squares = into.new_empty(batch, length, _across(width), dtype=torch.float32)
    rows = batch * length
    step = _hopper.euler_step if _hopper is not None and _hopper.fits(into, width) else _step
    h = start
    for number in range(steps):
        last_one = number == steps - 1
        after = middle[number] if learns and not last_one else torch.empty_like(start)
        step(
            h.view(rows, width),
            into.view(rows, 2 * width),
            log_gap,
            gate_weight,
            gate_bias,
            weight,
            after.view(rows, width),
            slopes[number].view(rows, width) if learns else None,
            squares if last_one else None,
            1 / steps,
        )
        h = after
    if not learns:
        start = into.new_empty(0)
    return h, last, squares, start, middle, slopes


def _step(
    h: Tensor,
    into: Tensor,
    log_gap: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    weight: Tensor,
    after: Tensor,
    slope: Tensor | None,
    squares: Tensor | None,
    share: float,
) -> None:
    """h, after, slope [rows, D]; into [rows, 2D], its second half drives; squares [rows, .]; see the kernel."""
    rows, width = h.shape
    columns = _columns(width)
    grid = (min(_STEPPING, _across(width) * triton.cdiv(rows, _STEP.rows)),)
    tile, part = [_STEP.rows, columns // 2], [_STEP.rows, _STEP.depth]
    with on_device(into):
        _euler_step[grid](
            TensorDescriptor.from_tensor(h, part),
            TensorDescriptor.from_tensor(h, tile),
            TensorDescriptor.from_tensor(into, [_STEP.rows, columns]),
            log_gap,
            gate_weight,
            gate_bias,
            TensorDescriptor.from_tensor(weight, [columns, _STEP.depth]),
            TensorDescriptor.from_tensor(after, tile),
            TensorDescriptor.from_tensor(after if slope is None else slope, tile),
            after if squares is None else squares,
            rows,
            width,
            share,
            LEARNS=slope is not None,
            LAST=squares is not None,
            ROWS=_STEP.rows,
            COLUMNS=columns,
            DEPTH=_STEP.depth,
            num_warps=_STEP.warps,
            num_stages=_STEP.stages,
            maxnreg=_STEP.registers,
        )


@torch.library.custom_op("torchcram::expert_backward", mutates_args=("grad",))
def advance_backward(
    grad: Tensor,
    grad_last: Tensor,
    start: Tensor,
    middle: Tensor,
    slopes: Tensor,
    rate: Tensor,
    gap: Tensor,
    initial: Tensor,
    log_gap: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    weight: Tensor,
    biased: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of into [B, N, 2D], rate by rows [B, D], initial [B, D], weight [D, D]; and sums over positions.

    Those are the gradient of the gate, of gate_weight and gate_bias, by steps and parts of the positions
    [2, K, parts, D]; and if it is `biased` of both halves of into, by rows [B, D], and by parts of the positions
    [parts, D]. `grad` [B, N, D], contiguous, is what is worked on.
    """
    batch, length, width = start.shape
    steps, rows = len(slopes), batch * length
    log_gap, weight = log_gap.contiguous(), weight.contiguous()
    grad_into = start.new_empty(batch, length, 2 * width)
    inner = torch.empty_like(slopes)
    programs = _parts(rows)
    channels = min(_CHANNELS, triton.next_power_of_2(width))
    sums = start.new_empty(2, steps, programs, width, dtype=_wide(gate_bias))
    by_drive = sums.new_empty(programs if biased else 0, width)
    g = grad.view(rows, width)
    for number in reversed(range(steps)):
        with on_device(start):
            _euler_slope[(programs, triton.cdiv(width, channels))](
                g,
                slopes[number],
                log_gap,
                gate_weight,
                gate_bias,
                inner[number],
                grad_into,
                sums[:, number],
                by_drive,
                rows,
                width,
                1 / steps,
                sums.stride(0),
                inner.stride(0),
                STEPS=steps,
                EVEN=rows % _STRETCH == 0 and width % channels == 0,
                FIRST=number == 0,
                ADD_UP=number == 0 and biased,
                STRETCH=_STRETCH,
                CHANNELS=channels,
                AHEAD=_AHEAD,
                num_warps=_WARPS,
            )
        g.addmm_(inner[number].view(rows, width), weight)
    grad_weight = inner[0].view(rows, width).t() @ start.view(rows, width)
    if steps > 1:
        grad_weight.addmm_(inner[1:].view(-1, width).t(), middle.view(-1, width))
    grad_rate, grad_initial, entering = scan_rows_backward(
        g.view(start.shape), grad_last, start, rate, gap, initial, grad_into[..., :width], add_up=biased
    )
    entering = grad_rate.new_empty(0, width) if entering is None else entering
    return grad_into, grad_rate, grad_initial, grad_weight, sums, entering, by_drive


def _columns(width: int) -> int:
    """Of a tile."""
    columns: int = min(_STEP.columns, triton.next_power_of_2(width))
    return columns


def _across(width: int) -> int:
    """Tiles side by side."""
    return -(-width // _columns(width))


def _parts(rows: int) -> int:
    """Of so many positions, that are summed over by themselves."""
    return min(_PROGRAMS, -(-rows // _STRETCH))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


@advance.register_fake
def _(into: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    initial, steps, learns = rest[2], *rest[7:9]
    shape = (*into.shape[:2], initial.shape[1])
    return (
        into.new_empty(shape),
        into.new_empty(initial.shape, dtype=torch.promote_types(into.dtype, torch.float32)),
        into.new_empty(*into.shape[:2], _across(initial.shape[1]), dtype=torch.float32),
        into.new_empty(shape if learns else (0,)),
        into.new_empty(steps - 1 if learns else 0, *shape),
        into.new_empty(steps if learns else 0, *shape),
    )


@advance_backward.register_fake
def _(
    grad: Tensor, grad_last: Tensor, start: Tensor, middle: Tensor, slopes: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    rate, _, initial, _, _, gate_bias, weight, biased = rest
    batch, length, width = start.shape
    parts, wide = _parts(batch * length), _wide(gate_bias)
    return (
        start.new_empty(batch, length, 2 * width),
        rate.new_empty(batch, width),
        torch.empty_like(initial, memory_format=torch.contiguous_format),
        start.new_empty(weight.shape),
        start.new_empty(2, len(slopes), parts, width, dtype=wide),
        rate.new_empty(batch if biased else 0, width),
        start.new_empty(parts if biased else 0, width, dtype=wide),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[3:], *inputs[1:8])
    ctx.set_materialize_grads(False)  # of all that is kept to go back there are none


def _gradient(ctx: Any, grad: Tensor | None, grad_last: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    start, initial = ctx.saved_tensors[0], ctx.saved_tensors[5]
    # A copy: what is worked on may not be what others were given too.
    grad = torch.zeros_like(start) if grad is None else grad.to(start.dtype, copy=True).contiguous()
    grad_last = torch.zeros_like(initial) if grad_last is None else grad_last
    biased = ctx.needs_input_grad[-1]
    into, rate, initial, weight, sums, *halves = advance_backward(grad, grad_last, *ctx.saved_tensors, biased)
    # Here, and not in the operator, it is compiled together with whatever comes after.
    gate_weight, gate_bias = sums.sum((1, 2)).to(ctx.saved_tensors[-2].dtype)
    bias = torch.cat([half.sum(0) for half in halves]) if biased else None
    return into, rate.sum(0), None, initial, None, gate_weight, gate_bias, weight, None, None, bias


advance.register_autograd(_gradient, setup_context=_remember)


@triton.jit
def _gate(log_gap, GATE_WEIGHT, GATE_BIAS, channel, known):
    """σ(bias + weight · log gap) of positions × channels."""
    weight = tl.load(GATE_WEIGHT + channel, mask=known, other=0.0).to(tl.float32)
    bias = tl.load(GATE_BIAS + channel, mask=known, other=0.0).to(tl.float32)
    return 0.5 + 0.5 * tanh(0.5 * (bias[None, :] + weight[None, :] * log_gap[:, None]))


@triton.jit
def _euler_step(
    H,
    BEFORE,
    INTO,
    LOG_GAP,
    GATE_WEIGHT,
    GATE_BIAS,
    WEIGHT,
    AFTER,
    SLOPE,
    SQUARES,
    rows,
    width,
    share,
    LEARNS: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """AFTER = H + share · gate ⊙ tanh(H Wᵀ + drive), some tiles of it; the drive is the second half of INTO [rows, 2D].

    The product begins with the drive. BEFORE is H, in tiles like those of AFTER and SLOPE: half as wide as those of the
    product, since all that a tile needs must fit into the registers at once. The LAST step leaves SQUARES
    [rows, tiles side by side], a sum of squares for each.
    """
    across = tl.cdiv(width, COLUMNS)  # tiles of the same rows come after each other: they read the same H
    for tile in tl.range(tl.program_id(0), across * tl.cdiv(rows, ROWS), tl.num_programs(0)):
        column, first = tile % across * COLUMNS, tile // across * ROWS
        total = INTO.load([first, width + column]).to(tl.float32)
        for begin in range(0, width, DEPTH):
            h, weight = H.load([first, begin]), WEIGHT.load([column, begin])
            total = tl.dot(h, weight.T, total, input_precision="ieee")
        at = first + tl.arange(0, ROWS)
        log_gap = tl.load(LOG_GAP + at, mask=at < rows, other=0.0).to(tl.float32)
        halves = tl.split(tl.permute(tl.reshape(total, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))
        squares = tl.zeros((ROWS,), tl.float32)
        for half in tl.static_range(2):
            begin = column + half * (COLUMNS // 2)
            slope = tanh(halves[half])
            if LEARNS:
                SLOPE.store([first, begin], slope.to(SLOPE.dtype))
            channel = begin + tl.arange(0, COLUMNS // 2)
            step = share * _gate(log_gap, GATE_WEIGHT, GATE_BIAS, channel, channel < width)
            before = BEFORE.load([first, begin]).to(tl.float32)
            after = before + step * slope
            AFTER.store([first, begin], after.to(AFTER.dtype))
            squares += tl.sum(after * after, 1)  # 0 outside, as all that is loaded there
        if LAST:
            tl.store(SQUARES + at.to(tl.int64) * across + column // COLUMNS, squares, mask=at < rows)


@triton.jit
def _euler_slope(
    GRAD,
    SLOPE,
    LOG_GAP,
    GATE_WEIGHT,
    GATE_BIAS,
    INNER,
    GRAD_INTO,
    SUMS,
    BY_DRIVE,
    rows,
    width,
    share,
    sums_step,
    inner_step,
    STEPS: tl.constexpr,
    EVEN: tl.constexpr,
    FIRST: tl.constexpr,
    ADD_UP: tl.constexpr,
    STRETCH: tl.constexpr,
    CHANNELS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """INNER, the gradient of W h + drive in a step, and what the gate's gradients sum up to; of a few channels.

    In the FIRST step, which comes last, the sum over all steps goes to the second half of GRAD_INTO [rows, 2D]; those
    of the others are `inner_step` further on each. ADD_UP: its sums over positions, too. EVEN: all positions and
    channels of a stretch are there.
    """
    first = tl.program_id(0)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < width
    turn = tl.arange(0, STRETCH)
    here, there = turn[:, None] * width + channel[None, :], turn[:, None] * 2 * width + channel[None, :]
    row_width = tl.full((), width, tl.int64)
    by_weight = tl.zeros((STRETCH, CHANNELS), tl.float32)  # summed over positions once, at the end
    by_bias = tl.zeros((STRETCH, CHANNELS), tl.float32)
    by_drive = tl.zeros((STRETCH, CHANNELS), tl.float32)
    for begin in tl.range(first * STRETCH, rows, tl.num_programs(0) * STRETCH, num_stages=AHEAD):
        start = begin * row_width
        inside = begin + turn < rows
        mask = inside[:, None] & known[None, :]
        grad = _some(GRAD + start + here, mask, EVEN)
        grad = share * grad.to(tl.float32)
        slope = _some(SLOPE + start + here, mask, EVEN).to(tl.float32)
        log_gap = tl.load(LOG_GAP + begin + turn, mask=inside, other=0.0).to(tl.float32)[:, None]
        # σ(x) is (1 + tanh(x/2))/2, and its slope (1 - tanh²(x/2))/4: what is the same for all is left to the end. To
        # load weights for each stretch is cheaper than to have them where the compiler would put them.
        weight = 0.5 * tl.load(GATE_WEIGHT + channel, mask=known, other=0.0).to(tl.float32)
        bias = 0.5 * tl.load(GATE_BIAS + channel, mask=known, other=0.0).to(tl.float32)
        turned = tanh(bias[None, :] + weight[None, :] * log_gap)
        inner = grad * (0.5 + 0.5 * turned) * (1 - slope * slope)
        _put(INNER + start + here, inner, mask, EVEN)
        of_gate = grad * slope * (1 - turned * turned)
        by_bias += of_gate
        by_weight += of_gate * log_gap
        if FIRST:
            another = INNER + start
            for _ in tl.static_range(1, STEPS):
                another += inner_step
                inner += _some(another + here, mask, EVEN).to(tl.float32)
            _put(GRAD_INTO + 2 * start + width + there, inner, mask, EVEN)
        if ADD_UP:
            by_drive += inner
    own = SUMS + first * width + channel
    tl.store(own, tl.sum(by_weight, 0) * 0.25, mask=known)
    tl.store(own + sums_step, tl.sum(by_bias, 0) * 0.25, mask=known)
    if ADD_UP:
        tl.store(BY_DRIVE + first * width + channel, tl.sum(by_drive, 0), mask=known)


@triton.jit
def _some(places, mask, EVEN: tl.constexpr):
    """What is there; 0 outside, if there is any such, which an EVEN division leaves out."""
    if EVEN:
        return tl.load(places)
    return tl.load(places, mask=mask, other=0.0)


@triton.jit
def _put(places, x, mask, EVEN: tl.constexpr):
    if EVEN:
        tl.store(places, x.to(places.dtype.element_ty))
    else:
        tl.store(places, x.to(places.dtype.element_ty), mask=mask)
