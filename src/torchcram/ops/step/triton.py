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
from torchcram.ops.step import GROUP, Clock, Entry, Exit, Held, Scratch, Sizes, Standing, Weights, ends
from torchcram.ops.step.products import enter, euler, mix, narrow, project, widen
from torchcram.ops.step.reading import read

_DEPTH = 2048  # bytes of a row that are multiplied at a time
_ROWS = (8, 16, 32)  # sequences of a program: the fewest for which there are not too many programs
_PROGRAMS = 528  # that run side by side
_WARP = 8 << 10  # bytes of a product's operands for each warp
_WARPS = (2, 4)  # at least, at most
_JUDGES = 1024  # numbers of the quality's hidden layer at a time, of all sequences of a program
_MEETING = 1024  # bytes of a row of u and of h that meet in registers, which are few
_READING = 8  # warps of a program that reads
_TILE = 1024  # slots looked at together for the worst
_BYTES = 16 << 10  # of keys or values that are read together
_SCORES = 2048  # of one head that are looked at together once all are there


def step(
    x: Tensor, squares: Tensor, clock: Clock, weights: Weights, held: Held, scratch: Scratch, sizes: Sizes
) -> tuple[Tensor, Tensor]:
    batch, width, rank = len(x), sizes.width, sizes.rank
    groups = width // GROUP
    enters, projects = sizes.entering, sizes.projected
    drive, active, quality, router, priority, entering = (begin - width for begin in enters[1:])
    early = _can_begin_early(x.device)
    ahead: dict[str, Any] = {"AHEAD": early, **({"launch_pdl": True} if early else {})}
    normed = {"GROUPS": groups, "SOME": _power(groups)}
    deep, shallow, wide = (min(_DEPTH // x.element_size(), _power(size)) for size in (width, rank, sizes.feed))

    def tiles(programs: int, depth: int) -> tuple[tuple[int, int], dict[str, Any]]:
        """The grid of a product of so many groups of columns, and how each program goes about it."""
        rows = rows_for(batch, programs)
        warps = warps_for(rows, depth * x.element_size())
        how = {"ROWS": rows, "GROUP": GROUP, "PARTS": warps, "num_warps": warps, **ahead}
        return (programs, triton.cdiv(batch, rows)), how

    size, slots, largest = width // sizes.heads, sizes.slots, torch.finfo(held.priority.dtype).max
    out, out_squares = torch.empty_like(x), torch.empty_like(squares)
    with on_device(x):
        grid, how = tiles(enters[-1] // GROUP + groups, deep)
        enter[grid](
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
            **how,
        )
        for number in range(sizes.steps):
            grid, how = tiles(groups + (number == 0), deep)
            if number == 0:
                grid = (grid[0] + triton.cdiv(batch, grid[1]), grid[1])
            euler[grid](
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
                held.priority,
                held.known,
                held.position,
                scratch.worst,
                scratch.slot,
                scratch.events,
                batch,
                1 / sizes.steps,
                slots,
                largest,
                WIDTH=width,
                RANK=rank,
                MADE=entering,
                DRIVE=drive,
                ACTIVE=active,
                QUALITY=quality,
                DEPTH=deep,
                SHALLOW=shallow,
                TILE=min(_TILE, _power(slots)),
                JUDGES=min(_JUDGES // how["ROWS"], _power(rank)),
                **how,
            )
        h = scratch.h[sizes.steps % 2]
        grid, how = tiles(projects[-1] // GROUP, deep)
        project[grid](
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
            DEPTH=min(deep, _MEETING // x.element_size()),
            **how,
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
            held.time,
            held.position,
            held.mass,
            scratch.scores,
            scratch.found,
            scratch.priority,
            scratch.worst,
            scratch.slot,
            scratch.events,
            scratch.tally,
            batch,
            slots,
            sizes.threshold,
            largest,
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
            FEW=min(_BYTES // x.element_size() // size, _power(slots)),
            MANY=min(_SCORES, _power(slots)),
            num_warps=_READING,
            **ahead,
        )
        grid, how = tiles(groups + 1, deep)
        mix[grid](
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
            **how,
        )
        grid, how = tiles(triton.cdiv(sizes.feed, GROUP), deep)
        widen[grid](
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
            **how,
        )
        grid, how = tiles(groups, wide)
        narrow[grid](
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
            **how,
        )
    return out, out_squares


def begin(
    tokens: Tensor, dt: Tensor, mask: Tensor, standing: Standing, entry: Entry, clock: Clock
) -> tuple[Tensor, Tensor]:
    batch, width = len(tokens), entry.table.shape[1]
    groups = width // GROUP
    x = entry.table.new_empty(batch, width)
    squares = torch.empty(batch, groups, dtype=torch.float32, device=x.device)
    rows = 16
    with on_device(x):
        ends.begin[(groups, triton.cdiv(batch, rows))](
            tokens,
            dt,
            mask,
            standing.position,
            standing.time,
            entry.table,
            entry.weight,
            entry.bias,
            entry.frequencies,
            *clock,
            x,
            squares,
            batch,
            len(entry.table),
            entry.unit,
            WIDTH=width,
            WAVES=len(entry.frequencies),
            SOME=_power(len(entry.frequencies)),
            ROWS=rows,
            GROUP=GROUP,
            EARLY=_can_begin_early(x.device),
        )
    return x, squares


def finish(x: Tensor, squares: Tensor, clock: Clock, tally: Tensor, standing: Standing, exit: Exit) -> Tensor:
    (batch, width), size, layers = x.shape, len(exit.weight), len(tally)
    groups = width // GROUP
    programs = triton.cdiv(size, GROUP)
    rows, depth = rows_for(batch, programs), min(_DEPTH // x.element_size(), _power(width))
    warps = warps_for(rows, depth * x.element_size())
    early = _can_begin_early(x.device)
    ahead: dict[str, Any] = {"AHEAD": early, **({"launch_pdl": True} if early else {})}
    out = x.new_empty(batch, size)
    with on_device(x):
        ends.finish[(programs + 1, triton.cdiv(batch, rows))](
            x,
            squares,
            exit.norm,
            exit.weight,
            exit.bias,
            clock.mask,
            clock.position,
            clock.time,
            tally,
            *standing,
            out,
            batch,
            exit.eps,
            size,
            WIDTH=width,
            LAYERS=layers,
            STACK=_power(layers, 1),
            MANY=32,
            ROWS=rows,
            PARTS=warps,
            GROUP=GROUP,
            GROUPS=groups,
            SOME=_power(groups),
            DEPTH=depth,
            num_warps=warps,
            **ahead,
        )
    return out


def rows_for(batch: int, programs: int) -> int:
    """Sequences that a program of a product takes.

    It needs all weights of its columns and the numbers of its sequences: with few of these more processors take part,
    until there are programs for all.
    """
    for rows in _ROWS:
        if batch <= rows or triton.cdiv(batch, rows) * programs <= _PROGRAMS:
            return rows
    return _ROWS[-1]


def warps_for(rows: int, depth: int) -> int:
    """Warps of a product of `depth` bytes, each of which has a part of them to itself."""
    least, most = _WARPS
    return max(least, min(most, _power((rows + GROUP) * depth // _WARP, 1)))


@lru_cache
def _can_begin_early(device: torch.device) -> bool:
    """Whether a kernel may begin before the one before it has ended; Triton's interpreter knows nothing of it."""
    cuda = device.type == "cuda" and torch.version.hip is None
    return cuda and torch.cuda.get_device_capability(device) >= (9, 0)


def _power(size: int, least: int = 16) -> int:
    return max(least, 1 << (size - 1).bit_length())
