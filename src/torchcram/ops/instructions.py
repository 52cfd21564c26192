"""Instructions of a GPU that do what a compiler would do in several, and less exactly than those."""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""Kernels run in Triton's interpreter, which knows no instructions."""


@triton.jit
def exp2(x):
    """2^x; what is too small for a float32 is 0. Of float64 what the compiler makes of it."""
    if INTERPRETED or x.dtype == tl.float64:
        y = tl.exp2(x)
    else:
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def log2(x):
    """Off by 2^-22; made of products it would be half of all that a score of a read takes."""
    if INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def tanh(x):
    """To 11 bits, which is more than is kept of it; in exponentials an Euler step's would take as long as a product."""
    if INTERPRETED:
        return 2 * tl.sigmoid(2 * x) - 1
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
