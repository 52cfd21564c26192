"""A layer that goes on by one position of each sequence, in a few GPU kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.memory.block import Block
from torchcram.memory.joint import Map
from torchcram.memory.router import EPISODIC
from torchcram.memory.state import BlockState
from torchcram.memory.timeline import Timeline
from torchcram.ops.step import GROUP, Clock, Held, Scratch, Sizes, Weights, squares, step

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_HEADS = (16, 32, 64, 128, 256)  # sizes that kernels can take at once


class Stepped(NamedTuple):
    """What a step did; the next one overwrites all but x."""

    x: Tensor
    """[B, 1, D]: the residual stream after the layer."""
    actions: Tensor
    """[B] int64; `NONE` for sequences that stayed where they were."""
    admitted: Tensor
    """[B] int64: 1 where the position entered the buffer."""
    pairs: Tensor
    """[B] int64: query-event pairs scored."""
    squares: Tensor
    """[B, .]: parts of |x|², which the next layer need not find out then."""

    @property
    def reads(self) -> Tensor:
        """[B] bool: who read."""
        return self.actions == EPISODIC


class FusedLayer:
    """What `Block.forward` does with `in_place=True`, for a block and the state that is to go on.

    The weights are copied, since several are merged: later changes of the block's are not seen. Nothing is made in a
    step but the x it returns, and it waits for nothing, so it can be recorded.
    """

    def __init__(self, block: Block, state: BlockState, tally: Tensor | None = None) -> None:
        """`state`, with all slots there can be, is what steps change; tally [3, B] int64: where they report."""
        if not self.suits(block):
            raise ValueError("there are no kernels for a step of this block; call the block itself")
        if block.training:
            raise ValueError("the block is in training mode; call block.eval() first")
        episodic = state.episodic
        assert episodic is not None
        assert block.episodic is not None
        if episodic.slots < (block.episodic.config.slots or 0):
            raise ValueError(f"the state has {episodic.slots} slots; expected all {block.episodic.config.slots}")
        if not all(x.is_contiguous() for _, x in state.named_tensors()):
            raise ValueError("a tensor of the state is not contiguous; clone it to a contiguous one")
        self._held = Held(state.working, state.prediction, *(getattr(episodic, name) for name in Held._fields[2:]))
        self._sizes = _sizes(block, episodic.slots)
        self._weights = _weights(block, self._sizes)
        self._scratch = _scratch(self._weights.outward, len(state.working), self._sizes, tally)

    @staticmethod
    def suits(block: Block) -> bool:
        """Whether there are kernels for a step of the block."""
        episodic, router, feed = block.episodic, block.router, block.feed
        if episodic is None or block.semantic is None or block.quality is None or feed is None:
            return False
        width = episodic.mix.shape[1]
        weights = {x.dtype for x in block.parameters()}
        return (
            episodic.config.slots is not None
            and episodic.taps is None
            and block.index is None
            and not block.exact
            and router.config.features == "input"
            and router.config.informed
            and router.worth is None
            and router.on_hit is None
            and block.working.config.carry == "scan"
            and isinstance(feed[1], nn.GELU)
            and feed[1].approximate == "none"
            and width % GROUP == 0
            and width // episodic.config.heads in _HEADS
            and len(weights) == 1
            and weights.pop() in _DTYPES
        )

    def step(self, x: Tensor, timeline: Timeline, known: Tensor | None = None) -> Stepped:
        """x [B, 1, D] and the timeline of one position of each sequence. known: `squares` of the layer that made x.

        A step's first layer must not be given those of a layer: what is computed instead (here, or by
        `ops.step.begin`) is an ordinary kernel, which keeps the kernels of two steps, that begin before others have
        ended, apart.
        """
        like = self._scratch.x
        if x.shape != (len(like), 1, like.shape[1]) or x.dtype != like.dtype:
            raise ValueError(
                f"x is {x.dtype} {tuple(x.shape)}; expected {like.dtype} {(len(like), 1, like.shape[1])}, as the state"
            )
        clock = Clock(*(getattr(timeline, name).contiguous() for name in Clock._fields))
        x = x.squeeze(1).contiguous()
        known = squares(x) if known is None else known
        out, after = step(x, known, clock, self._weights, self._held, self._scratch, self._sizes)
        actions, admitted, pairs = self._scratch.tally
        return Stepped(x=out.unsqueeze(1), actions=actions, admitted=admitted, pairs=pairs, squares=after)


def _sizes(block: Block, slots: int) -> Sizes:
    episodic, feed, norm_feed = block.episodic, block.feed, block.norm_feed
    assert episodic is not None
    assert feed is not None
    assert norm_feed is not None
    least = torch.finfo(torch.float32).eps  # of what norms are computed in
    return Sizes(
        width=episodic.mix.shape[1],
        rank=block.predictor.get_parameter("0.weight").shape[0],
        hidden=block.router.config.hidden,
        feed=feed.get_parameter("0.weight").shape[0],
        heads=episodic.config.heads,
        slots=slots,
        steps=block.working.config.steps,
        trained_length=episodic.config.trained_length,
        threshold=block.router.config.threshold,
        eps=(
            least if block.norm_memory.eps is None else block.norm_memory.eps,
            least if norm_feed.eps is None else norm_feed.eps,
        ),
    )


@torch.no_grad()
def _weights(block: Block, sizes: Sizes) -> Weights:
    working, router = block.working, block.router
    episodic, semantic, quality = block.episodic, block.semantic, block.quality
    assert episodic is not None
    assert semantic is not None
    assert quality is not None
    assert block.feed is not None
    assert block.norm_feed is not None
    width = sizes.width
    lead = nn.functional.softplus(router.sharpness)
    assert router.of_token is not None
    # The first is two parts of D, and D is a multiple of what parts begin at.
    entering = (
        working.of_token,
        Map(semantic.down.weight),
        quality.of_token._replace(bias=quality.hidden.bias),
        router.of_token._replace(bias=router.hidden.bias),
        episodic.of_token._replace(bias=episodic.priority.bias),
    )
    biases = (each.weight.new_zeros(len(each.weight)) if each.bias is None else each.bias for each in entering)
    weights = Weights(
        norm=block.norm_memory.weight.float(),
        enter=_normed(_stack(each.weight for each in entering), block.norm_memory),
        enter_bias=_stack(biases).float(),
        rate=nn.functional.softplus(working.rate).float(),
        expect=block.predictor.get_parameter("1.weight"),
        recurrent=working.recurrent,
        gate_weight=working.gate_weight.float(),
        gate_bias=working.gate_bias.float(),
        judge=quality.of_active(semantic.up).weight,
        score=quality.score.weight[0].float(),
        score_bias=quality.score.bias.float(),
        project=_stack(
            (
                working.outward.weight,
                block.predictor.get_parameter("0.weight"),
                episodic.priority.weight[:, width:],
                episodic.query.weight,
                episodic.key.weight,
                episodic.value.weight,
            )
        ),
        mix=torch.cat([torch.ones_like(episodic.mix[:1]), episodic.mix]).float(),
        scalars=router.hidden.weight[:, :-width].t().float(),
        out=router.out.weight.float(),
        out_bias=router.out.bias.float(),
        lead=(lead if router.config.sharpness else torch.zeros_like(lead)).float(),
        recency=episodic.recency.float(),
        recall=semantic.up.weight,
        outward=episodic.outward.weight,
        widen=_normed(block.feed.get_parameter("0.weight"), block.norm_feed),
        widen_bias=block.feed.get_parameter("0.bias").float(),
        narrow=block.feed.get_parameter("2.weight"),
        narrow_bias=block.feed.get_parameter("2.bias").float(),
    )
    return Weights(*(x.detach().clone(memory_format=torch.contiguous_format) for x in weights))


def _normed(weight: Tensor, norm: nn.RMSNorm) -> Tensor:
    """A map of what a norm makes, as a map of what it is given; what the norm divides by is left to be done."""
    return (weight.float() * norm.weight.float()).to(weight.dtype)


def _stack(parts: Iterable[Tensor]) -> Tensor:
    """Parts below each other, each with zeros up to where the next may begin."""
    room = []
    for part in parts:
        rest = -len(part) % GROUP
        room += [part, part.new_zeros(rest, *part.shape[1:])]
    return torch.cat(room)


def _scratch(like: Tensor, batch: int, sizes: Sizes, tally: Tensor | None) -> Scratch:
    def wide(*shape: int) -> Tensor:
        return torch.empty(batch, *shape, dtype=torch.float32, device=like.device)

    width = sizes.width
    return Scratch(
        u=like.new_empty(batch, width),
        h=like.new_empty(2, batch, width),
        made=wide(sizes.entering[-1] - width),
        missed=wide(width // GROUP),
        judged=wide(),
        projected=wide(sizes.projected[-1]),
        scores=wide(sizes.heads, sizes.slots),
        found=like.new_empty(batch, width),
        priority=wide(),
        worst=wide(),
        slot=torch.empty(batch, dtype=torch.int32, device=like.device),
        events=torch.empty(batch, dtype=torch.int32, device=like.device),
        tally=torch.empty(3, batch, dtype=torch.int64, device=like.device) if tally is None else tally,
        x=like.new_empty(batch, width),
        squares=wide(width // GROUP),
        feed=like.new_empty(batch, sizes.feed),
    )
