"""Number the real entries, then gather by number."""

import torch
from torch import Tensor


def previous(x: Tensor, carried: Tensor, mask: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    batch, length, width = x.shape
    depth = carried.shape[1]
    steps = torch.arange(1, depth + 1, device=x.device)
    entries = torch.cat([carried.flip(1), x], dim=1)
    before = torch.nn.functional.pad(mask.cumsum(1), (1, 0)) + depth
    # where_is[n] is the place in `entries` of the n-th real entry, carried ones first; padding goes to the spare.
    where_is = torch.arange(depth + length + 1, device=x.device).repeat(batch, 1)
    place = torch.where(mask, before[:, :-1], depth + length)
    where_is.scatter_(1, place, torch.arange(depth, depth + length, device=x.device).repeat(batch, 1))
    source = where_is.gather(1, (before.unsqueeze(-1) - steps).flatten(1))
    picked = entries.gather(1, source.unsqueeze(-1).expand(-1, -1, width))
    picked = picked.view(batch, length + 1, depth, width)
    picked = picked.masked_fill((steps > position.unsqueeze(-1)).unsqueeze(-1), 0)
    return picked[:, :-1], picked[:, -1].clone()  # a view would keep every entry alive
