"""Times the read's kernels, each alone, for several tile shapes: `python experiments/tuning/read.py`, on a GPU.

Each is checked against the tiles of today first. One line a variant, in microseconds; * marks the best of a setting.
Limits: SECONDS=110 in all; SETTINGS=a,b and KERNELS=forward,rows,events,mass,list narrow it down.
"""

import importlib
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import triton

from torchcram.memory.episodic import useful
from torchcram.ops import Events, compact, expiry, gather_rows

T = importlib.import_module("torchcram.ops.read.triton")
R = importlib.import_module("torchcram.ops.read.reach")
K = importlib.import_module("torchcram.ops.read.kernels")
BEGAN, SECONDS = time.time(), float(os.environ.get("SECONDS", 110))
HEADS, SIZE, LAUNCHES = 8, 64, 20
SETTINGS = {  # length, batch, slots, share of rows
    "32k all": (32768, 2, None, 0.015),
    "2k M=512": (2048, 32, 512, 0.015),
    "train 8k": (8192, 8, 512, 0.045),
    "32k M=512": (32768, 2, 512, 0.015),
    "2k all": (2048, 32, None, 0.015),
}
Tiles = T.Tiles
ROWS = [  # tiles, _MANY, _FULL
    (tiles, many, full)
    for tiles in (
        Tiles(64, 64, 4, 3, 168),
        Tiles(64, 64, 4, 5, 168),
        Tiles(64, 64, 4, 2, 168),
        Tiles(64, 32, 4, 3),
        Tiles(64, 32, 4, 5),
        Tiles(64, 32, 4, 5, 128),
        Tiles(128, 64, 8, 3),
        Tiles(128, 64, 8, 5),
    )
    for many, full in ((1024, 4), (512, 4), (2048, 4), (1024, 8), (2048, 2))
    if (many, full) in ((1024, 4), (2048, 4)) or tiles in (Tiles(64, 64, 4, 3, 168), Tiles(64, 32, 4, 5))
]
EVENTS = [
    (tiles, 1024, 4)
    for tiles in (
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 3),
        Tiles(32, 64, 4, 2),
        Tiles(32, 64, 4, 2, 168),
        Tiles(32, 64, 4, 3, 168),
        Tiles(64, 128, 8, 2),
        Tiles(32, 128, 8, 2),
        Tiles(64, 64, 8, 2, 128),
        Tiles(32, 64, 8, 2, 128),
    )
] + [(Tiles(64, 64, 4, 2), 2048, 4), (Tiles(64, 64, 4, 2), 512, 4)]
MASS = [
    (tiles, many, 4)
    for tiles in (
        Tiles(32, 64, 4, 3),
        Tiles(32, 64, 4, 3, 128),
        Tiles(64, 64, 4, 3),
        Tiles(64, 64, 4, 2),
        Tiles(32, 64, 4, 4),
        Tiles(32, 128, 8, 3),
        Tiles(64, 128, 8, 3),
        Tiles(32, 64, 8, 3),
        Tiles(64, 64, 8, 3),
    )
    for many in ((1024,) if tiles != Tiles(32, 64, 4, 3) else (1024, 2048, 512))
]
LISTS = [(1024, 4096), (512, 4096), (2048, 4096), (1024, 8192), (1024, 2048)]


