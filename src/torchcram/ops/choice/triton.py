"""The router's logits as one GPU kernel, and their gradients as another.

Its products are too narrow to be products: as such they are two forward and four back, each of which sums over all
tokens by itself.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcram.ops.dispatch import flat, on_device

_ROWS, _WARPS = 256, 8


@torch.library.custom_op("torchcram::choice", mutates_args=())
def choice(token: Tensor, numbers: Tensor, first: Tensor, out: Tensor, bias: Tensor) -> Tensor:
    batch, length, hidden = token.shape
    token, numbers = flat(token), numbers.contiguous()
    found = torch.empty(batch, length, len(out), dtype=torch.float32, device=token.device)
    with on_device(token):
        _forward[(triton.cdiv(batch * length, _ROWS),)](
            token,
            numbers,
            first,
            out.contiguous(),
            bias,
            found,
            batch * length,
            token.stride(0),
            *first.stride(),
            hidden,
            NUMBERS=first.shape[1],
            ACTIONS=len(out),
            WIDTH=triton.next_power_of_2(hidden),
            ROWS=_ROWS,
            num_warps=_WARPS,
        )
    return found


@torch.library.custom_op("torchcram::choice_backward", mutates_args=())
def choice_backward(
    grad: Tensor, token: Tensor, numbers: Tensor, first: Tensor, out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of token [B, N, H]; and, by parts of the tokens, of W and V [., S + A, H], and of b [., A]."""
    batch, length, hidden = token.shape
    rows, actions, programs = batch * length, len(out), _parts(batch * length)
    grad_token = token.new_empty(batch, length, hidden)
    of_weights = torch.empty(programs, first.shape[1] + actions, hidden, dtype=torch.float32, device=token.device)
    of_bias = torch.empty(programs, actions, dtype=torch.float32, device=token.device)
    token = flat(token)
    with on_device(token):
        _backward[(programs,)](
            grad.contiguous(),
            token,
            numbers.contiguous(),
            first,
            out.contiguous(),
            grad_token,
            of_weights,
            of_bias,
            rows,
            token.stride(0),
            *first.stride(),
            hidden,
            NUMBERS=first.shape[1],
            ACTIONS=actions,
            WIDTH=triton.next_power_of_2(hidden),
            ROWS=_ROWS,
            num_warps=_WARPS,
        )
    return grad_token, of_weights, of_bias


def _parts(rows: int) -> int:
    return -(-rows // _ROWS)


@choice.register_fake
def _(token: Tensor, numbers: Tensor, first: Tensor, out: Tensor, bias: Tensor) -> Tensor:
    return token.new_empty(*token.shape[:2], len(out), dtype=torch.float32)


@choice_backward.register_fake
def _(grad: Tensor, token: Tensor, numbers: Tensor, first: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, hidden = token.shape
    parts = _parts(batch * length)
    of_weights = token.new_empty(parts, first.shape[1] + len(out), hidden, dtype=torch.float32)
    return token.new_empty(token.shape), of_weights, token.new_empty(parts, len(out), dtype=torch.float32)


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.dtype = inputs[4].dtype


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    token, numbers, first, out = ctx.saved_tensors
    of_token, of_weights, of_bias = choice_backward(grad, token, numbers, first, out)
    of_first, of_out = of_weights.sum(0).split([first.shape[1], len(out)])
    return of_token, None, of_first.t().to(first.dtype), of_out.to(out.dtype), of_bias.sum(0).to(ctx.dtype)


choice.register_autograd(_gradient, setup_context=_remember)


@triton.jit
def _seen(TOKEN, NUMBERS_OF, FIRST, row, inside, column, known, step, first_row, first_column, NUMBERS: tl.constexpr):
    """What the hidden layer sees of some tokens, which are `step` apart in memory."""
    mask = inside[:, None] & known[None, :]
    seen = tl.load(TOKEN + row[:, None] * step + column[None, :], mask=mask, other=0.0).to(tl.float32)
    for number in tl.static_range(NUMBERS):
        x = tl.load(NUMBERS_OF + row * NUMBERS + number, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(FIRST + column * first_row + number * first_column, mask=known, other=0.0).to(tl.float32)
        seen += x[:, None] * weight[None, :]
    return seen


@triton.jit
def _forward(
    TOKEN,
    NUMBERS_OF,
    FIRST,
    OUT,
    BIAS,
    FOUND,
    rows,
    step,
    first_row,
    first_column,
    hidden,
    NUMBERS: tl.constexpr,
    ACTIONS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """FOUND [rows, ACTIONS] = OUT SiLU(TOKEN + FIRST numbers) + BIAS."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    column = tl.arange(0, WIDTH)
    known = column < hidden
    seen = _seen(TOKEN, NUMBERS_OF, FIRST, row, inside, column, known, step, first_row, first_column, NUMBERS)
    active = seen * tl.sigmoid(seen)
    for action in tl.static_range(ACTIONS):
        weight = tl.load(OUT + action * hidden + column, mask=known, other=0.0).to(tl.float32)
        logit = tl.sum(active * weight[None, :], 1) + tl.load(BIAS + action).to(tl.float32)
        tl.store(FOUND + row * ACTIONS + action, logit, mask=inside)


@triton.jit
def _backward(
    GRAD,
    TOKEN,
    NUMBERS_OF,
    FIRST,
    OUT,
    GRAD_TOKEN,
    OF_WEIGHTS,
    OF_BIAS,
    rows,
    step,
    first_row,
    first_column,
    hidden,
    NUMBERS: tl.constexpr,
    ACTIONS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """GRAD_TOKEN [rows, hidden]; and what this program's tokens add to the gradients of weights and bias."""
    program = tl.program_id(0).to(tl.int64)
    row = program * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    column = tl.arange(0, WIDTH)
    known = column < hidden
    mine = OF_WEIGHTS + program * (NUMBERS + ACTIONS) * hidden + column
    seen = _seen(TOKEN, NUMBERS_OF, FIRST, row, inside, column, known, step, first_row, first_column, NUMBERS)
    share = tl.sigmoid(seen)
    active = seen * share
    back = tl.zeros((ROWS, WIDTH), tl.float32)
    for action in tl.static_range(ACTIONS):
        grad = tl.load(GRAD + row * ACTIONS + action, mask=inside, other=0.0)
        weight = tl.load(OUT + action * hidden + column, mask=known, other=0.0).to(tl.float32)
        back += grad[:, None] * weight[None, :]
        tl.store(mine + (NUMBERS + action) * hidden, tl.sum(grad[:, None] * active, 0), mask=known)
        tl.store(OF_BIAS + program * ACTIONS + action, tl.sum(grad, 0))
    back *= share * (1 + seen * (1 - share))
    for number in tl.static_range(NUMBERS):
        x = tl.load(NUMBERS_OF + row * NUMBERS + number, mask=inside, other=0.0).to(tl.float32)
        tl.store(mine + number * hidden, tl.sum(x[:, None] * back, 0), mask=known)
    to = GRAD_TOKEN + row[:, None] * hidden + column[None, :]
    tl.store(to, back.to(GRAD_TOKEN.dtype.element_ty), mask=inside[:, None] & known[None, :])
