"""The GPU kernels against the other forms in float64: every output, every gradient, at odd sizes.

With `TRITON_INTERPRET=1`, Triton and NumPy < 2.4 they run on a CPU, slowly:
`pytest -m gpu -W ignore tests/ops/test_kernels.py`.
"""

import importlib
import os
import warnings

import pytest
import torch
from torch import Tensor

from torchcram.memory import Timeline
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

pytestmark = pytest.mark.gpu
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
LIMITS = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
# One number from thousands that nearly cancel, each off by what rounding a read to bfloat16 makes of log(1 + age),
# which is about 12 here: of 450 rows that is a sixth of their sum.
SUMS = {torch.float32: 2e-5, torch.bfloat16: 0.2}
FLOATS = [torch.float32, *([torch.bfloat16] if DEVICE == "cuda" else [])]


@pytest.fixture(scope="module", autouse=True)
def _awake() -> None:
    """The first product in a backward pass on a GPU warns that it has to set up its thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.ones(2, 2, device=DEVICE, requires_grad=True)
        torch.autograd.backward((x @ x).sum())


def close(name: str, found: Tensor, expected: Tensor, limit: float) -> None:
    found, expected = found.detach().double(), expected.detach().double()
    error = float((found - expected).norm() / expected.norm().clamp_min(1e-30))
    assert error < limit, f"{name}: {error:.1e}"  # NaN fails as well


def compare(operation, floats: list[Tensor], others: list, dtype: torch.dtype) -> None:
    """Run the fast form on float64 copies and the kernel on what `dtype` makes of the numbers."""
    rounded = [x.to(dtype) for x in floats]
    results = []
    for form, wide in (("fast", torch.float64), ("triton", dtype)):
        arguments = [x.to(wide).to(DEVICE).requires_grad_() for x in rounded]
        with use(form):
            outputs = operation(*arguments, *others)
        outputs = [out for out in outputs if isinstance(out, Tensor)]
        smooth = [out for out in outputs if out.requires_grad]
        generator = torch.Generator().manual_seed(5)
        seeds = [torch.randn(out.shape, generator=generator).to(dtype).to(out) for out in smooth]
        gradients = torch.autograd.grad(smooth, arguments, seeds, allow_unused=True, materialize_grads=True)
        results.append([*outputs, *gradients])
    for number, (expected, found) in enumerate(zip(*results, strict=True)):
        if not expected.is_floating_point():
            assert torch.equal(found, expected), f"result {number}"
            continue
        limits = SUMS if expected.dim() == 1 else LIMITS
        close(f"result {number}", found, expected, limits[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("batch", "length", "width"), [(2, 1, 3), (2, 64, 5), (1, 65, 33), (3, 200, 64), (2, 130, 1)])
@pytest.mark.parametrize("part", [None, 8, 64, 256])
def test_decay_scan(batch, length, width, part, dtype, monkeypatch):
    """Cut into parts of at least so many positions, of which the last is shorter; and whole."""
    if part is not None:
        monkeypatch.setattr("torchcram.ops.decay.triton._PART", part)
        monkeypatch.setattr("torchcram.ops.decay.triton._JOINED", 4)
        cut = importlib.import_module("torchcram.ops.decay.triton")._cut(batch, length, width)
        assert (cut[1] > 1) == (length > part), "so many programs are few"
    generator = torch.Generator().manual_seed(length)
    x, initial = torch.randn(batch, length, width, generator=generator), torch.randn(batch, width, generator=generator)
    rate, gap = torch.rand(width, generator=generator), 3 * torch.rand(batch, length, generator=generator)
    reset = torch.rand(batch, length, generator=generator) < 0.1
    wide = torch.promote_types(dtype, torch.float32)

    def scan(x: Tensor, initial: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        high = torch.promote_types(x.dtype, wide)
        return decay_scan(x, rate.to(high), gap.to(high).to(DEVICE), reset.to(DEVICE), initial)

    compare(scan, [x, initial, rate], [], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("batch", "length", "width"), [(2, 1, 16), (1, 65, 33), (3, 100, 64), (2, 40, 144)])
def test_expert(batch, length, width, steps, dtype):
    check_expert(batch, length, width, steps, dtype)


@pytest.mark.skipif(DEVICE == "cpu", reason="weights stay on a chip only where there is one")
@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize(
    ("batch", "length", "width"), [(1, 1, 128), (2, 63, 256), (1, 130, 384), (1, 64, 512), (3, 2900, 512)]
)
def test_expert_whose_weights_stay_on_the_chip(batch, length, width, steps):
    """A part of a tile, tiles for one half of the warps, and for both, several times."""
    check_expert(batch, length, width, steps, torch.bfloat16)


def check_expert(batch: int, length: int, width: int, steps: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    into, initial, rate = draw(batch, length, 2 * width), draw(batch, width), torch.rand(width, generator=generator)
    sizes = draw(width), draw(width)
    gap = 3 * torch.rand(batch, length, generator=generator)
    reset = (torch.rand(batch, length, generator=generator) < 0.1).to(DEVICE)
    wide = torch.promote_types(dtype, torch.float32)

    def run(into: Tensor, initial: Tensor, rate: Tensor, a: Tensor, b: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        high = torch.promote_types(into.dtype, wide)
        clock = gap.to(high).to(DEVICE), reset, initial.to(high), gap.log1p().to(high).to(DEVICE)
        return expert(Given(into, rate.to(high), *clock, a.to(high), b.to(high), *rest), steps)

    floats = [into, initial, rate, *sizes, draw(width, width) / width**0.5]
    compare(run, floats, [], dtype)
    compare(run, [*floats, draw(2 * width)], [], dtype)  # the bias, which is in `into` already


def test_gradients_that_others_are_given_too_are_left_as_they_are():
    generator = torch.Generator().manual_seed(1)
    into, rate, initial, weight, grad = (
        torch.randn(shape, generator=generator).to(DEVICE) for shape in ((2, 9, 32), 16, (2, 16), (16, 16), (2, 9, 16))
    )
    into, weight, grad = ((x if DEVICE == "cpu" else x.bfloat16()) for x in (into, weight, grad))
    gap, before = torch.ones(2, 9, device=DEVICE), grad.clone()
    with use("triton"):
        h, *_ = expert(Given(into.requires_grad_(), rate.abs(), gap, gap > 1, initial, gap, rate, rate, weight), 2)
    torch.autograd.grad(h, into, grad)
    assert torch.equal(grad, before)


@pytest.mark.parametrize("steps", [1, 3])
def test_an_expert_that_does_not_learn_finds_the_same(steps):
    generator = torch.Generator().manual_seed(1)
    into, rate, initial, weight = (
        torch.randn(shape, generator=generator).to(DEVICE) for shape in ((2, 9, 32), 16, (2, 16), (16, 16))
    )
    gap = torch.ones(2, 9, device=DEVICE)
    others = rate.abs(), gap, gap > 1, initial, gap, rate, rate, weight
    with use("triton"), torch.no_grad():
        found = expert(Given(into.bfloat16() if DEVICE == "cuda" else into, *others), steps)
    with use("triton"):
        expected = expert(Given((into.bfloat16() if DEVICE == "cuda" else into).requires_grad_(), *others), steps)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("length", "heads", "size", "held", "slots", "share"),
    [
        (70, 2, 8, 0, None, 1.0),
        (70, 2, 8, 5, None, 0.1),
        (150, 3, 24, 10, 20, 0.5),
        (1, 1, 16, 0, None, 1.0),
        (33, 2, 8, 3, 4, 0.0),
        (200, 1, 32, 0, 16, 0.2),
        (131, 2, 64, 0, None, 0.9),
        (90, 1, 128, 4, 30, 0.4),
        (70, 1, 200, 0, None, 0.5),
    ],
)
def test_episodic_read(length, heads, size, held, slots, share, dtype):
    check_read(length, heads, size, held, slots, share, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("many", "listed", "few"), [(1, 1, 1), (10_000, 1, 1 << 14), (10_000, 1 << 20, 1), (60, 3000, 1)]
)
@pytest.mark.parametrize(("length", "slots", "share"), [(300, 16, 0.3), (450, 40, 1.0), (280, None, 0.8)])
def test_episodic_read_however_it_is_cut_up(length, slots, share, many, listed, few, dtype, monkeypatch):
    """Rows in parts, what they read in pieces, a list for several tiles of rows, large tiles of events; no pointers."""
    monkeypatch.setattr("torchcram.ops.read.triton._MANY", many)
    monkeypatch.setattr("torchcram.ops.read.triton._FULL", 1)
    monkeypatch.setattr("torchcram.ops.read.reach._OTHERS", 2)
    monkeypatch.setattr("torchcram.ops.read.reach._LISTED", listed)
    monkeypatch.setattr("torchcram.ops.read.reach._CHUNK", 128)
    monkeypatch.setattr("torchcram.ops.read.reach._COUNTED", 64)
    monkeypatch.setattr("torchcram.ops.read.reach._FEW", few)
    check_read(length, 2, 16, 7, slots, share, dtype, pointed=False)


@pytest.mark.parametrize("few", [1, 1 << 14])
def test_events_are_put_in_order_by_class(few, monkeypatch):
    """The read is the same in whatever order events are taken: a wrong one would only be slow."""
    monkeypatch.setattr("torchcram.ops.read.reach._FEW", few)
    monkeypatch.setattr("torchcram.ops.read.reach._OTHERS", 2)
    reach = importlib.import_module("torchcram.ops.read.reach")
    generator = torch.Generator().manual_seed(5)
    total, count = 900, 60
    written = torch.arange(total, dtype=torch.int32).expand(2, total).contiguous()
    expires = written + torch.randint(-1, 400, (2, total), generator=generator).int()
    at = torch.stack([torch.randperm(total, generator=generator)[:count].sort().values.int() for _ in range(2)])
    at[:, -7:] = reach.NEVER
    first, end, order = (x.cpu() for x in reach.reach(*(x.to(DEVICE) for x in (at, written, expires))))
    assert torch.equal(first, torch.searchsorted(at, written, right=True).int())
    assert torch.equal(end, torch.searchsorted(at, expires, right=True).int())
    kind = (2 * torch.log2(end + 1.0)).int()
    kind = kind.masked_fill(end >= count - 7, 62).masked_fill(end <= first, 63)
    assert torch.equal(order.long(), kind.argsort(dim=1, stable=True))


@pytest.mark.parametrize("chunk", [128, 1024])
@pytest.mark.parametrize(("listed", "together"), [(1 << 22, 1), (3000, 4)])
@pytest.mark.parametrize("longest", [3, 90, 5000])
def test_groups_of_rows_list_what_they_can_read(longest, listed, together, chunk, monkeypatch):
    """Events that last a while, and some that no row can read; or all last, and the list is everything so far."""
    reach = importlib.import_module("torchcram.ops.read.reach")
    monkeypatch.setattr(reach, "_LISTED", listed)
    monkeypatch.setattr(reach, "_CHUNK", chunk)
    monkeypatch.setattr(reach, "_COUNTED", 256)
    generator = torch.Generator().manual_seed(longest)
    batch, total, count, rows = 2, 700, 75, 16
    first = torch.randint(0, count + 1, (batch, total), generator=generator).sort(1).values.int()
    end = (first + torch.randint(0, longest, first.shape, generator=generator).int()).clamp_max(count)
    if longest > count:
        end[:] = count
    time = torch.randint(-(1 << 62), 1 << 62, first.shape, generator=generator)
    strength = torch.randn(first.shape, generator=generator)
    found = reach.lists(*(x.to(DEVICE) for x in (first, end, time, strength)), count, rows)
    assert found.tiles == together
    events, records, upto = (x.cpu() for x in found[:3])
    for b in range(batch):
        for tile in range(-(-count // rows)):
            group = tile // together
            begin = group * together * rows
            stop = min(begin + together * rows, count)
            live = ((first[b] < end[b]) & (first[b] < stop) & (end[b] > begin)).nonzero().squeeze(1)
            needed = live[first[b, live] < (tile + 1) * rows]
            assert upto[b, tile] == len(needed)
            assert torch.equal(events[b, group, : len(needed)].long(), needed)
            stretch, *when, strong = records[b, group, : len(needed)].unbind(-1)
            assert torch.equal((stretch & 0xFFFF) + begin, first[b, needed].clamp_min(begin))
            assert torch.equal((stretch & 0xFFFF) + (stretch >> 16) + begin, end[b, needed].clamp_max(stop))
            assert torch.equal(torch.stack(when, -1).view(torch.int64).squeeze(-1), time[b, needed])
            torch.testing.assert_close(strong.view(torch.float32), strength[b, needed] * 1.4426950408889634)


def check_read(length, heads, size, held, slots, share, dtype, pointed=True):
    batch, total = 2, held + length
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    mask = torch.rand(batch, length, generator=generator) > 0.1
    start = (torch.rand(batch, length, generator=generator) < 0.03) & mask  # several sequences in a row
    before = torch.arange(held).expand(batch, held).clone()
    before[:, -1:] = -1  # a slot that holds nothing
    clock = Timeline.build(
        torch.ones(batch, length), mask=mask, start=start, position=torch.full((batch,), max(0, held - 1))
    )
    position = clock.position[:, :-1]
    fate = expiry(normal(batch, length), mask, start, position, normal(batch, held), before, slots)
    # Late in a long stream: ages are small differences of large times.
    time = 1e6 + 100 * torch.rand(batch, total, generator=generator, dtype=torch.float64).cumsum(1)
    written = torch.cat([torch.full((batch, held), -1), torch.arange(length).expand(batch, length)], dim=1)
    rows = compact((torch.rand(batch, length, generator=generator) < share) & mask)
    others = [
        Rows(*(x.to(DEVICE) for x in rows)),
        time[:, held:].gather(1, rows.at).to(DEVICE),
        Events(*(x.to(DEVICE) for x in (written, fate.expires, time))),
        torch.randint(-total, total, rows.at.shape, generator=generator).clamp_min(-1).to(DEVICE),
    ]
    floats = [normal(batch, rows.at.shape[1], heads, size), *(normal(batch, total, heads, size) for _ in range(2))]
    compare(episodic_read, [*floats, normal(batch, total), 0.1 * normal(heads)], others[: 4 if pointed else 3], dtype)


@pytest.mark.parametrize("size", [64, 300])
def test_what_the_kernels_are_not_made_for_runs_all_the_same(size):
    """float64, large heads, and gaps that need a gradient."""
    rows = Rows(torch.tensor([[1, 2]], device=DEVICE), torch.ones(1, 2, dtype=torch.bool, device=DEVICE))
    when = torch.arange(3.0, dtype=torch.float64, device=DEVICE)[None]
    events = Events(torch.arange(3, device=DEVICE)[None], torch.full((1, 3), 3, device=DEVICE), when)
    dtype = torch.float64 if size == 64 else torch.float32
    query, key, value = (torch.randn(1, n, 1, size, dtype=dtype, device=DEVICE) for n in (2, 3, 3))
    rest = (torch.zeros(1, 3, dtype=dtype, device=DEVICE), torch.zeros(1, dtype=dtype, device=DEVICE))
    with use("fast"):
        expected = episodic_read(query, key, value, *rest, rows, when[:, 1:], events)
    with use("triton"):
        found = episodic_read(query, key, value, *rest, rows, when[:, 1:], events)
        assert torch.equal(found.value, expected.value)
        gap = torch.ones(1, 3, device=DEVICE, requires_grad=True)
        x, rate = torch.ones(1, 3, 2, device=DEVICE), torch.ones(2, device=DEVICE)
        states, _ = decay_scan(x, rate, gap, torch.zeros(1, 3, dtype=torch.bool, device=DEVICE), x[:, 0])
        (gradient,) = torch.autograd.grad(states.sum(), gap)
    assert (gradient < 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("batch", "length", "width", "rank"), [(2, 1, 16, 16), (3, 70, 33, 5), (1, 300, 64, 32), (5, 130, 80, 128)]
)
def test_surprise(batch, length, width, rank, dtype):
    """Rows that begin within a tile are foretold by what is carried; widths and ranks of any size."""
    check_surprise(batch, length, width, rank, dtype)


@pytest.mark.skipif(DEVICE == "cpu", reason="weights stay on a chip only where there is one")
@pytest.mark.parametrize(
    ("batch", "length", "width", "rank"),
    [(1, 1, 64, 64), (5, 40, 128, 128), (3, 100, 512, 128), (2, 64, 512, 64), (2, 17_000, 512, 128)],
)
def test_surprise_whose_weights_stay_on_the_chip(batch, length, width, rank):
    """A part of a tile, several sequences in one, tiles for one half of the warps and for both."""
    check_surprise(batch, length, width, rank, torch.bfloat16)


@torch.no_grad()
def check_surprise(batch: int, length: int, width: int, rank: int, dtype: torch.dtype) -> None:
    """What was told is a part of a wider tensor."""
    generator = torch.Generator().manual_seed(length)
    u, wide, carried, up = (
        torch.randn(shape, generator=generator).to(dtype).to(DEVICE)
        for shape in ((batch, length, width), (batch, length, rank + 8), (batch, 1, rank), (width, rank))
    )
    told = wide[..., 8:]
    with use("fast"):
        expected = surprise(*(x.double() for x in (u, told, carried, up)))
    with use("triton"):
        found = surprise(u, told, carried, up)
    assert found.dtype == torch.float32
    close("surprise", found, expected, 1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("batch", "length", "heads", "half"), [(1, 1, 1, 1), (2, 70, 3, 5), (3, 130, 4, 32)])
def test_turn_apart(batch, length, heads, half, dtype):
    """Values are where they were; heads of any number and size."""
    generator = torch.Generator().manual_seed(length)
    joint = torch.randn(batch, length, 3 * heads * 2 * half, generator=generator).to(dtype).to(DEVICE)
    angle = torch.randn(batch, length, half, generator=generator).to(DEVICE)
    angles = torch.stack([angle.sin(), angle.cos()])
    found, expected = joint.requires_grad_(), joint.detach().double().requires_grad_()
    with use("fast"):
        parts = turn_apart(expected, angles.double(), heads)
    with use("triton"):
        own = turn_apart(found, angles, heads)
    assert own[2].data_ptr() == found[..., 4 * heads * half :].data_ptr()
    grads = [torch.randn(part.shape, generator=generator).to(dtype).to(DEVICE) for part in own]
    for name, mine, theirs in zip(("query", "key", "value"), own, parts, strict=True):
        close(name, mine, theirs, LIMITS[dtype])
    (mine,) = torch.autograd.grad(own, found, grads)
    (theirs,) = torch.autograd.grad(parts, expected, [grad.double() for grad in grads])
    close("gradient", mine, theirs, LIMITS[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("batch", "length", "rank", "hidden"), [(1, 1, 3, 5), (2, 90, 32, 32), (3, 50, 128, 96)])
@torch.no_grad()
def test_estimate(batch, length, rank, hidden, dtype):
    """Thoughts may be some columns of a wider tensor."""
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)

    wide = draw(batch, length, rank + 11)
    given = (
        draw(batch, length, hidden),
        wide[..., 3 : 3 + rank],
        draw(hidden, rank),
        draw(hidden),
        draw(hidden),
        draw(1),
    )
    with use("fast"):
        expected = estimate(*(x.double() for x in given))
    with use("triton"):
        found = estimate(*given)
    assert found.dtype == torch.float32
    close("estimate", found, expected, 1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("batch", "length", "hidden"), [(1, 1, 1), (2, 200, 32), (3, 171, 20), (1, 513, 64)])
def test_choice(batch, length, hidden, dtype):
    """Tokens may be some columns of a wider tensor, and weights those of a wider matrix."""
    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    about = [draw(batch, length).abs().to(DEVICE) for _ in About._fields]

    def run(wide: Tensor, first: Tensor, *rest: Tensor) -> tuple[Tensor]:
        seen = About(*(x.to(torch.promote_types(first.dtype, torch.float32)) for x in about))
        return (choice(wide[..., 5 : 5 + hidden], seen, Weights(first[:, :4], *rest), 0.6),)

    weights = draw(hidden, 12), draw(hidden), draw(3, hidden), draw(3), draw(1)
    compare(run, [draw(batch, length, hidden + 9), *weights], [], dtype)


def test_hashed():
    rows = torch.tensor([0, 1, 7, 2**31, 2**40 + 3], device=DEVICE)
    for key in (0, 1, 16, 0xFFFFFFFF, 0x9E3779B9):
        with use("fast"):
            expected = hashed(key, rows, 3000)
        with use("triton"):
            assert torch.equal(hashed(key, rows, 3000), expected)
            assert hashed(key, rows, 0).shape == (5, 0)


@pytest.mark.parametrize(("chunk", "piece", "merged"), [(8, 16, 2), (128, 32, 4), (128, 1024, 16)])
@pytest.mark.parametrize("kind", ["random", "rising", "falling", "equal", "few"])
@pytest.mark.parametrize(
    ("length", "held", "slots"),
    [(5, 0, 1), (60, 0, 7), (60, 9, 9), (70, 3, 40), (300, 20, 16), (41, 12, 52), (130, 0, 129), (600, 30, 33)],
)
def test_expiry(length, held, slots, kind, chunk, piece, merged, monkeypatch):
    """Whatever order events come in; with padding, empty slots, more slots held than allowed, and many equals.

    Sorted in pieces, of which several become one at a time, or all at once.
    """
    module = importlib.import_module("torchcram.ops.expiry.triton")
    monkeypatch.setattr(module, "_LEAST", chunk)
    monkeypatch.setattr(module, "_TILE", 128)
    ranking = importlib.import_module("torchcram.ops.expiry.ranking")
    monkeypatch.setattr(ranking, "_PIECE", piece)
    monkeypatch.setattr(ranking, "_MERGED", merged)
    generator = torch.Generator().manual_seed(length + slots)
    both = torch.randn(2, held + length, generator=generator)
    if kind == "equal":
        both = torch.zeros_like(both)
    elif kind == "few":
        both = both.round()  # of which some are 0, and others -0
    elif kind != "random":
        both = both.sort(1, descending=kind == "falling").values
    mask = torch.rand(2, length, generator=generator) < 0.9
    position = mask.cumsum(1) - mask.long() + held
    before = torch.stack([torch.randperm(held, generator=generator) for _ in range(2)])
    before = before.masked_fill(torch.rand(2, held, generator=generator) < 0.2, -1)
    inputs = [x.to(DEVICE) for x in (both[:, held:], mask, position, both[:, :held], before)]
    priority, mask, position, *of_held = inputs
    results = []
    for form in ("reference", "triton"):
        with use(form):
            results.append(expiry(priority, mask, None, position, *of_held, slots))
    for expected, found in zip(*results, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_expiry_of_extremes(dtype):
    """The largest and the smallest numbers, infinite ones and NaN, and of 0 both signs; of whatever width."""
    limits = torch.finfo(dtype)
    some = [limits.max, limits.min, torch.inf, -torch.inf, torch.nan, 0.0, -0.0, limits.tiny, -limits.tiny, 1.0, -1.0]
    generator = torch.Generator().manual_seed(3)
    priority = torch.tensor(some, dtype=dtype)[torch.randint(len(some), (2, 90), generator=generator)].to(DEVICE)
    mask = torch.ones(2, 90, dtype=torch.bool, device=DEVICE)
    position = torch.arange(90, device=DEVICE).expand(2, 90)
    for slots in (3, 20, 60):
        given = priority, mask, None, position, priority[:, :0], position[:, :0], slots
        with use("reference"):
            expected = expiry(*given)
        with use("triton"):
            found = expiry(*given)
        assert torch.equal(found.expires, expected.expires)
        assert torch.equal(found.admitted, expected.admitted)


def test_a_scan_of_positions_far_apart_in_memory():
    """Further than 32 bits can tell: as late positions of a long sequence are."""
    step = 1 << 30
    far = torch.empty(2 * step + 4, dtype=torch.float16, device=DEVICE).as_strided((1, 3, 4), (3 * step, step, 1))
    far.copy_(torch.arange(12.0).view(1, 3, 4))
    scan_rows = importlib.import_module("torchcram.ops.decay.triton").scan_rows
    gap, nothing = torch.ones(1, 3, device=DEVICE), torch.zeros(1, 4, device=DEVICE)
    states, _ = scan_rows(far, torch.zeros(4, device=DEVICE), gap, nothing)
    assert torch.equal(states, far.contiguous().cumsum(1).to(states.dtype))


@pytest.mark.parametrize(("rate", "limit"), [(0.0, 1e-5), (1.0, 1e-5), (5.0, 1e-4), (10.0, 1e-2)])
def test_gradients_of_rates(rate, limit):
    """What is forgotten almost at once has a gradient that is what two numbers differ by which are almost the same."""
    generator = torch.Generator().manual_seed(6)
    x, initial = torch.randn(2, 40, 3, generator=generator), torch.randn(2, 3, generator=generator)
    found = []
    for form, wide in (("fast", torch.float64), ("triton", torch.float32)):
        given = [y.to(wide).to(DEVICE).requires_grad_() for y in (x, torch.full((3,), rate), initial)]
        gap, reset = torch.ones(2, 40, dtype=wide, device=DEVICE), torch.zeros(2, 40, dtype=torch.bool, device=DEVICE)
        with use(form):
            states, _ = decay_scan(given[0], given[1], gap, reset, given[2])
        found.append(torch.autograd.grad(states.square().sum(), given[1])[0])
    close("rate", found[1], found[0], limit)


@torch.no_grad()
def test_what_is_not_a_number_stays_so():
    """A model that has come apart must not look well on a GPU alone."""
    x, gap = torch.ones(1, 3, 2, device=DEVICE), torch.ones(1, 3, device=DEVICE)
    rate = torch.tensor([1.0, torch.nan], device=DEVICE)
    kind = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    thought = torch.ones(1, 3, 4, dtype=kind, device=DEVICE)
    own, weight = thought.clone(), torch.ones(4, 4, dtype=kind, device=DEVICE)
    thought[0, 1, 2], own[0, 2, 1] = torch.nan, torch.nan
    with use("triton"):
        states, _ = decay_scan(x, rate, gap, gap > 1, 0 * x[:, 0])
        found = estimate(own, thought, weight, weight[0], weight[0], weight[0, :1])
    assert states.isnan().all(1).tolist() == [[False, True]]
    assert found.isnan().tolist() == [[False, True, True]]


@pytest.mark.parametrize("few", [1, 1 << 14])
@pytest.mark.parametrize("length", [0, 1, 5, 1024, 1025, 9000])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.3, 1.0])
def test_lists_of_chosen_positions(length, share, few, monkeypatch):
    """With too little room, with enough, and with more than there are positions."""
    monkeypatch.setattr(importlib.import_module("torchcram.ops.rows.triton"), "_FEW", few)
    chosen = torch.rand(3, length, generator=torch.Generator().manual_seed(length)) < share
    for room in (0, 1, length // 3, length + 1500):
        with use("fast"):
            expected = compact(chosen, room)
        with use("triton"):
            found = compact(chosen.to(DEVICE), room)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("length", [0, 1, 5, 1024, 1025, 9000])
@pytest.mark.parametrize("share", [0.0, 0.0005, 0.3, 1.0])
def test_the_next_chosen_position(length, share, monkeypatch):
    monkeypatch.setattr(importlib.import_module("torchcram.ops.rows.triton"), "_AHEAD", 2048)
    chosen = torch.rand(3, length, generator=torch.Generator().manual_seed(length)) < share
    with use("fast"):
        expected = following(chosen)
    with use("triton"):
        found = following(chosen.to(DEVICE))
    assert found.dtype == torch.int64
    assert torch.equal(found.cpu(), expected)
