"""Runs a script on a GPU that does nothing, and tells what it would have been asked for; see README.md.

Usage: watch.py SCRIPT [WORDS...] or watch.py -m MODULE [WORDS...]. Scripts may `import watch` and say
`watch.watching(True)` where it matters; others are watched from the beginning to the end.
"""

import atexit
import ctypes
import os
import runpy
import sys
from typing import Any

_RUNTIME = ctypes.CDLL(os.environ["NOGPU_RUNTIME"])


def watching(on: bool) -> None:
    """Note launches from here on, or no longer."""
    _RUNTIME.nogpu_watch(int(on))


def prepare() -> None:
    """Whatever is timed to be chosen from is as good as anything else; compiled kernels say how much they move."""
    import torch
    import torch._inductor.runtime.benchmarking as benchmarking
    import torch._inductor.runtime.triton_heuristics as heuristics
    import triton

    from torchcram.bench import timing

    benchmarking.TritonBenchmarker.benchmark_gpu = lambda *_, **__: 1.0
    heuristics.CachingAutotuner.bench = lambda *_, **__: 1.0
    triton.runtime.driver.active.get_benchmarker = lambda: lambda *_, **__: [1.0, 1.0, 1.0]
    run = heuristics.CachingAutotuner.run

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        _RUNTIME.nogpu_note(f"moves\t{self.inductor_meta.get('kernel_num_gb')}".encode())
        return run(self, *args, **kwargs)

    heuristics.CachingAutotuner.run = noted
    torch.cuda._sleep = lambda _: None
    # What libraries do that want a real device: cuDNN's, and that which compiles this function when it is first used.
    torch.backends.cuda.enable_cudnn_sdp(False)
    timing.BACKENDS["cuDNN"] = timing.BACKENDS["FlashAttention"]
    torch.special.ndtri = torch.zeros_like


if __name__ == "__main__":
    sys.modules["watch"] = sys.modules["__main__"]
    prepare()
    watching(True)
    atexit.register(watching, False)
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")
