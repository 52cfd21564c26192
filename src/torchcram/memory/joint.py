"""Linear maps of several inputs at once."""

import torch
from torch import Tensor, nn


def joint(map: nn.Linear, *parts: Tensor) -> Tensor:
    """What a linear map makes of parts [..., Dᵢ] side by side, without laying them side by side in memory."""
    weights = torch.split(map.weight, [part.shape[-1] for part in parts], dim=1)
    out = nn.functional.linear(parts[0], weights[0], map.bias)
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        out = out + nn.functional.linear(part, weight)
    return out
