"""How wide numbers are: narrow in products, as autocast has it, and float32 at least in long sums."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def narrow(x: Tensor) -> Tensor:
    """As autocast would have it: whoever uses it in products would narrow it anyway, and the others read half."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def wide(x: Tensor) -> Tensor:
    """At least float32: sums of squares need it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Norm(nn.RMSNorm):
    """x [..., D] divided by the root of its mean square, times a weight; as narrow as x."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # which would make it wide on some devices
            return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Narrowed:
    """A module, to be called with some weights in the place of its own; see `narrowed`."""

    def __init__(self, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
        self.module, self.weights = module, dict(weights)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.weights:
            return self.module(*args, **kwargs)
        return functional_call(self.module, self.weights, args, kwargs, tie_weights=False)

    def weight(self, name: str) -> Tensor:
        """The weight that it has when it is called."""
        return self.weights[name] if name in self.weights else self.module.get_parameter(name)


def narrowly(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What a module makes of its arguments; see `narrowed`."""
    return narrowed([module])[0](*args, **kwargs)


def narrowed(modules: Iterable[nn.Module]) -> list[Narrowed]:
    """The modules, to be called; where they learn under autocast, with weights made narrow all at once.

    Autocast narrows each where it is used, which is a kernel for each, and one for each of their gradients. Those of
    linear maps and norms are, and parameters that a module names in `NARROW`, but for maps that it names in `WIDE`;
    shards of weights are left to who puts them together. While a module is called it has those weights instead of its
    own, so only where there are gradients: whatever else is done with it may go on in several threads.

    Gradients are made wide all at once, too, when the last is known; where several processes add theirs up meanwhile,
    a module's when its own are.
    """
    modules = list(modules)
    kind = next((p.device.type for module in modules for p in module.parameters()), "cpu")
    if not torch.is_autocast_enabled(kind) or not torch.is_grad_enabled():
        return [Narrowed(module, {}) for module in modules]
    dtype = torch.get_autocast_dtype(kind)
    named = [dict(_narrowable(module)) for module in modules]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        made = [made for weights in named for made in _narrow(dtype, weights.values())]
    else:
        made = _narrow(dtype, [weight for weights in named for weight in weights.values()])
    rest = iter(made)
    return [Narrowed(module, {n: next(rest) for n in own}) for module, own in zip(modules, named, strict=True)]


def narrow_for_good(module: nn.Module, dtype: torch.dtype) -> None:
    """Make narrow what `narrowed` would, where nothing is learned any more: autocast narrows the rest at each call."""
    for _, weight in _narrowable(module):
        weight.data = weight.data.to(dtype)


def _narrow(dtype: torch.dtype, weights: Collection[Tensor]) -> list[Tensor]:
    if not weights:
        return []
    made = _Narrowed.apply(dtype, *weights)  # type: ignore[no-untyped-call]
    return [new if old.requires_grad else new.detach() for old, new in zip(weights, made, strict=True)]


def _narrowable(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Weights to make narrow, by their names."""
    mine = ("weight", "bias") if isinstance(module, nn.Linear | nn.RMSNorm) else getattr(module, "NARROW", ())
    for name in mine:
        weight = getattr(module, name, None)
        if type(weight) is nn.Parameter and weight.dtype == torch.float32:
            yield prefix + name, weight
    for name, part in module.named_children():
        if name not in getattr(module, "WIDE", ()):
            yield from _narrowable(part, f"{prefix}{name}.")


class _Narrowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # weights that nothing learned from in a step have none
        return _copied(weights, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [grad for grad in grads if grad is not None]
        if torch.is_grad_enabled():  # of gradients of gradients, which those copies have none
            known = iter([grad.to(torch.float32) for grad in there])
        else:
            known = iter(_copied(there, torch.float32))
        return None, *(None if grad is None else next(known) for grad in grads)


def _copied(given: tuple[Tensor, ...] | list[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format) for x in given]
    if copies:
        torch._foreach_copy_(copies, list(given))
    return tuple(copies)
