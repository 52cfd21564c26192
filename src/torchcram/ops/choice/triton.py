"""The router's logits as one GPU kernel, and their gradients as another.

Its products are too narrow to be products: as such they are two forward and four back, each of which goes over all
tokens by itself.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import flat, on_device

_MOST, _NUMBERS, _WARPS = 256, 8192, 8  # of a program: tokens, and numbers of what is hidden
_ABOUT, _ACTIONS = 4, 3
_OF_MAPS = _ABOUT + _ACTIONS + 1  # rows of gradients of weights


@torch.library.custom_op("torchcram::choice", mutates_args=())
def choice(
    token: Tensor,
    log_gap: Tensor,
    square: Tensor,
    quality: Tensor,
    surprise: Tensor,
    first: Tensor,
    shift: Tensor,
    out: Tensor,
    bias: Tensor,
    lead: Tensor,
    threshold: float,
) -> Tensor:
    about = (x.contiguous() for x in (log_gap, square, quality, surprise))
    batch, length, hidden = token.shape
    token = flat(token)
    found = torch.empty(batch, length, _ACTIONS, dtype=torch.float32, device=token.device)
    with on_device(token):
        _choose[(_parts(batch * length, hidden),)](
            token,
            *about,
            first,
            shift.contiguous(),
            out.contiguous(),
            bias,
            lead,
            found,
            batch * length,
            token.stride(0),
            *first.stride(),
            hidden,
            threshold,
            WIDTH=triton.next_power_of_2(hidden),
            ROWS=_rows(hidden),
            num_warps=_WARPS,
        )
    return found


@torch.library.custom_op("torchcram::choice_backward", mutates_args=())
def choice_backward(
    grad: Tensor,
    token: Tensor,
    log_gap: Tensor,
    square: Tensor,
    quality: Tensor,
    surprise: Tensor,
    first: Tensor,
    shift: Tensor,
    out: Tensor,
    threshold: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of token [B, N, H]; by parts of the tokens, of W, V and c [., 4 + 3 + 1, H], of b and κ [., 3 + 1]."""
    about = (x.contiguous() for x in (log_gap, square, quality, surprise))
    batch, length, hidden = token.shape
    parts = _parts(batch * length, hidden)
    grad_token = token.new_empty(batch, length, hidden)
    of_maps = torch.empty(parts, _OF_MAPS, hidden, dtype=torch.float32, device=token.device)
    of_rest = torch.empty(parts, _ACTIONS + 1, dtype=torch.float32, device=token.device)
    token = flat(token)
    with on_device(token):
        _choose_back[(parts,)](
            grad.contiguous(),
            token,
            *about,
            first,
            shift.contiguous(),
            out.contiguous(),
            grad_token,
            of_maps,
            of_rest,
            batch * length,
            token.stride(0),
            *first.stride(),
            hidden,
            threshold,
            WIDTH=triton.next_power_of_2(hidden),
            ROWS=_rows(hidden),
            num_warps=_WARPS,
        )
    return grad_token, of_maps, of_rest


