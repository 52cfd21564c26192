"""A step through a layer as GPU kernels, each as much as can be done before all programs must have finished.

With few sequences a product takes as long as its weights take to arrive. So each program makes a few columns of one for
all sequences of a tile, from weights that lie side by side; and it asks for all that it can before it waits for any.
On a GPU that can do so (Hopper or newer), a kernel asks for its weights while the one before it is still at work.
"""

import math
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from torchcram.ops.dispatch import on_device
from torchcram.ops.step import GROUP, Clock, Held, Scratch, Sizes, Weights
from torchcram.ops.step.products import enter, euler, mix, narrow, project, widen
from torchcram.ops.step.reading import read

_DEPTH = 1024  # bytes of a row that are multiplied at a time
_TILE = 1024  # slots looked at together for the worst
_BYTES = 16 << 10  # of keys or values that are read together


def step(
    x: Tensor, squares: Tensor, clock: Clock, weights: Weights, held: Held, scratch: Scratch, sizes: Sizes
) -> tuple[Tensor, Tensor]:
    batch, width, rank = len(x), sizes.width, sizes.rank
    rows = 16 if batch <= 16 else 32
    tiles, groups = triton.cdiv(batch, rows), width // GROUP
    enters, projects = sizes.entering, sizes.projected
    drive, active, quality, router, priority, entering = (begin - width for begin in enters[1:])
    early = _can_begin_early(x.device)
    ahead: dict[str, Any] = {"AHEAD": early, **({"launch_pdl": True} if early else {})}
    own = {"ROWS": rows, "GROUP": GROUP, **ahead}
    normed = {**own, "GROUPS": groups, "SOME": _power(groups)}
    deep, shallow, wide = (min(_DEPTH // x.element_size(), _power(size)) for size in (width, rank, sizes.feed))
    size, slots = width // sizes.heads, sizes.slots
    out, out_squares = torch.empty_like(x), torch.empty_like(squares)
    with on_device(x):
        enter[(enters[-1] // GROUP + groups, tiles)](
            x,
            squares,
            weights.norm,
            weights.enter,
            weights.enter_bias,
            clock.mask,
            clock.gap,
            weights.rate,
            weights.expect,
            held.working,
            held.prediction,
            scratch.u,
            scratch.h,
            scratch.made,
            scratch.missed,
            batch,
            sizes.eps[0],
            WIDTH=width,
            RANK=rank,
            MADE=entering,
            ACTIVE=active,
            QUALITY=quality,
            DEPTH=deep,
            SHALLOW=shallow,
            **normed,
        )
        for number in range(sizes.steps):
            euler[(groups + (number == 0), tiles)](
                scratch.h[number % 2],
                scratch.h[(number + 1) % 2],
                weights.recurrent,
                weights.gate_weight,
                weights.gate_bias,
                clock.log_gap,
                scratch.made,
                weights.judge,
                weights.score,
                weights.score_bias,
                scratch.judged,
                batch,
                1 / sizes.steps,
                WIDTH=width,
                RANK=rank,
                MADE=entering,
                DRIVE=drive,
                ACTIVE=active,
                QUALITY=quality,
                DEPTH=deep,
                SHALLOW=shallow,
                JUDGES=min(64, _power(rank)),
                **own,
            )
        h = scratch.h[sizes.steps % 2]
        project[(projects[-1] // GROUP, tiles)](
            h,
            scratch.u,
            weights.mix,
            weights.project,
            clock.mask,
            held.prediction,
            scratch.projected,
            batch,
            WIDTH=width,
            RANK=rank,
            PRIORITY=projects[2],
            QUERY=projects[3],
            MADE=projects[-1],
            DEPTH=min(deep, 256),  # u and h meet in registers, which are few
            **own,
        )
        read[(batch, sizes.heads)](
            h,
            scratch.made,
            scratch.missed,
            scratch.judged,
            scratch.projected,
            clock.log_gap,
            clock.mask,
            clock.position,
            clock.time,
            weights.scalars,
            weights.out,
            weights.out_bias,
            weights.lead,
            weights.recency,
            held.key,
            held.value,
            held.priority,
            held.known,
            held.time,
            held.position,
            held.mass,
            scratch.scores,
            scratch.found,
            scratch.priority,
            scratch.slot,
            scratch.tally,
            batch,
            slots,
            sizes.threshold,
            torch.finfo(held.priority.dtype).max,
            1 / math.sqrt(size),
            1.0 if sizes.trained_length is None else 1 / math.log(sizes.trained_length),
            WIDTH=width,
            WIDE=_power(width),
            GROUPS=groups,
            SOME=_power(groups),
            HIDDEN=sizes.hidden,
            UNITS=_power(sizes.hidden),
            MADE=entering,
            ROUTER=router,
            PRIORITY=priority,
            PROJECTED=projects[-1],
            OWN=projects[2],
            QUERY=projects[3],
            HEADS=sizes.heads,
            SIZE=size,
            TRAINED=sizes.trained_length or 0,
            TILE=min(_TILE, _power(slots)),
            FEW=min(_BYTES // x.element_size() // size, _power(slots)),
            num_warps=8,
            **ahead,
        )
        mix[(groups + 1, tiles)](
            x,
            scratch.projected,
            scratch.made,
            weights.recall,
            scratch.found,
            weights.outward,
            clock.mask,
            clock.position,
            clock.time,
            scratch.tally,
            scratch.slot,
            scratch.priority,
            held.priority,
            held.known,
            held.time,
            held.position,
            held.mass,
            scratch.x,
            scratch.squares,
            batch,
            slots,
            WIDTH=width,
            RANK=rank,
            MADE=entering,
            ACTIVE=active,
            PROJECTED=projects[-1],
            DEPTH=deep,
            SHALLOW=shallow,
            **own,
        )
        widen[(triton.cdiv(sizes.feed, GROUP), tiles)](
            scratch.x,
            scratch.squares,
            weights.widen,
            weights.widen_bias,
            scratch.feed,
            batch,
            sizes.eps[1],
            WIDTH=width,
            FEED=sizes.feed,
            DEPTH=deep,
            **normed,
        )
        narrow[(groups, tiles)](
            scratch.feed,
            weights.narrow,
            weights.narrow_bias,
            scratch.x,
            clock.mask,
            out,
            out_squares,
            batch,
            WIDTH=width,
            FEED=sizes.feed,
            DEPTH=wide,
            **own,
        )
    return out, out_squares


@lru_cache
def _can_begin_early(device: torch.device) -> bool:
    """Whether a kernel may begin before the one before it has ended; Triton's interpreter knows nothing of it."""
    cuda = device.type == "cuda" and torch.version.hip is None
    return cuda and torch.cuda.get_device_capability(device) >= (9, 0)


def _power(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())
