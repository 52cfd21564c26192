"""What skipping saves on a CPU: the gathered read, the parallel working memory, and a long stream in flat memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcram.bench.timing import compare
from torchcram.config import CramConfig, WorkingConfig
from torchcram.ledger import peak_resident_bytes
from torchcram.memory import CramState, Timeline, WorkingMemory
from torchcram.models import Cram
from torchcram.ops import Events, Rows, compact, episodic_read, use
from torchcram.results import Row

SEED = 0


def run() -> Iterator[Row]:
    """All rows of `torchcram bench cpu`, one as soon as it is measured."""
    torch.manual_seed(SEED)
    yield from gathered_read()
    yield from working_memory()
    yield long_stream()


def gathered_read(length: int = 2048, heads: int = 8, size: int = 64, share: float = 0.015) -> Iterator[Row]:
    """Attention of a share of the rows over all earlier events, against causal attention of all rows."""
    # Keys and values lie in memory head by head, as episodic memory writes them; a baseline has them so too.
    query, key, value = (torch.randn(1, heads, length, size).transpose(1, 2) for _ in range(3))
    strength = nn.functional.logsigmoid(torch.randn(1, length))
    recency = 0.1 * torch.randn(heads)
    chosen = torch.zeros(1, length, dtype=torch.bool)
    chosen[0, torch.randperm(length)[: round(share * length)]] = True
    rows = compact(chosen)
    moment = torch.rand(1, length, dtype=torch.float64).cumsum(1)
    events = Events(torch.arange(length).unsqueeze(0), torch.full((1, length), length), moment)
    few = _FewRows(query[:, rows.at[0]], key, value, strength, recency)
    row_time = moment[:, rows.at[0]]
    _check_read(few, rows, row_time, events)
    q, k, v = (x.transpose(1, 2).contiguous() for x in (query, key, value))

    def sparse() -> Tensor:
        return episodic_read(few.query, few.key, few.value, few.strength, few.recency, rows, row_time, events).value

    def dense() -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def train(run: Callable[[], Tensor]) -> None:
        torch.autograd.backward(run().sum())

    def pair(what: str, ours: Callable[[], object], baseline: Callable[[], object]) -> Row:
        return compare(
            what,
            ours,
            baseline,
            against="causal scaled_dot_product_attention of all rows",
            length=length,
            heads=heads,
            head_size=size,
            rows=rows.at.shape[1],
        )

    with torch.no_grad():
        yield pair("gathered read, forward", sparse, dense)
    for x in (*few, q, k, v):
        x.requires_grad_()
    yield pair("gathered read, forward and backward", lambda: train(sparse), lambda: train(dense))


class _FewRows(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    strength: Tensor
    recency: Tensor


def _check_read(few: _FewRows, rows: Rows, row_time: Tensor, events: Events) -> None:
    """No timing of a wrong result: the fast form against the specification in float64."""
    fast = episodic_read(few.query, few.key, few.value, few.strength, few.recency, rows, row_time, events).value
    q, k, v, strength, recency = (x.double() for x in few)
    with use("reference"):
        exact = episodic_read(q, k, v, strength, recency, rows, row_time, events).value
    error = float((fast - exact).norm() / exact.norm())
    if error > 1e-5:
        raise RuntimeError(f"the gathered read is off by {error:.1e} from its specification; nothing was timed")


def working_memory(length: int = 512, width: int = 128) -> Iterator[Row]:
    """All positions at once, against one position after another."""
    memory = WorkingMemory(width, WorkingConfig()).eval()
    for batch in (1, 16):
        u, dt = torch.randn(batch, length, width), torch.rand(batch, length)
        state = torch.zeros(batch, width)
        whole = Timeline.build(dt)
        steps = [Timeline.build(dt[:, t : t + 1]) for t in range(length)]

        def parallel(u: Tensor = u, whole: Timeline = whole, state: Tensor = state) -> Tensor:
            out: Tensor = memory(u, whole, state)[0]
            return out

        def stepwise(u: Tensor = u, steps: list[Timeline] = steps, state: Tensor = state) -> Tensor:
            outs = []
            for t, step in enumerate(steps):
                out, _, state = memory(u[:, t : t + 1], step, state)
                outs.append(out)
            return torch.cat(outs, dim=1)

        with torch.no_grad():
            torch.testing.assert_close(parallel(), stepwise(), rtol=1e-4, atol=1e-5)
            yield compare(
                "parallel working memory, forward",
                parallel,
                stepwise,
                against="the same module, one position a call",
                length=length,
                batch=batch,
                width=width,
                repeats=7,
            )


def long_stream(length: int = 131_072, chunk: int = 2048) -> Row:
    """A long sequence through a small model, chunk by chunk: does memory stay flat?"""
    model = Cram(CramConfig.preset("small", inputs="tokens", vocabulary=256, outputs="tokens")).eval()
    generator = torch.Generator().manual_seed(SEED)
    state: CramState | None = None
    resident: list[int] = []
    begin = time.perf_counter()
    with torch.no_grad():
        for _ in range(length // chunk):
            tokens = torch.randint(0, 256, (1, chunk), generator=generator)
            dt = torch.empty(1, chunk).exponential_(generator=generator)
            state = model(tokens, dt=dt, state=state).state
            resident.append(_resident_bytes())
    seconds = time.perf_counter() - begin
    assert state is not None
    return {
        "what": "stream in chunks",
        "length": length,
        "chunk": chunk,
        "preset": "small",
        "slots": 512,
        # One reading depends on what the allocator happens to hold back: the most in ten chunks does not.
        "resident_first_ten": max(resident[:10]),
        "resident_last_ten": max(resident[-10:]),
        "growth": max(resident[-10:]) / max(resident[:10]) - 1,
        "state_bytes": state.nbytes,
        "seconds": seconds,
        "tokens_per_second": length / seconds,
    }


def _resident_bytes() -> int:
    """Memory this process holds now; where the system does not tell, the most it has held."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_resident_bytes()
