"""Linear maps of several inputs at once, and several of one input."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.memory.moments import wide

_TOGETHER = 8  # columns: GPUs multiply matrices of other widths far more slowly


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
    short = -sum(sizes) % _TOGETHER if x.is_cuda else 0
    if short:
        maps, sizes = (*maps, Map(maps[0].weight.new_zeros(short, x.shape[-1]))), [*sizes, short]
    biases = [each.weight.new_zeros(len(each.weight)) if each.bias is None else each.bias for each in maps]
    out = nn.functional.linear(x, torch.cat([each.weight for each in maps]), torch.cat(biases))
    found = torch.split(out, sizes, dim=-1)
    return found[:-1] if short else found


def few(x: Tensor, map: Map) -> Tensor:
    """What a map to a few numbers makes of x [..., D]: [..., C].

    Compiled, it goes with whatever else is done to x: products with so narrow a matrix are slow, and their gradients
    are wide.
    """
    if not torch.compiler.is_compiling():
        return map(x)
    out = (wide(x).unsqueeze(-2) * map.weight).sum(-1)
    return (out if map.bias is None else out + map.bias).to(x.dtype)


def of_few(numbers: tuple[Tensor, ...], weight: Tensor, onto: Tensor) -> Tensor:
    """onto [..., C] with what a map of weight [C, D] makes of D numbers [...] each; compiled as in `few`."""
    if not torch.compiler.is_compiling():
        return nn.functional.linear(torch.stack(numbers, dim=-1).to(onto.dtype), weight) + onto
    added = (number.unsqueeze(-1) * each for number, each in zip(numbers, weight.unbind(1), strict=True))
    return sum(added, start=wide(onto)).to(onto.dtype)
