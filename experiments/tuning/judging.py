"""Times what is known of a token before it reads, and the router's logits, for each choice of constants; on a GPU."""

import importlib
from collections.abc import Callable, Iterator
from itertools import product
from types import ModuleType

import torch
from expert import off, timed

BATCH, LENGTH, WIDTH, RANK, HIDDEN = 8, 8192, 512, 128, 32


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def tried(name: str, module: ModuleType, run: Callable[[], torch.Tensor], *choices: dict[str, int]) -> Iterator[str]:
    """Microseconds with each choice of a module's constants, the first of which is as right as any."""
    expected = run()
    usual = {constant: getattr(module, constant) for constant in choices[0]}
    for choice in ({}, *choices):
        for constant, value in (usual | choice).items():
            setattr(module, constant, value)
        try:
            yield f"{name} {choice or 'as it is'}: {timed(run):.1f} us, off by {off(run(), expected):.0e}"
        except Exception as error:
            yield f"{name} {choice}: {type(error).__name__} {str(error)[:100]}"
    for constant, value in usual.items():
        setattr(module, constant, value)


def tiles(rows: tuple[int, ...], columns: tuple[int, ...], warps: tuple[int, ...]) -> list[dict[str, int]]:
    return [
        dict(zip(("_ROWS", "_COLUMNS", "_WARPS", "_STAGES"), (*each, stages), strict=True))
        for each in product(rows, columns, warps)
        for stages in (2, 3)
    ]


if __name__ == "__main__":
    torch.manual_seed(0)
    surprise, estimate, choice = (
        importlib.import_module(f"torchcram.ops.{n}.triton") for n in ("surprise", "estimate", "choice")
    )
    u, told, wide = normal(BATCH, LENGTH, WIDTH), normal(BATCH, LENGTH, RANK), normal(BATCH, LENGTH, RANK + 40)
    carried, up, weight, score = normal(BATCH, 1, RANK), normal(WIDTH, RANK), normal(RANK, RANK), normal(RANK)
    about = [torch.rand(BATCH, LENGTH, device="cuda") for _ in range(4)]
    weights = normal(HIDDEN, 4), normal(HIDDEN), normal(3, HIDDEN), normal(3), torch.ones(1, device="cuda")
    token, grad = wide[..., RANK : RANK + HIDDEN], torch.randn(BATCH, LENGTH, 3, device="cuda")
    runs = (
        (
            "surprise",
            surprise,
            lambda: surprise.surprise(u, told, carried, up),
            tiles((64, 128, 256), (64, 128), (4, 8)),
        ),
        (
            "estimate",
            estimate,
            lambda: estimate.estimate(told, wide[..., :RANK], weight, score, score, score[:1]),
            tiles((64, 128, 256), (64, 128), (4, 8)),
        ),
        (
            "choice",
            choice,
            lambda: choice.choice(token, *about, *weights, 0.7),
            [{"_MOST": most, "_WARPS": warps} for most, warps in product((64, 128, 256, 512), (2, 4, 8))],
        ),
        (
            "choice, back",
            choice,
            lambda: choice.choice_backward(grad, token, *about, *weights[:3], 0.7)[0],
            [{"_MOST": most, "_WARPS": warps} for most, warps in product((64, 128, 256, 512), (2, 4, 8))],
        ),
    )
    for name, module, run, choices in runs:
        for line in tried(name, module, run, *choices):
            print(line, flush=True)