class Case:
    """Inputs of one setting; `copies` of keys, values and queries, so that they are not all in the cache."""

    def __init__(self, length, batch, slots, share):
        dev = "cuda"
        torch.manual_seed(0)
        priority = torch.randn(batch, length, device=dev)
        mask = torch.ones(batch, length, dtype=torch.bool, device=dev)
        position = torch.arange(length, device=dev).expand(batch, length)
        fate = expiry(priority, mask, None, position, priority[:, :0], position[:, :0], slots)
        chosen = torch.rand(batch, length, device=dev) < share
        rows, listed = compact(chosen), compact(useful(fate.expires, chosen, keep=False))
        clock = torch.rand(batch, length, dtype=torch.float64, device=dev).cumsum(1)
        written, expires = (
            x.masked_fill(~listed.valid, length) for x in (listed.at, gather_rows(fate.expires, listed))
        )
        events = Events(written, expires, gather_rows(clock, listed))
        at = rows.at.masked_fill(~rows.valid, R.NEVER).int().contiguous()
        self.who = R.reach(at, events.written.int().contiguous(), events.expires.int().contiguous())
        self.row_time = T._split(gather_rows(clock, rows)).contiguous()
        self.event_time = T._split(events.time).contiguous()
        self.batch, self.count, self.total = batch, rows.at.shape[1], listed.at.shape[1]
        self.strength = torch.nn.functional.logsigmoid(gather_rows(priority, listed)).contiguous()
        self.recency = 0.1 * torch.randn(HEADS, device=dev)
        each = 2 * batch * self.total * HEADS * SIZE * 2
        self.copies = max(1, min(4, math.ceil(120e6 / each)))

        def normal(n):
            return torch.randn(batch, n, HEADS, SIZE, device=dev).bfloat16()

        self.q = [normal(self.count) for _ in range(self.copies)]
        self.k, self.v = ([normal(self.total) for _ in range(self.copies)] for _ in range(2))
        self.grad = normal(self.count)
        self.scale = 1 / math.sqrt(SIZE)
        self.out, self.log_total, self.mass = T.read(
            self.q[0],
            self.k[0],
            self.v[0],
            self.strength,
            self.recency,
            None,
            self.row_time,
            self.event_time,
            *self.who,
        )
        inner = (self.grad.float() * self.out.float()).sum(-1).transpose(1, 2)
        high, low = (x.unsqueeze(1).expand_as(inner) for x in self.row_time.unbind(-1))
        self.rows = torch.stack((high, low + 1, self.log_total, inner), -1).contiguous()

    def launcher(self, kernel, tiles, many, full):
        """run(i): one launch with copy i, and what follows to put pieces together; result()."""
        T._MANY, T._FULL = many, full
        first, end, order = self.who
        q, k, _v = self.q[0], self.k[0], self.v[0]
        when, times = T._packed(self.row_time), T._packed(self.event_time)
        sizes = self.count, self.total, HEADS
        bh = self.batch * HEADS
        if kernel in ("forward", "rows"):
            T.OF_ROWS = tiles
            t = Tiles.of_rows(q)
            pieces, each = t.pieces(q, k)
            listed = R.lists(first, end, times, self.strength, self.count, t.rows)
            meta, join = t.meta(q, None), t.join(q)
            grid = (bh, listed.upto.shape[1], pieces)
            joins = (bh, triton.cdiv(self.count, t.joined))
            tail = (*sizes, listed.events.shape[1], each, self.scale)
            out = torch.empty_like(q)
            if kernel == "forward":
                log_total = torch.empty_like(self.log_total)
                by = [out, log_total]
                if pieces > 1:
                    by = [q.new_empty(pieces, *x.shape, dtype=torch.float32) for x in by]

                def run(i):
                    K._read_forward[grid](
                        self.q[i],
                        self.k[i],
                        self.v[i],
                        self.recency,
                        first,
                        when,
                        listed.events,
                        listed.records,
                        listed.upto,
                        *by,
                        *tail,
                        TILES=listed.tiles,
                        WHOLE=pieces == 1,
                        **meta,
                    )
                    if pieces > 1:
                        K._read_join[joins](*by, listed.upto, out, log_total, self.count, HEADS, each, **join)

                return run, lambda: [out, log_total]
            by = out if pieces == 1 else q.new_empty(pieces, *q.shape, dtype=torch.float32)

            def run(i):
                K._read_backward_rows[grid](
                    self.q[i],
                    self.k[i],
                    self.v[i],
                    self.recency,
                    first,
                    self.rows,
                    listed.events,
                    listed.records,
                    listed.upto,
                    self.grad,
                    by,
                    *tail,
                    TILES=listed.tiles,
                    WHOLE=pieces == 1,
                    **meta,
                )
                if pieces > 1:
                    K._read_sum[joins](by, listed.upto, out, self.count, HEADS, each, **join)

            return run, lambda: [out]
        if kernel == "events":
            T.OF_EVENTS = tiles
            t = Tiles.of_events(q)
            grads = T._room_by_events(q, k)
            grid = (bh, triton.cdiv(self.total, t.events), len(grads[0]))

            def run(i):
                K._read_backward_events[grid](
                    self.q[i],
                    self.k[i],
                    self.v[i],
                    self.strength,
                    self.recency,
                    first,
                    self.rows,
                    times,
                    first,
                    end,
                    order,
                    self.grad,
                    *grads,
                    *sizes,
                    self.scale,
                    **t.meta(q, None),
                )

            return run, lambda: [
                grads[0].float().sum(0),
                grads[1].float().sum(0),
                grads[2].sum(0),
                grads[3].sum((0, 3)),
            ]
        if kernel == "mass":
            T.OF_MASS = tiles
            t = Tiles.of_mass(q)
            parts = t.parts(self.batch, q, k)
            mass = q.new_empty(self.batch, parts, self.total, dtype=torch.float32)
            grid = (self.batch, triton.cdiv(self.total, t.events), parts)

            def run(i):
                K._read_mass[grid](
                    self.q[i],
                    self.k[i],
                    self.strength,
                    self.recency,
                    first,
                    when,
                    times,
                    first,
                    end,
                    order,
                    self.log_total,
                    mass,
                    *sizes,
                    self.scale,
                    **t.meta(q, None),
                )

            return run, lambda: [mass.sum(1)]
        R._CHUNK, R._COUNTED = tiles
        return (lambda i: R.lists(first, end, times, self.strength, self.count, 64)), list


