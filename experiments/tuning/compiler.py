"""Times a training step and a prefill of both models as the compiler makes them under each of some settings; on a GPU.

Usage: compiler.py LENGTH MODELS WHAT [SETTING...], for instance `compiler.py 8192 cram,transformer train "as it is"`;
the settings are those below. Compilation takes most of the time: several of these can compile side by side, and each is
timed while the others wait, if TORCHCRAM_TURNS names a file.
"""

import sys
import time

import torch

from torchcram.bench.timing import in_a_row, in_turns
from torchcram.bench.turns import take_part
from torchcram.bench.whole import SETTLE, Contender, Size, imposed, settled
from torchcram.memory import RoutingPolicy
from torchcram.models import baseline

SETTINGS = {
    "as it is": {},
    "early": {"triton.enable_pdl": True},
    "cooperative": {"triton.cooperative_reductions": True},
    "early cooperative": {"triton.enable_pdl": True, "triton.cooperative_reductions": True},
    "combined": {"combo_kernels": True},
    "combined pointwise": {"combo_kernels": True, "combo_kernels_pointwise_only": True},
    "tuned": {"max_autotune_pointwise": True},
    "products tried out": {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TRITON"},
}


def main(length: int, models: list[str], whats: list[str], names: list[str]) -> None:
    take_part()
    place, size = torch.device("cuda"), Size()
    batch = max(1, size.tokens // length)
    tokens = torch.randint(size.vocabulary, (batch, length), device=place)
    for name in names:
        for model in models:
            config = size.cram() if model == "cram" else baseline(model, size.cram())
            for what in whats:
                policy = RoutingPolicy()
                if model == "cram":
                    policy = imposed(size, batch, length, config.layers, place, training=what == "train")
                begun = time.perf_counter()
                try:
                    with torch._inductor.config.patch(SETTINGS[name]):
                        contender = Contender(config, size, place)
                        run = (contender.train if what == "train" else contender.prefill)(tokens, policy)
                        (often,) = settled([run], place)
                        (seconds,) = in_turns(in_a_row(run, place, often), repeats=5, warm_up=0, settle=SETTLE)
                    took = time.perf_counter() - begun
                    print(
                        f"{name}: {model} {what} {length} {1000 * seconds / often:.2f} ms, after {took:.0f} s",
                        flush=True,
                    )
                except Exception as error:
                    print(f"{name}: {model} {what} failed: {type(error).__name__} {str(error)[:200]}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(","), sys.argv[4:] or list(SETTINGS))