def _rows(hidden: int) -> int:
    """Tokens of a program: of a wide layer fewer, since all that a program has must fit into registers."""
    return max(16, min(_MOST, _NUMBERS // int(triton.next_power_of_2(hidden))))


def _parts(rows: int, hidden: int) -> int:
    return -(-rows // _rows(hidden))


@choice.register_fake
def _(token: Tensor, *rest: Any) -> Tensor:
    return token.new_empty(*token.shape[:2], _ACTIONS, dtype=torch.float32)


@choice_backward.register_fake
def _(grad: Tensor, token: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    hidden = token.shape[2]
    parts = _parts(token.shape[0] * token.shape[1], hidden)
    of_maps = token.new_empty(parts, _OF_MAPS, hidden, dtype=torch.float32)
    return token.new_empty(token.shape), of_maps, token.new_empty(parts, _ACTIONS + 1, dtype=torch.float32)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.threshold, ctx.dtypes = inputs[10], [x.dtype for x in inputs[5:10]]


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_token, of_maps, of_rest = choice_backward(grad, *ctx.saved_tensors, ctx.threshold)
    of_first, of_out, of_shift = of_maps.sum(0).split([_ABOUT, _ACTIONS, 1])
    found = of_first.t(), of_shift.squeeze(0), of_out, *of_rest.sum(0).split([_ACTIONS, 1])
    of_weights = (x.to(dtype) for x, dtype in zip(found, ctx.dtypes, strict=True))
    return of_token, None, None, None, None, *of_weights, None


choice.register_autograd(_gradient, setup_context=_remember)


@triton.jit
def _about(which: tl.constexpr, LOG_GAP, SQUARE, QUALITY, SURPRISE, row, inside):
    """One of the numbers that the router sees of some tokens."""
    if which == 0:
        x = tl.load(LOG_GAP + row, mask=inside, other=0.0).to(tl.float32)
    elif which == 1:
        x = tl.sqrt(tl.load(SQUARE + row, mask=inside, other=0.0).to(tl.float32))
    elif which == 2:
        x = tl.load(QUALITY + row, mask=inside, other=0.0).to(tl.float32)
    else:
        x = tl.log(1 + tl.load(SURPRISE + row, mask=inside, other=0.0).to(tl.float32))
    return x


@triton.jit
def _seen(
    TOKEN,
    LOG_GAP,
    SQUARE,
    QUALITY,
    SURPRISE,
    FIRST,
    SHIFT,
    row,
    inside,
    column,
    known,
    step,
    first_row,
    first_column,
    ABOUT: tl.constexpr,
):
    """What the hidden layer sees of some tokens, which are `step` apart in memory."""
    mask = inside[:, None] & known[None, :]
    seen = tl.load(TOKEN + row[:, None] * step + column[None, :], mask=mask, other=0.0).to(tl.float32)
    seen += tl.load(SHIFT + column, mask=known, other=0.0).to(tl.float32)[None, :]
    for number in tl.static_range(ABOUT):
        x = _about(number, LOG_GAP, SQUARE, QUALITY, SURPRISE, row, inside)
        weight = tl.load(FIRST + column * first_row + number * first_column, mask=known, other=0.0).to(tl.float32)
        seen += x[:, None] * weight[None, :]
    return seen


@triton.jit
def _choose(
    TOKEN,
    LOG_GAP,
    SQUARE,
    QUALITY,
    SURPRISE,
    FIRST,
    SHIFT,
    OUT,
    BIAS,
    LEAD,
    FOUND,
    rows,
    step,
    first_row,
    first_column,
    hidden,
    threshold,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    ABOUT: tl.constexpr = _ABOUT,
    ACTIONS: tl.constexpr = _ACTIONS,
):
    """FOUND [rows, 3], of some tokens."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    column = tl.arange(0, WIDTH)
    known = column < hidden
    of_token = TOKEN, LOG_GAP, SQUARE, QUALITY, SURPRISE
    seen = _seen(*of_token, FIRST, SHIFT, row, inside, column, known, step, first_row, first_column, ABOUT)
    active = seen * tl.sigmoid(seen)
    quality = _about(2, LOG_GAP, SQUARE, QUALITY, SURPRISE, row, inside)
    lead = tl.load(LEAD).to(tl.float32) * (quality - threshold)
    for action in tl.static_range(ACTIONS):
        weight = tl.load(OUT + action * hidden + column, mask=known, other=0.0).to(tl.float32)
        logit = tl.sum(active * weight[None, :], 1) + tl.load(BIAS + action).to(tl.float32)
        if action == 1:
            logit -= lead
        if action == 2:
            logit += lead
        tl.store(FOUND + row * ACTIONS + action, logit, mask=inside)


@triton.jit
def _choose_back(
    GRAD,
    TOKEN,
    LOG_GAP,
    SQUARE,
    QUALITY,
    SURPRISE,
    FIRST,
    SHIFT,
    OUT,
    GRAD_TOKEN,
    OF_MAPS,
    OF_REST,
    rows,
    step,
    first_row,
    first_column,
    hidden,
    threshold,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    ABOUT: tl.constexpr = _ABOUT,
    ACTIONS: tl.constexpr = _ACTIONS,
):
    """GRAD_TOKEN [rows, hidden], and what these tokens add to the gradients of the weights."""
    program = tl.program_id(0).to(tl.int64)
    row = program * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    column = tl.arange(0, WIDTH)
    known = column < hidden
    of_token = TOKEN, LOG_GAP, SQUARE, QUALITY, SURPRISE
    seen = _seen(*of_token, FIRST, SHIFT, row, inside, column, known, step, first_row, first_column, ABOUT)
    share = tl.sigmoid(seen)
    active = seen * share
    back = tl.zeros((ROWS, WIDTH), tl.float32)
    led = tl.zeros((ROWS,), tl.float32)
    OF_MAPS += program * (ABOUT + ACTIONS + 1) * hidden + column
    OF_REST += program * (ACTIONS + 1)
    for action in tl.static_range(ACTIONS):
        grad = tl.load(GRAD + row * ACTIONS + action, mask=inside, other=0.0)
        weight = tl.load(OUT + action * hidden + column, mask=known, other=0.0).to(tl.float32)
        back += grad[:, None] * weight[None, :]
        tl.store(OF_MAPS + (ABOUT + action) * hidden, tl.sum(grad[:, None] * active, 0), mask=known)
        tl.store(OF_REST + action, tl.sum(grad, 0))
        if action == 1:
            led -= grad
        if action == 2:
            led += grad
    quality = _about(2, LOG_GAP, SQUARE, QUALITY, SURPRISE, row, inside)
    tl.store(OF_REST + ACTIONS, tl.sum(led * (quality - threshold), 0))
    back *= share * (1 + seen * (1 - share))
    tl.store(OF_MAPS + (ABOUT + ACTIONS) * hidden, tl.sum(back, 0), mask=known)
    for number in tl.static_range(ABOUT):
        x = _about(number, LOG_GAP, SQUARE, QUALITY, SURPRISE, row, inside)
        tl.store(OF_MAPS + number * hidden, tl.sum(x[:, None] * back, 0), mask=known)
    to = GRAD_TOKEN + row[:, None] * hidden + column[None, :]
    tl.store(to, back.to(GRAD_TOKEN.dtype.element_ty), mask=inside[:, None] & known[None, :])
