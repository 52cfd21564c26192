"""How well working memory foresees its own next input."""

from typing import cast

import torch
from torch import Tensor, nn

from torchcram.memory.joint import Map
from torchcram.memory.precision import wide
from torchcram.memory.timeline import Timeline
from torchcram.ops import surprise

_LESSON = 8192  # positions of a call, at most, that the prediction learns from: so small a map needs no more
_SPREAD = 40503  # the golden ratio of 2¹⁶: its multiples are evenly spread, and 8,192 of them fit into 32 bits


class Foresight(nn.Sequential):
    """A linear prediction, of rank R, of the next position's u from h. Nothing but its own two maps learns from it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False))

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
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._learns_from_all(timeline)):
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
        """Mean surprise over `tokens` real positions; of a long call as some of its positions tell.

        carried: what `surprise` was given.
        """
        if self._learns_from_all(timeline):
            return timeline.clean(surprise).sum() / tokens
        down, up = self
        batch, length, width = u.shape
        # One of every so many positions in a row, now here and now there among them: data may have a rhythm.
        apart = -(-batch * length // _LESSON)
        number = torch.arange(batch * length // apart, device=u.device)
        at = number * apart + (number * _SPREAD >> 8) % apart
        first = (at % length == 0).unsqueeze(1)
        before = down(h.detach().reshape(-1, width)[(at - 1).clamp_min(0)])
        before = torch.where(first, carried[at // length, 0].to(before.dtype), before)
        mean = _distance(u.reshape(-1, width)[at], up(before)).mean()
        return mean * (batch * length) / tokens

    def _learns_from_all(self, timeline: Timeline) -> bool:
        return timeline.padded or timeline.packed or timeline.mask.numel() <= _LESSON


def _distance(u: Tensor, prediction: Tensor) -> Tensor:
    return wide(u.detach() - prediction).square().mean(-1)
