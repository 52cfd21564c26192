"""The router's logits: a hidden layer that sees the token and a few numbers about it."""

import torch
from torch import Tensor

from torchcram.ops.dispatch import choose


def choice(token: Tensor, numbers: Tensor, first: Tensor, out: Tensor, bias: Tensor) -> Tensor:
    """V SiLU(token + W numbers) + b of every token [B, N, A], in float32 at least.

    token [B, N, H]: what the hidden layer makes of the token itself; numbers [B, N, S], which are only looked at: they
    get no gradient; first W [H, S], out V [A, H], bias b [A].
    """
    return choose(_FORMS, token)(token, numbers.detach(), first, out, bias)


def _composed(token: Tensor, numbers: Tensor, first: Tensor, out: Tensor, bias: Tensor) -> Tensor:
    """The specification, too."""
    hidden = token + torch.nn.functional.linear(numbers.to(token.dtype), first)
    found = torch.nn.functional.linear(torch.nn.functional.silu(hidden), out, bias)
    return found.to(torch.promote_types(found.dtype, torch.float32))


def _triton(token: Tensor, numbers: Tensor, first: Tensor, out: Tensor, bias: Tensor) -> Tensor:
    """The kernels, loaded when first needed; they know nothing wider than float32."""
    if token.dtype == torch.float64:
        return _composed(token, numbers, first, out, bias)
    from torchcram.ops.choice import triton

    found: Tensor = triton.choice(token, numbers.float(), first, out, bias)
    return found


_FORMS = {"reference": _composed, "fast": _composed, "triton": _triton}
