"""Single operations: right first, then timed, against dense attention or a plain copy of the same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcram.bench.timing import at_best_for, compare, copy_bandwidth, in_turns, replayed, waiting
from torchcram.memory.episodic import useful
from torchcram.ops import (
    Events,
    Given,
    compact,
    decay_scan,
    episodic_read,
    euler_steps,
    expert,
    expiry,
    gather_rows,
    use,
)
from torchcram.results import Row

_LIMITS = {torch.float32: 1e-3, torch.bfloat16: 2e-2}  # relative error against float64: tf32 products, bfloat16


@dataclass(frozen=True, kw_only=True)
class Size:
    """What is timed."""

    tokens: int = 65_536
    heads: int = 8
    head: int = 64
    """Size of a head."""
    slots: int | None = 512
    reads: float = 0.015
    dtype: torch.dtype = torch.bfloat16
    repeats: int = 25


def run(size: Size, lengths: list[int], device: str) -> Iterator[Row]:
    """The scan, the expert made of it, expiry and the read at each length."""
    place = torch.device(device)
    torch.manual_seed(0)
    bandwidth = copy_bandwidth(place)
    for length in lengths:
        yield from _scans(size, length, place, bandwidth)
        yield from _experts(size, length, place)
        yield _expiries(size, length, place)
        for slots in dict.fromkeys((size.slots, None)):
            yield from _reads(size, length, slots, place)


def _scans(size: Size, length: int, device: torch.device, bandwidth: float) -> Iterator[Row]:
    batch, width = max(1, size.tokens // length), size.heads * size.head
    x = torch.randn(batch, length, width, device=device).to(size.dtype).requires_grad_()
    rate = torch.rand(width, device=device).requires_grad_()
    gap, reset = torch.rand(batch, length, device=device), torch.zeros(batch, length, dtype=torch.bool, device=device)
    initial = torch.zeros(batch, width, device=device)
    grad = torch.randn_like(x)

    def scan(*given: Tensor) -> Tensor:
        return decay_scan(given[0], given[1], gap.to(given[1].dtype), reset, initial.to(given[1].dtype))[0]

    _check("scan", scan, [x, rate], grad, size.dtype)
    bytes_moved = x.numel() * x.element_size()
    # Going back is timed together with what it goes back through: recorded alone it would run where that ran.
    runs = (lambda: scan(x, rate)), (lambda: torch.autograd.grad(scan(x, rate), [x, rate], grad))
    forward, both = in_turns(*(replayed(run, device) for run in runs), repeats=size.repeats, warm_up=5, on=device)
    backward = max(both - forward, 1e-9)
    # Forward: x in, states out. Backward: gradient and states in, gradient out.
    for what, seconds, tensors in (("scan, forward", forward, 2), ("scan, backward", backward, 3)):
        yield {
            "what": what,
            "length": length,
            "batch": batch,
            "width": width,
            "dtype": str(size.dtype).removeprefix("torch."),
            "ours_ms": 1000 * seconds,
            "share_of_bandwidth": tensors * bytes_moved / seconds / bandwidth,
        }


def _experts(size: Size, length: int, device: torch.device, steps: int = 3) -> Iterator[Row]:
    """Scan and Euler steps as one operation, against one after the other."""
    batch, width = max(1, size.tokens // length), size.heads * size.head

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype).requires_grad_()

    inputs = [
        normal(batch, length, 2 * width, dtype=size.dtype),
        torch.rand(width, device=device).requires_grad_(),
        normal(width),
        normal(width),
        (normal(width, width).detach() / math.sqrt(width)).to(size.dtype).requires_grad_(),
    ]
    gap = torch.rand(batch, length, device=device)
    reset = torch.zeros(batch, length, dtype=torch.bool, device=device)
    initial, grad = torch.zeros(batch, width, device=device), torch.randn(batch, length, width, device=device)
    grad = grad.to(size.dtype)

    def together(*given: Tensor) -> Tensor:
        into, rate, gate_weight, gate_bias, weight = given
        clock = gap.to(rate.dtype), reset, initial.to(rate.dtype), gap.log1p().to(rate.dtype)
        return expert(Given(into, rate, *clock, gate_weight, gate_bias, weight), steps)[0]

    def apart(*given: Tensor) -> Tensor:
        into, rate, gate_weight, gate_bias, weight = given
        entering, drive = into.chunk(2, dim=-1)
        start, _ = decay_scan(entering, rate, gap, reset, initial)
        gate = torch.sigmoid(torch.addcmul(gate_bias, gate_weight, gap.log1p().unsqueeze(-1)))
        return euler_steps(start, drive, gate, weight, steps)

    _check("expert", together, inputs, grad, size.dtype)
    for what, backward in (("expert, forward", False), ("expert, forward and backward", True)):

        def run(form: Callable[..., Tensor], backward: bool = backward) -> Callable[[], None]:
            def once() -> None:
                with torch.set_grad_enabled(backward):
                    out = form(*inputs)
                if backward:
                    torch.autograd.grad(out, inputs, grad)

            return replayed(once, device)

        yield compare(
            what,
            run(together),
            run(apart),
            against="scan and Euler steps, one after the other",
            length=length,
            repeats=size.repeats,
            on=device,
            batch=batch,
            width=width,
            dtype=str(size.dtype).removeprefix("torch."),
        )


def _expiries(size: Size, length: int, device: torch.device) -> Row:
    batch = max(1, size.tokens // length)
    priority, mask, none, held = _stream(batch, length, device)
    (seconds,) = in_turns(
        replayed(lambda: expiry(priority, mask, None, none, *held, size.slots), device),
        repeats=size.repeats,
        warm_up=3,
        on=device,
    )
    return {"what": "expiry", "length": length, "batch": batch, "slots": size.slots, "ours_ms": 1000 * seconds}


def _reads(size: Size, length: int, slots: int | None, device: torch.device) -> Iterator[Row]:
    """The read of some rows over what they can read, against causal attention of all rows."""
    batch, heads, head = max(1, size.tokens // length), size.heads, size.head
    priority, mask, position, held = _stream(batch, length, device)
    fate = expiry(priority, mask, None, position, *held, slots)
    chosen = torch.rand(batch, length, device=device) < size.reads
    rows, listed = compact(chosen), compact(useful(fate.expires, chosen, keep=False))
    time = torch.rand(batch, length, dtype=torch.float64, device=device).cumsum(1)
    written, expires = (x.masked_fill(~listed.valid, length) for x in (listed.at, gather_rows(fate.expires, listed)))
    events = Events(written, expires, gather_rows(time, listed))
    row_time = gather_rows(time, rows)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(size.dtype).requires_grad_()

    query = normal(batch, rows.at.shape[1], heads, head)
    key, value = (normal(batch, listed.at.shape[1], heads, head) for _ in range(2))
    strength = nn.functional.logsigmoid(gather_rows(priority, listed)).requires_grad_()
    recency = torch.zeros(heads, device=device).requires_grad_()
    ours = [query, key, value, strength, recency]
    grad = torch.randn_like(query)

    def read(*given: Tensor) -> Tensor:
        return episodic_read(*given, rows, row_time, events).value  # type: ignore[call-arg, arg-type]

    _check("read", read, ours, grad, size.dtype)
    if device.type == "cuda":
        read = torch.compile(read, dynamic=False)  # as in a layer: what comes before and after the kernels is small
    dense = [normal(batch, heads, length, head) for _ in range(3)]
    dense_grad = torch.randn_like(dense[0])

    def attention() -> Tensor:
        q, k, v = dense
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "read, forward": (lambda: read(*ours), attention),
        "read, forward and backward": (
            lambda: torch.autograd.grad(read(*ours), ours, grad),
            lambda: torch.autograd.grad(attention(), dense, dense_grad),
        ),
    }
    for what, (mine, theirs) in pairs.items():
        with torch.set_grad_enabled(what != "read, forward"):
            kind, best = at_best_for(theirs, waiting(theirs, device), device)
            yield compare(
                what,
                replayed(mine, device),
                replayed(best, device),
                against=f"causal attention of all rows, {kind}",
                length=length,
                repeats=size.repeats,
                on=device,
                batch=batch,
                slots="all" if slots is None else slots,
                reads=size.reads,
                rows=rows.at.shape[1],
                events=listed.at.shape[1],
                dtype=str(size.dtype).removeprefix("torch."),
            )


def _stream(batch: int, length: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Priorities, mask and positions of events, and a buffer with nothing in it."""
    priority = torch.randn(batch, length, device=device)
    mask = torch.ones(batch, length, dtype=torch.bool, device=device)
    position = torch.arange(length, device=device).expand(batch, length)
    return priority, mask, position, (priority[:, :0], position[:, :0])


def _check(what: str, run: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor, dtype: torch.dtype) -> None:
    """No timing of a wrong result: output and gradients against the fast form in float64."""
    found = [run(*inputs)]
    found += torch.autograd.grad(found[0], inputs, grad)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    with use("fast"):
        expected = [run(*exact)]
        expected += torch.autograd.grad(expected[0], exact, grad.double())
    for number, (mine, true) in enumerate(zip(found, expected, strict=True)):
        error = float(((mine.double() - true).norm() / true.norm().clamp_min(1e-30)).detach())
        # A gradient that is one number a head or channel is what is left of thousands that nearly cancel.
        limit = _LIMITS[dtype] * (1 if mine.dim() > 1 else 10)
        if not error < limit or math.isnan(error):
            raise RuntimeError(f"{what}: result {number} is off by {error:.1e} from float64; nothing was timed")
