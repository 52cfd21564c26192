"""How well working memory foresees its own next input."""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from torchcram import processes
from torchcram.memory.joint import Map
from torchcram.memory.precision import wide
from torchcram.memory.timeline import Timeline
from torchcram.ops import surprise

_SMALL = 8192  # positions of a batch, of which the prediction learns from all
_LESSON = 2048  # positions, about, that it learns from in a larger one: so small a map needs no more


class Foresight(nn.Sequential):
    """A linear prediction, of rank R, of the next position's u from h. Nothing but its own two maps learns from it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False))

    @property
    def rank(self) -> int:
        """R"""
        return self.telling.weight.shape[0]  # whatever kind of map it is: other stacks put their own in its place

    @property
    def telling(self) -> Map:
        """What makes of h what the next position is told from."""
        return Map(cast(nn.Linear, self[0]).weight)

    def surprise(
        self, u: Tensor, h: Tensor, timeline: Timeline, carried: Tensor, told: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """How badly each input was predicted from the position before [B, N], and what to predict the next from.

        u, h [B, N, D]; carried [B, 1, R]: the latter, of the call before; told: what `telling` makes of h, if it is
        known. Where all of a call is learned from, the surprise has a gradient.
        """
        down, up = self
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learns_from_all(timeline)):
            # What is narrow is carried to the next position, not what is made of it.
            told = down(h.detach()) if told is None else told
            if timeline.padded or timeline.packed:
                before, carried = timeline.previous(told, carried)
                return _distance(u, up(before.squeeze(2))), carried
            last = told[:, -1:].to(carried.dtype, copy=True)  # a view would keep all of it
            return surprise(u.detach(), told, carried, cast(nn.Linear, up).weight), last

    def loss(
        self, u: Tensor, h: Tensor, surprise: Tensor, timeline: Timeline, carried: Tensor, tokens: Tensor
    ) -> Tensor:
        """Mean surprise over `tokens` real positions; of a large batch without padding as some of its positions tell.

        carried: what `surprise` was given.
        """
        if self.learns_from_all(timeline):
            return timeline.clean(surprise).sum() / tokens
        down, up = self
        batch, length, _ = u.shape
        positions = telling_positions(batch, length, u.device)
        seen, before = positions.pick(u, h)
        return positions.missed(seen, down(before), carried, up) / tokens

    def learns_from_all(self, timeline: Timeline) -> bool:
        """Rather than from some positions: of a small batch, and of one with padding."""
        rows, length = timeline.mask.shape
        return timeline.padded or timeline.packed or processes.overall(rows) * length <= _SMALL


class Positions(NamedTuple):
    """Positions that a large batch is learned from."""

    at: Tensor
    """[B, P]"""
    apart: Tensor
    """[P]: how long the stretch is that each tells of."""

    def pick(self, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """u there, and h at the positions before [B, P, D], of u and h [B, N, D]."""
        row = torch.arange(len(self.at), device=u.device).unsqueeze(1)
        return u[row, self.at].detach(), h[row, (self.at - 1).clamp_min(0)].detach()

    def missed(self, seen: Tensor, told: Tensor, carried: Tensor, up: Callable[[Tensor], Tensor]) -> Tensor:
        """[]: how badly what is seen there [..., B, P, D] was foretold, all stretches together.

        told [..., B, P, R]: at the positions before; carried [..., B, 1, R]: before the first; up makes a prediction of
        it.
        """
        told = torch.where((self.at == 0).unsqueeze(2), carried.to(told.dtype), told)
        return (_distance(seen, up(told)) * self.apart).sum()


def telling_positions(batch: int, length: int, device: torch.device) -> Positions:
    """Of each row's parts one position each.

    Which one is by chance, since data may have a rhythm, but the same in every call and in however many processes.
    """
    rows = processes.share(range(processes.overall(batch)))
    parts = max(1, _LESSON // processes.overall(batch))
    begin = torch.arange(parts + 1, device=device) * length // parts
    apart = begin.diff()
    row = torch.arange(rows.start, rows.stop, device=device).unsqueeze(1)
    return Positions(begin[:-1] + _mixed(row * parts + torch.arange(parts, device=device)) % apart, apart)


def _mixed(number: Tensor) -> Tensor:
    """Sixteen bits that look random. Wider ones compiled code takes for overflows (`ops.hashed` has them)."""
    x = (number * 40503) & 0xFFFF
    x = ((x ^ (x >> 7)) * 29573) & 0xFFFF
    return x ^ (x >> 9)


def _distance(u: Tensor, prediction: Tensor) -> Tensor:
    return wide(u.detach() - prediction).square().mean(-1)
