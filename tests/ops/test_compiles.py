"""Every GPU kernel compiles for Hopper, at the sizes of the paper's model; no GPU is needed for that, only Triton.

What Triton's interpreter lets pass, its compiler may refuse. Takes a minute: `pip install triton`, then
`pytest -m slow tests/ops/test_compiles.py`.
"""

import importlib
import os
import subprocess
import tempfile
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcram import CramConfig
from torchcram.models import Cram, Decoder
from torchcram.ops import (
    About,
    Events,
    Given,
    Rows,
    choice,
    compact,
    decay_scan,
    episodic_read,
    estimate,
    expert,
    expiry,
    hashed,
    surprise,
    turn_apart,
    use,
)
from torchcram.ops.choice import Weights
from torchcram.ops.rows import following

triton = pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="an interpreter compiles nothing"),
]
BATCH, LENGTH, WIDTH, HEADS = 2, 256, 512, 8
SHARED = 232_448
"""Bytes that a program may have for itself on a chip."""


@pytest.fixture
def compiled(monkeypatch):
    """Kernels that were launched are compiled instead, for an H200; gives them by their names."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    kernels: dict[str, Any] = {}

    class Nowhere:
        """As much of a driver as compiling asks for."""

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, _):
            return 0

    def compile(self, *args, grid, warmup, **kwargs):
        kernels[self.__name__] = run(self, *args, grid=grid, warmup=True, **kwargs)

    run = JITFunction.run
    monkeypatch.setattr(JITFunction, "run", compile)
    monkeypatch.setattr(triton.runtime.driver, "_active", Nowhere())
    with use("triton"):
        yield kernels


def spilled(kernel: Any) -> int:
    """Bytes of memory that each thread of a compiled kernel needs for what does not fit into its registers."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(told.split("STACK:")[1].split()[0])


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def both_ways(outputs: Tensor | tuple[Tensor, ...], inputs: list[Tensor]) -> None:
    """Backward too: what comes out is what was in memory, which does not matter here."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    smooth = [x for x in outputs if x.requires_grad]
    torch.autograd.grad(smooth, inputs, [torch.zeros_like(x) for x in smooth], allow_unused=True)


def clock() -> tuple[Tensor, Tensor]:
    return torch.rand(BATCH, LENGTH), torch.zeros(BATCH, LENGTH, dtype=torch.bool)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("clocked", [torch.float32, torch.float64])
@pytest.mark.parametrize(("length", "width"), [(LENGTH, WIDTH), (LENGTH - 1, 1), (16, WIDTH)])
def test_scan(compiled, dtype, clocked, length, width):
    """Of every kind: what SRCD draws its data with is in float64."""
    wide = torch.promote_types(dtype, torch.float32)
    gap, reset = (x[:, :length] for x in clock())
    inputs = [normal(BATCH, length, width, dtype=dtype), normal(width, dtype=wide)]
    both_ways(decay_scan(*inputs, gap.to(clocked), reset, torch.zeros(BATCH, width, dtype=wide)), inputs)
    cut = {"_scan_add", "_scan_join_parts", "_scan_add_back"} if length > 32 else set()
    assert set(compiled) == {"_scan_forward", "_scan_backward"} | cut


@pytest.mark.parametrize("learns", [True, False])
def test_expert(compiled, learns):
    gap, reset = clock()
    into, weight = normal(BATCH, LENGTH, 2 * WIDTH), normal(WIDTH, WIDTH)
    rate, a, b = (normal(WIDTH, dtype=torch.float32) for _ in range(3))
    bias = normal(2 * WIDTH, dtype=torch.float32)
    with torch.set_grad_enabled(learns):
        given = Given(into, rate, gap, reset, torch.zeros(BATCH, WIDTH), gap.log1p().bfloat16(), a, b, weight, bias)
        out = expert(given, 3)
    if learns:
        both_ways(out, [into, rate, a, b, weight, bias])
    assert {"_euler_step", *(["_euler_slope"] if learns else [])} <= set(compiled)


@pytest.mark.parametrize("width", [128, WIDTH])
def test_expert_whose_weights_stay_on_the_chip(compiled, monkeypatch, width):
    hopper = importlib.import_module("torchcram.ops.expert.hopper")
    monkeypatch.setattr(hopper, "processors", lambda x: 132)
    h, slope, into = (
        torch.randn(LENGTH, width).bfloat16(),
        torch.randn(LENGTH, width).bfloat16(),
        normal(LENGTH, 2 * width),
    )
    about = torch.rand(LENGTH).bfloat16(), torch.randn(width), torch.randn(width)
    weight, squares = torch.randn(width, width).bfloat16(), torch.empty(LENGTH, width // hopper.COLUMNS)
    for learns in (slope, None):
        for last in (squares, None):
            hopper.euler_step(h, into.detach(), *about, weight, torch.empty_like(h), learns, last, 1 / 3)
            assert within(compiled["_euler_step_resident"])


@pytest.mark.parametrize(
    ("width", "rank", "fits"),
    [(WIDTH, 128, True), (256, 192, True), (64, 64, True), (256, 256, False), (320, 192, False)],
)
@torch.no_grad()
def test_surprise_whose_weights_stay_on_the_chip(compiled, monkeypatch, width, rank, fits):
    hopper = importlib.import_module("torchcram.ops.surprise.hopper")
    monkeypatch.setattr(hopper, "processors", lambda x: 132)
    monkeypatch.setattr(hopper, "on_hopper", lambda x: True)
    u, told, up = normal(BATCH, LENGTH, width), normal(BATCH * LENGTH, rank + 8)[:, 8:], normal(width, rank)
    assert hopper.fits(u, told, up) == fits
    assert not hopper.fits(u, normal(BATCH * LENGTH, rank + 1)[:, 1:], up), "rows begin at odd places"
    if fits:
        hopper.surprise(u, told, normal(BATCH, 1, rank), up, torch.empty(BATCH, LENGTH))
        kernel = compiled["_surprise_resident"]
        assert within(kernel)
        assert spilled(kernel) == 0


def within(kernel: Any) -> bool:
    """Whether all that a program has on the chip has room there, and nearly all of a thread's numbers in registers."""
    return kernel.metadata.shared <= SHARED and spilled(kernel) <= 1024


