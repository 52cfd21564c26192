"""Where time went, from dense attention to a bounded buffer that few read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from torchcram.bench.timing import at_best_for, in_turns, waiting
from torchcram.bench.whole import Contender, Size, attention, compared, imposed
from torchcram.memory import RoutingPolicy
from torchcram.models import baseline
from torchcram.results import Row
from torchcram.strict import reject


class Stage(NamedTuple):
    """A way of running CRAM."""

    name: str
    slots: int | None
    """M; None: nothing is ever evicted."""
    reads: float
    compile: bool = True


def stages(size: Size, buffers: Sequence[int]) -> list[Stage]:
    """What changes on the way from everybody reading everything to few reading from a bounded buffer."""
    bounded = [
        stage
        for slots in buffers
        for stage in (
            Stage("all read a bounded buffer", slots, 1.0),
            Stage("few read a bounded buffer", slots, size.reads),
        )
    ]
    unfused = Stage(UNCOMPILED, buffers[0], size.reads, compile=False)
    return [
        Stage("all read everything", None, 1.0),
        Stage("few read everything", None, size.reads),
        *bounded,
        *([unfused] if size.compile else []),
    ]


UNCOMPILED = "few read a bounded buffer uncompiled"
"""The stage whose layers are not compiled."""

WHATS = ("train", "prefill")
"""What can be timed."""


def run(
    size: Size,
    lengths: Sequence[int],
    buffers: Sequence[int],
    device: str,
    *,
    whats: Sequence[str] = WHATS,
    names: Sequence[str] = (),
    repeats: int = 5,
) -> Iterator[Row]:
    """A training step and a prefill of each stage at each length, against a Transformer's. names: of stages, or all."""
    if unknown := sorted(set(whats) - set(WHATS)):
        reject("what", ", ".join(unknown), ", ".join(WHATS))
    every = stages(size, buffers)
    if unknown := sorted(set(names) - {stage.name for stage in every}):
        reject("stages", ", ".join(unknown), ", ".join(dict.fromkeys(stage.name for stage in every)))
    place = torch.device(device)
    for length in lengths:
        batch = max(1, size.tokens // length)
        tokens = torch.randint(size.vocabulary, (batch, length), device=place)
        for what in whats:
            rival, training = baseline("transformer", size.cram()), what == "train"
            dense = Contender(rival, size, place)
            run_dense = (dense.train if training else dense.prefill)(tokens, RoutingPolicy())
            kind, best = at_best_for(run_dense, attention(rival, size, batch, length, place, training=training), place)
            for stage in every:
                if names and stage.name not in names:
                    continue
                yield compared(
                    what,
                    (_once(stage, size, what, tokens, place, beside=dense), best),
                    place,
                    against=f"transformer, {kind}",
                    length=length,
                    repeats=repeats,
                    stage=stage.name,
                    batch=batch,
                    **_facts(stage, size),
                )


def _facts(stage: Stage, size: Size) -> dict[str, str | int | float]:
    slots = "all" if stage.slots is None else stage.slots
    return {"slots": slots, "reads": stage.reads, "compile": stage.compile and size.compile}


def _once(
    stage: Stage, size: Size, what: str, tokens: torch.Tensor, device: torch.device, beside: Contender
) -> Callable[[], None]:
    """A step, or a prefill, of CRAM at a stage."""
    mine = dataclasses.replace(size, reads=stage.reads, compile=stage.compile and size.compile)
    config = mine.cram().override({"episodic.slots": stage.slots})
    contender = Contender(config, mine, device, beside=beside)
    batch, length = tokens.shape
    policy = imposed(mine, batch, length, config.layers, device, training=what == "train")
    return (contender.train if what == "train" else contender.prefill)(tokens, policy)


def stores(
    length: int, shares: Sequence[float], device: str, *, heads: int = 8, head: int = 64, steps: int = 2000
) -> Iterator[Row]:
    """A layer's reads while tokens come one by one, from everything that was ever written: where routing itself pays.

    What was written lies in the device's memory, or in the host's, from where each read has to fetch it.
    """
    place = torch.device(device)
    dtype = torch.float32 if place.type == "cpu" else torch.bfloat16
    shape = (1, heads, length, head)
    query = torch.randn(1, heads, 1, head, device=place).to(dtype)
    here = [torch.randn(shape, device=place).to(dtype) for _ in range(2)]
    places = {"device": here}
    if place.type == "cuda":
        places["host"] = [x.cpu().pin_memory() for x in here]
    fetched = [torch.empty_like(x) for x in here]
    for where, kept in places.items():
        whole = None
        for share in sorted(shares, reverse=True):
            reading = (torch.rand(steps, generator=torch.Generator().manual_seed(0)) < share).tolist()

            def tokens(reading: list[bool] = reading, where: str = where, kept: list[torch.Tensor] = kept) -> None:
                for reads in reading:
                    if not reads:
                        continue
                    key, value = kept
                    if where == "host":
                        key, value = (to.copy_(x, non_blocking=True) for to, x in zip(fetched, kept, strict=True))
                    nn.functional.scaled_dot_product_attention(query, key, value)

            (seconds,) = in_turns(waiting(tokens, place), repeats=3, warm_up=1)
            each = 1000 * seconds / steps
            whole = each if whole is None else whole
            yield {
                "what": "reads from an unbounded store",
                "store": where,
                "length": length,
                "reads": sum(reading) / steps,
                "ours_ms": each,
                "baseline": f"{max(shares):.0%} reads",
                "baseline_ms": whole,
                "ratio": whole / max(each, 1e-9),
            }
