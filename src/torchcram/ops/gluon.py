"""What Gluon, the language of kernels for Hopper GPUs, calls otherwise from one release to the next."""

try:
    from triton.experimental.gluon.language import barrier
except ImportError:  # before Triton 3.7 or so
    from triton.experimental.gluon.language import thread_barrier as barrier

__all__ = ["barrier"]