@pytest.mark.parametrize("pointed", [True, False])
@pytest.mark.parametrize(("rows", "many"), [(LENGTH, 1), (16, 1024)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_read(compiled, rows, many, pointed, dtype, monkeypatch):
    """All rows, or a few, in pieces."""
    monkeypatch.setattr("torchcram.ops.read.triton._MANY", many)
    monkeypatch.setattr("torchcram.ops.read.triton._FULL", 1)
    at = torch.arange(rows).expand(BATCH, rows)
    events = torch.arange(LENGTH).expand(BATCH, LENGTH)
    time = events.double()
    inputs = [
        normal(BATCH, rows, HEADS, WIDTH // HEADS, dtype=dtype),
        *(normal(BATCH, LENGTH, HEADS, WIDTH // HEADS, dtype=dtype) for _ in range(2)),
        normal(BATCH, LENGTH, dtype=torch.float32),
        normal(HEADS, dtype=torch.float32),
    ]
    asked = torch.zeros_like(at) if pointed else None
    who = Rows(at, torch.ones_like(at, dtype=torch.bool))
    found = episodic_read(*inputs, who, time[:, :rows], Events(events, events + 64, time), asked)
    both_ways(found.value, inputs)
    kernels = {"_reach", "_arrange", "_list_live", "_read_forward", "_read_mass", "_read_backward_rows"}
    assert kernels | {"_read_backward_events", *(["_read_join", "_read_sum"] if many > 1 else [])} == set(compiled)
    if dtype == torch.bfloat16 and rows == LENGTH and not pointed:
        for name, kernel in compiled.items():
            assert spilled(kernel) <= 32, f"{name} keeps numbers in memory that should be in registers"
            if name.startswith(("_read_forward", "_read_mass", "_read_backward")):
                assert "wgmma" in kernel.asm["ptx"], name
                assert "cp.async" in kernel.asm["ptx"], name


def test_what_is_known_before_a_read(compiled):
    rank = WIDTH // 4
    u, up = normal(BATCH, LENGTH, WIDTH), normal(WIDTH, rank)
    narrow, weight = normal(BATCH, LENGTH, 2 * rank), normal(rank, rank)
    own, thought = narrow.chunk(2, dim=-1)
    with torch.no_grad():
        surprise(u, own, normal(BATCH, 1, rank), up)
        estimate(own, thought, weight, weight[0], weight[0], normal(1))
    for name in ("_surprise", "_estimate"):
        assert "wgmma" in compiled[name].asm["ptx"], name
    weights = normal(32, 4), normal(32), normal(3, 32), normal(3), normal(1, dtype=torch.float32)
    inputs = [normal(BATCH, LENGTH, 32), *weights]
    both_ways(choice(inputs[0], About(*torch.rand(4, BATCH, LENGTH)), Weights(*inputs[1:]), 0.7), inputs)
    assert set(compiled) == {"_surprise", "_estimate", "_choose", "_choose_back"}
    for name, kernel in compiled.items():
        assert spilled(kernel) == 0, f"{name} keeps numbers in memory that should be in registers"


def test_turning(compiled):
    joint = normal(BATCH, LENGTH, 3 * WIDTH)
    both_ways(turn_apart(joint, torch.rand(2, BATCH, LENGTH, WIDTH // HEADS // 2), HEADS), [joint])
    assert set(compiled) == {"_turn"}
    assert spilled(compiled["_turn"]) == 0
    assert "ld.global.v4.b32" in compiled["_turn"].asm["ptx"]  # 16 bytes at a time


@pytest.mark.parametrize("rank", [128, 256, 257, 512])
@torch.no_grad()
def test_what_is_too_much_for_a_chip_is_no_kernel(compiled, rank):
    u, up, own = normal(BATCH, LENGTH, WIDTH), normal(WIDTH, rank), normal(BATCH, LENGTH, rank)
    surprise(u, own, normal(BATCH, 1, rank), up)
    estimate(own, own, normal(rank, rank), normal(rank), normal(rank), normal(1))
    assert set(compiled) == ({"_surprise", "_estimate"} if rank <= 256 else set())
    for name, kernel in compiled.items():
        assert kernel.metadata.shared <= SHARED, name


@pytest.mark.parametrize("hidden", [7, 64, 512])
def test_routers_of_every_width(compiled, hidden):
    weights = normal(hidden, 4), normal(hidden), normal(3, hidden), normal(3), normal(1)
    inputs = [normal(BATCH, LENGTH, hidden), *weights]
    both_ways(choice(inputs[0], About(*torch.rand(4, BATCH, LENGTH)), Weights(*inputs[1:]), 0.7), inputs)
    for name, kernel in compiled.items():
        assert spilled(kernel) <= 600, f"{name} keeps numbers in memory that should be in registers"


def test_what_belongs_to_no_memory(compiled):
    priority, mask = torch.randn(BATCH, 8192), torch.ones(BATCH, 8192, dtype=torch.bool)
    position = torch.arange(8192).expand(BATCH, 8192)
    expiry(priority, mask, None, position, priority[:, :0], position[:, :0], 64)
    compact(mask, 64)
    compact(torch.ones(BATCH, 20_000, dtype=torch.bool), 64)
    following(mask)
    hashed(7, torch.zeros(4, dtype=torch.int64), 100)
    assert {"_sort_pieces", "_merge", "_count_ranks", "_find_bars", "_sift", "_leave"} <= set(compiled)
    assert {"_count", "_list", "_follow"} <= set(compiled)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("batch", [1, 32])
@torch.no_grad()
def test_step(compiled, batch, dtype, monkeypatch):
    monkeypatch.setattr("torchcram.ops.step.triton._can_begin_early", lambda _: True)
    model = Cram(CramConfig.preset("large", vocabulary=4096).override({"layers": 1})).to(dtype).eval()
    Decoder(model, batch=batch).step(torch.zeros(batch, dtype=torch.int64))
    first = compiled.pop("begin")
    assert "griddepcontrol.launch_dependents" in first.asm["ptx"]
    assert not first.metadata.launch_pdl, "it is what keeps two steps apart"
    assert set(compiled) == {"enter", "euler", "project", "read", "mix", "widen", "narrow", "finish"}
    for name, kernel in compiled.items():
        before, wait, _ = kernel.asm["ptx"].partition("griddepcontrol.wait")
        assert wait, name
        assert "st.global" not in before, f"{name} writes before the kernel before it has ended"
        assert kernel.metadata.launch_pdl
