"""Times kernels whose weights stay on the chip beside those whose do not, once both are right; on a Hopper GPU."""

import importlib

import torch
from expert import off, timed

from torchcram.ops import surprise, use

euler, resident = (importlib.import_module(f"torchcram.ops.expert.{name}") for name in ("triton", "hopper"))
surprising = importlib.import_module("torchcram.ops.surprise.triton")
BATCH, LENGTH, WIDTH, RANK, SHARE = 8, 8192, 512, 128, 1 / 3


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def steps() -> None:
    rows = BATCH * LENGTH
    h, into, weight = normal(rows, WIDTH), normal(rows, 2 * WIDTH), normal(WIDTH, WIDTH) / WIDTH**0.5
    gap, (a, b) = torch.rand(rows, device="cuda").bfloat16(), torch.randn(2, WIDTH, device="cuda")
    after, slope = torch.empty_like(h), torch.empty_like(h)
    gate = torch.sigmoid(b.double() + a.double() * gap.double()[:, None])
    expected = h.double() + SHARE * gate * torch.tanh(h.double() @ weight.double().T + into[:, WIDTH:].double())
    forms = {"as any other": (euler._step, (3,)), "weights on the chip": (resident.euler_step, (4, 3))}
    for name, (step, depths) in forms.items():
        for stages in depths:
            resident._STAGES = stages
            for kept in (None, slope):
                given = h, into, gap, a, b, weight, after, kept, None, SHARE
                step(*given)
                wrong = off(after, expected.float())
                took = timed(lambda step=step, given=given: step(*given))
                learns = "" if kept is None else ", learns"
                print(f"Euler step, {name}, {stages} stages{learns}: {took:.1f} us, off by {wrong:.0e}", flush=True)


@torch.no_grad()
def surprises() -> None:
    u, wide, carried, up = (
        normal(*size) for size in ((BATCH, LENGTH, WIDTH), (BATCH, LENGTH, 168), (BATCH, 1, RANK), (WIDTH, RANK))
    )
    told = wide[..., :RANK]
    with use("fast"):
        expected = surprise(*(x.double() for x in (u, told, carried, up)))
    for name, form in (("weights on the chip", surprising._hopper), ("as any other", None)):
        surprising._hopper = form
        wrong = off(surprising.surprise(u, told, carried, up), expected.float())
        took = timed(lambda: surprising.surprise(u, told, carried, up))
        print(f"surprise, {name}: {took:.1f} us, off by {wrong:.0e}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    steps()
    surprises()
