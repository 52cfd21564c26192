"""What a device does during a training step or a prefill: its time by kind of work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from torchcram.bench.timing import wait_for
from torchcram.bench.turns import alone
from torchcram.bench.whole import WARM_UP, Contender, Size, imposed
from torchcram.config import ModelConfig
from torchcram.memory import RoutingPolicy
from torchcram.models import baseline
from torchcram.results import Row

KINDS = {
    "reads": r"_read",
    "working memory": r"_scan_|_euler_|torchcram::expert|decay_scan",
    "attention": r"flash|fmha|attention",
    "choosing, listing and moving": r"_reach|_arrange|_list_|_count_ranks|_find_bars|_sift|_leave|sort|gather|scatter|"
    r"index|cumsum|argm|topk|nonzero",
    "optimizer": r"adam|multi_tensor",
    "products": r"gemm|nvjet|cutlass|xmma|splitk|mm$|mm_$|matmul|linear",
    "the rest": r"",
}
"""What a kernel is of, by its name; the first that is found in it counts."""

OVERHEAD = "choosing, listing and moving"
"""The kind that is neither memory nor layer: a compiled kernel that does any of it counts whole."""

_STEPS = 5  # that are looked at


class Work(NamedTuple):
    """A kernel, or on a CPU an operation."""

    name: str
    microseconds: float
    launches: int


def kind_of(name: str) -> str:
    """Which of `KINDS`."""
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))


def run(
    size: Size, lengths: Sequence[int], device: str, *, against: str = "transformer", top: int = 0
) -> Iterator[Row]:
    """Of both models at each length: milliseconds of each kind, and of the `top` kernels that take longest."""
    place, config = torch.device(device), size.cram()
    for length in lengths:
        batch = max(1, size.tokens // length)
        for name, each in (("cram", config), (against, baseline(against, config))):
            for what in ("train", "prefill"):
                policy = RoutingPolicy()
                if name == "cram":
                    policy = imposed(size, batch, length, config.layers, place, training=what == "train")
                works = _watch(each, size, what, batch, length, policy, place)
                facts = {"what": what, "model": name, "length": length, "batch": batch, "slots": size.slots}
                yield from _rows(works, facts, top)


def _watch(
    config: ModelConfig, size: Size, what: str, batch: int, length: int, policy: RoutingPolicy, device: torch.device
) -> list[Work]:
    contender = Contender(config, size, device)
    tokens = torch.randint(size.vocabulary, (batch, length), device=device)
    once = (contender.train if what == "train" else contender.prefill)(tokens, policy)
    on_gpu = device.type == "cuda"
    for _ in range(WARM_UP if on_gpu else 1):
        once()
    with alone():
        once()  # which records it, on a GPU
        wait_for(device)
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
            for _ in range(_STEPS):
                once()
            wait_for(device)
    events = seen.key_averages()
    spent = (
        Work(
            event.key,
            (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / _STEPS,
            event.count // _STEPS,
        )
        for event in events
        if not event.is_user_annotation  # they cover kernels that count by themselves
    )
    return [work for work in spent if work.microseconds > 0]


def _rows(works: Iterable[Work], facts: Row, top: int) -> Iterator[Row]:
    works = sorted(works, key=lambda work: -work.microseconds)
    total = sum(work.microseconds for work in works)
    for kind in KINDS:
        mine = [work for work in works if kind_of(work.name) == kind]
        if mine:
            spent = sum(work.microseconds for work in mine)
            count = sum(work.launches for work in mine)
            yield {**facts, "kind": kind, "ours_ms": spent / 1000, "share": spent / total, "kernels": count}
    for work in works[:top]:
        share = work.microseconds / total
        row = {"kind": kind_of(work.name), "kernel": work.name[:120]}
        yield {**facts, **row, "ours_ms": work.microseconds / 1000, "share": share, "kernels": work.launches}