def timed(run, copies):
    run(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for n in range(LAUNCHES):
            run(n % copies)
    best = float("inf")
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end))
    return 1000 * best / LAUNCHES


def compile_all(case, todo):
    """Kernels of all variants, in parallel processes of ptxas: compiling releases the lock for most of its time."""

    def one(item):
        try:
            item[0](0)
        except Exception as error:  # a variant that does not fit is left out below
            return error

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(one, todo))


def main():
    kernels = {"forward": ROWS, "rows": ROWS, "events": EVENTS, "mass": MASS, "list": [(x, 1024, 4) for x in LISTS]}
    chosen = os.environ.get("KERNELS", ",".join(kernels)).split(",")
    settings = os.environ.get("SETTINGS", ",".join(SETTINGS)).split(",")
    defaults = T.OF_ROWS, T.OF_EVENTS, T.OF_MASS, T._MANY, T._FULL, R._CHUNK, R._COUNTED

    def reset():
        T.OF_ROWS, T.OF_EVENTS, T.OF_MASS, T._MANY, T._FULL, R._CHUNK, R._COUNTED = defaults

    for name in settings:
        case = Case(*SETTINGS[name])
        print(
            f"== {name}: rows {case.count}, events {case.total}, batch {case.batch}, copies {case.copies}, "
            f"{time.time() - BEGAN:.0f} s",
            flush=True,
        )
        for kernel in chosen:
            lines, prepared = [], []
            for tiles, many, full in kernels[kernel]:
                reset()
                try:
                    run, result = case.launcher(kernel, tiles, many, full)
                except Exception as error:
                    print(f"{name:10} {kernel:8} {tiles}: {type(error).__name__} {error}"[:200])
                    continue
                prepared.append(((tuple(tiles), many, full), run, result))
            reset()
            if kernel != "list":
                compile_all(case, [(run, result) for _, run, result in prepared])
            expected = None
            for label, run, result in prepared:
                if time.time() - BEGAN > SECONDS:
                    print("out of time")
                    return
                if kernel == "list":
                    R._CHUNK, R._COUNTED = label[0]
                try:
                    run(0)
                    found = [x.double().clone() for x in result()]
                    expected = expected or found
                    off = max(
                        [
                            float((x - y).norm() / y.norm().clamp_min(1e-30))
                            for x, y in zip(found, expected, strict=False)
                        ],
                        default=0.0,
                    )
                    lines.append((timed(run, case.copies), label, off))
                except Exception as error:
                    print(f"{name:10} {kernel:8} {label}: {type(error).__name__} {error}"[:200])
            reset()
            best = min((line[0] for line in lines), default=0)
            for us, label, off in lines:
                wrong = "" if off < 2e-2 else "  WRONG"
                print(
                    f"{name:10} {kernel:8} {us:8.1f} us  {label!s:44} off {off:.0e}{wrong}{' *' if us == best else ''}",
                    flush=True,
                )
            del prepared
        del case
        torch.cuda.empty_cache()


main()
