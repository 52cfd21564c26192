"""Linear maps of several inputs at once, and several of one input."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_TOGETHER = 8  # columns: GPUs multiply matrices of other widths far more slowly
_LINE = 64  # columns: where rows begin with a line of memory, what reads a part of each reads no more than that
_LITTLE = 8  # part of the columns that may be added for it


def joint(map: nn.Linear, *parts: Tensor) -> Tensor:
    """What a linear map makes of parts [..., Dᵢ] side by side, without laying them side by side in memory."""
    weights = torch.split(map.weight, [part.shape[-1] for part in parts], dim=1)
    out = nn.functional.linear(parts[0], weights[0], map.bias)
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        out = out + nn.functional.linear(part, weight)
    return out


class Map(NamedTuple):
    """A linear map, or a part of one."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., D] to [..., C]."""
        return nn.functional.linear(x, self.weight, self.bias)


def side_by_side(x: Tensor, *maps: Map) -> tuple[Tensor, ...]:
    """What each map makes of x [..., D]; x is read once for all, unless it is smaller than the maps are."""
    sizes = [len(each.weight) for each in maps]
    if len(maps) < 2 or x.numel() < sum(sizes) * x.shape[-1]:
        return tuple(each(x) for each in maps)
    short = _short(sum(sizes), x.shape[-1]) if x.is_cuda else 0
    if short:
        maps, sizes = (*maps, Map(maps[0].weight.new_zeros(short, x.shape[-1]))), [*sizes, short]
    bias = None
    if any(each.bias is not None for each in maps):
        bias = torch.cat([each.weight.new_zeros(len(each.weight)) if each.bias is None else each.bias for each in maps])
    out = nn.functional.linear(x, torch.cat([each.weight for each in maps]), bias)
    found = torch.split(out, sizes, dim=-1)
    return found[:-1] if short else found


def _short(columns: int, depth: int) -> int:
    """By how many columns there are too few, for a product of so much depth."""
    to_line = -columns % _LINE
    return to_line if columns < depth and to_line * _LITTLE <= columns else -columns % _TOGETHER


def column_beside(x: Tensor, column: Tensor, *others: Map) -> tuple[Tensor, list[Tensor]]:
    """x Wᵀ for x [..., D] and W [1, D], and what others make of x, from which nothing is learned; x is read once.

    Going back, the one column is not laid side by side with anything: what it adds to the gradient of x is found where
    that is used.
    """
    with torch.no_grad():
        *found, value = side_by_side(x, *others, Map(column))
    return _Column.apply(x, column, value), found  # type: ignore[no-untyped-call]


class _Column(torch.autograd.Function):
    """x Wᵀ, which is known already; W [1, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        columns = nn.functional.pad(grad.flatten(0, -2), (0, _TOGETHER - 1))
        of_weight = (columns.t() @ x.flatten(0, -2))[:1]
        return (grad * weight).to(x.dtype), of_weight.to(weight.dtype), None
